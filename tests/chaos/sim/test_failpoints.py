"""Failpoints between the parts of a node: where it sends, receives, and has applied."""

from collections import Counter

import pytest
import trio

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.faults import failpoints
from raftmq.chaos.sim.observed import FAILPOINTS
from raftmq.chaos.sim.run import OWN_FAILPOINTS, WorkloadName, run
from raftmq.chaos.world.agenda import run as run_world
from raftmq.chaos.world.disk import PowerLoss
from raftmq.chaos.world.process import Process

RARE = {
    "apply membership",
    "send snapshot",
    "receive snapshot",
    "receive repair",
    "receive change-node",
}
"""Failpoints reached in some runs only: a join, a long lag, a damaged disk."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Failpoints that processes come to, and how often one ended there."""
    ends: Counter[str] = Counter()
    passes = Process.passes

    def noting(process: Process, name: str, *, after: bool) -> None:
        ends[name] += 0
        try:
            passes(process, name, after=after)
        except PowerLoss:
            ends[name] += 1
            raise

    monkeypatch.setattr(Process, "passes", noting)
    return ends


def test_busy_cluster_passes_every_failpoint(ends: Counter[str]) -> None:
    joins = (Event(1_000, "replace-node", (2,)), Event(4_000, "kill", (3,)))
    assert run(Schedule(3, 12, joins)).is_good
    assert set(FAILPOINTS) - set(ends) <= RARE


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", list(OWN_FAILPOINTS))
def test_processes_end_where_they_are_asked_for_what_only_this_workload_asks(
    workload: WorkloadName, ends: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "NODE_FAILPOINTS_SHARE", 1.0)
    monkeypatch.setattr(failpoints, "OWN_FAILPOINTS_SHARE", 1.0)
    strikes = tuple(Event(at, "crash-point", (at // 500 % 3 + 1,)) for at in range(800, 9000, 500))
    own = set(OWN_FAILPOINTS[workload])
    for seed in range(5, 9):
        outcome = run(Schedule(seed, 12, strikes), workload=workload)
        assert outcome.is_good, str(outcome)
        # Not each run has a message that is cancelled, for one.
        if own <= set(ends):
            break
    assert own <= set(ends)
    assert sum(ends[name] for name in own) >= 3
    assert sum(ends[name] > 0 for name in own) >= min(len(own), 3)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", ["send heartbeat", "receive raft"])
def test_process_ends_at_a_failpoint_and_comes_back(point: str, after: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, seed=1)
            await cluster.found()
            cluster.processes[1].crash_at_failpoint(point, after=after)
            await cluster.wait_until(lambda: 1 not in cluster.processes)
            await cluster.wait_until(lambda: all(map(cluster.leader, (0, 1, 2, 3))))
            await cluster.start(1)
            assert 1 in cluster.nodes
            assert not cluster.broken
            nursery.cancel_scope.cancel()

    run_world(main, seed=1)


@pytest.mark.parametrize("what", ["send append", "send append-response", "apply batch"])
def test_nothing_is_lost_where_processes_end_again_and_again(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "NODE_FAILPOINTS_SHARE", 1.0)
    monkeypatch.setattr(failpoints, "NODE_FAILPOINTS", (what,))
    ends = tuple(Event(at, "crash-point", (at // 800 % 3 + 1,)) for at in range(800, 9000, 800))
    outcome = run(Schedule(13, 14, ends))
    assert outcome.is_good, str(outcome)
    assert outcome.counts["crashes"] >= 3
