"""A node mends its own damaged disk: after the heal the disk is whole, and was not replaced."""

import pytest
import trio

from raftmq.broker.leader_tasks import PAUSE_SECONDS
from raftmq.broker.settings import Log
from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim.drain import scrub_looks
from raftmq.chaos.sim.run import run
from tests.broker.harness import Cluster
from tests.broker.replica.test_repair import stored
from tests.broker.scenario import in_cluster

KINDS = (
    "bit-flip",
    "time-travel",
    *(
        pytest.param(kind, marks=pytest.mark.campaign)
        for kind in (
            "bad-sector", "unreadable-sector", "misdirected-write", "lost-write", "cut-tail",
            "missing-segment",
        )
    ),
)  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_nodes_mend_themselves_one_after_the_other(kind: str) -> None:
    strokes = tuple(Event(at, kind, (at // 4000 % 3 + 1,)) for at in range(4000, 30_000, 4000))
    outcome = run(Schedule(9, 44, strokes))
    assert outcome.is_good, str(outcome)
    assert outcome.counts.get("damage done", 0) >= 2, outcome.counts
    assert not outcome.counts.get("replaced")


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [2, 5])
def test_seed_that_had_rot_in_records_before_they_were_applied_is_whole_after_the_heal(
    seed: int,
) -> None:
    at = range(4000, 30_000, 4000)
    strokes = tuple(Event(ms, "unreadable-sector", (ms // 4000 % 3 + 1,)) for ms in at)
    outcome = run(Schedule(seed, 44, strokes))
    assert outcome.is_good, str(outcome)
    assert outcome.counts.get("damage done", 0) >= 2, outcome.counts


def test_round_of_the_scrub_takes_the_time_that_the_drain_allows_for_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await stored(cluster)
        cluster.kill(2)
        await cluster.start(2)
        node, began = cluster.nodes[2], trio.current_time()
        await cluster.wait_until(lambda: node.status()["scrub"]["rounds"] >= 1, 300)
        seconds = trio.current_time() - began
        allowed = scrub_looks(cluster.files[2], log.scrub_bytes_per_second) * PAUSE_SECONDS
        assert allowed / 2 < seconds < allowed + 2 * PAUSE_SECONDS

    log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
    in_cluster(scenario, log=log)
