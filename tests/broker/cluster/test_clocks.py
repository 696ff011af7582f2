"""Retention by age when clocks are wrong: on one node, on a lone node, before the start."""

import pytest
import trio

from raftmq.broker.settings import Log
from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim.run import run
from tests.broker.harness import Cluster, Refused
from tests.broker.replica.test_removed_learners import place
from tests.broker.scenario import QUEUE, in_cluster

DAY_MS = 24 * 3600 * 1000
FAR_MS = 2.0**44
"""The year 2527 in milliseconds: more bits than the number of a read has for its time."""
LOG = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0, retention_ms=120_000)


async def fill(cluster: Cluster, first: int, count: int = 30) -> None:
    """Send some segments full of messages through the current leader."""
    number = first
    while number < first + count:
        try:
            async with cluster.client(cluster.leader_of(QUEUE)) as client:
                await client.produce(QUEUE, [b"x" * 10_000], number)
            number += 1
        except Refused:
            await trio.sleep(0.1)


async def earliest(cluster: Cluster, offset: int) -> int:
    async with cluster.client(cluster.leader_of(QUEUE)) as client:
        return (await client.fetch(QUEUE, offset))[0].queues[0].earliest


@pytest.mark.parametrize("seconds", [3, 30])
def test_clock_that_is_wrong_for_a_while_deletes_nothing(seconds: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await fill(cluster, 0)
        clock = cluster.machines[cluster.leader_of(QUEUE)].clock
        clock.skew_ms = 4 * DAY_MS
        await trio.sleep(seconds)
        clock.skew_ms = 0
        await trio.sleep(30)
        assert await earliest(cluster, 29) == 0

    in_cluster(scenario, log=LOG)


def test_clock_that_was_wrong_before_its_node_led_deletes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await fill(cluster, 0)
        leader = cluster.leader_of(QUEUE)
        cluster.kill(leader)
        cluster.machines[leader].clock.skew_ms = 4 * DAY_MS
        await cluster.start(leader)
        # It is the preferred leader, and gets its office back.
        await cluster.wait_until(lambda: cluster.leader_of(QUEUE) == leader)
        await trio.sleep(40)
        assert await earliest(cluster, 29) == 0

    in_cluster(scenario, log=LOG)


def test_what_is_old_by_all_clocks_goes_also_with_one_node_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await fill(cluster, 0)
        cluster.kill(next(n for n in (1, 2, 3) if n != cluster.leader_of(QUEUE)))
        await trio.sleep(60)
        assert await earliest(cluster, 29) == 0
        await trio.sleep(80)
        assert await earliest(cluster, 29) > 0

    in_cluster(scenario, log=LOG)


def test_faults_of_clocks_drop_nothing_in_a_whole_run() -> None:
    jumps = tuple(Event(at, "step-clock", (1 + at % 3,), 0, 86_400_000) for at in (2000, 5000))
    outcome = run(Schedule(1, 16, jumps))
    assert outcome.is_good, str(outcome)


def test_clock_of_a_far_year_ends_no_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for node in (1, 2, 3):
            cluster.kill(node)
            cluster.machines[node].clock.skew_ms = FAR_MS
        await cluster.start(1, 2, 3)
        await cluster.wait_until(lambda: all(cluster.leader(group) for group in range(4)))
        # A group that shall move asks its members whether they are alive, and reads the catalog.
        await place(cluster, 1, 2)
        await trio.sleep(60)
        assert all(cluster.leader(group) for group in range(4))

    in_cluster(scenario)
