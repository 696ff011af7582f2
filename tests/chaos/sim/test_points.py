"""Crash points between the parts of a node: where it sends, receives, and has applied."""

import pytest
import trio

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim import process_faults
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.observed import POINTS
from raftmq.chaos.sim.run import run
from raftmq.chaos.world.agenda import run as run_world
from raftmq.chaos.world.process import Process

RARE = {"apply membership", "send snapshot", "receive snapshot", "receive repair", "receive member"}
"""What happens in some runs only: who joins, who lags far behind, whose disk is damaged."""


def test_busy_cluster_passes_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    passes = Process.passes

    def noting(process: Process, name: str, *, after: bool) -> None:
        seen.add(name)
        passes(process, name, after=after)

    monkeypatch.setattr(Process, "passes", noting)
    joins = (Event(1_000, "replace-node", (2,)), Event(4_000, "kill", (3,)))
    assert run(Schedule(3, 12, joins)).is_good
    assert set(POINTS) - seen <= RARE


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", ["send heartbeat", "receive raft"])
def test_process_ends_at_a_point_and_comes_back(point: str, after: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, seed=1)
            await cluster.found()
            cluster.processes[1].crash_at_point(point, after=after)
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
    monkeypatch.setattr(process_faults, "NODE_POINTS_SHARE", 1.0)
    monkeypatch.setattr(process_faults, "NODE_POINTS", (what,))
    ends = tuple(Event(at, "crash-point", (at // 800 % 3 + 1,)) for at in range(800, 9000, 800))
    outcome = run(Schedule(5, 14, ends))
    assert outcome.is_good, str(outcome)
    assert outcome.counts["crashes"] >= 3
