"""Logs are copied to nodes that shall carry a group at a bounded rate."""

from os import urandom

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.settings import MIB, Log
from tests.broker.harness import Cluster
from tests.broker.replica.test_removed_learners import place
from tests.broker.scenario import QUEUE, bodies, in_cluster

RECORDS = 80
BODY = 200_000
LOG = Log(segment_bytes=4 * MIB, cache_bytes=MIB)


def seconds_to_move(rate: int) -> float:
    """How long a group of 16 MB, of which little is in memory, takes to get another member."""

    async def scenario(cluster: Cluster) -> float:
        cluster.limits = replace(cluster.limits, copy_bytes_per_second=rate)
        await cluster.found("t", 3)
        for number in range(RECORDS):
            async with cluster.client(cluster.leader_of(QUEUE)) as client:
                await client.produce(QUEUE, [urandom(BODY)], number)
        group = cluster.nodes[1].catalog.group_of(QUEUE)
        assert group is not None
        await trio.sleep(20)
        here = sorted(cluster.members(group))
        (away,) = {1, 2, 3, 4} - {*here}
        leader = cluster.leader(group)
        others = [node for node in here if node != leader]
        began = trio.current_time()
        await place(cluster, leader, others[0], away, group=group)
        await cluster.wait_until(lambda: away in cluster.members(group), 300)
        took = trio.current_time() - began
        assert len(await bodies(cluster, QUEUE)) == RECORDS
        return took

    found: float = in_cluster(scenario, size=4, log=LOG)
    return found


def test_move_takes_as_long_as_its_rate_says() -> None:
    size = RECORDS * BODY
    took = seconds_to_move(MIB)
    assert size / MIB * 0.7 < took < size / MIB * 1.5 + 10
    assert seconds_to_move(0) < 10


@pytest.mark.parametrize("rate", [1, 1 << 40])
def test_rates_at_the_ends_are_taken(rate: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = replace(cluster.limits, copy_bytes_per_second=rate)
        await cluster.found("t", 3)
        await place(cluster, 2, 3, 4)
        # What is in memory is copied at once.
        await cluster.wait_until(lambda: cluster.members(1) == {2, 3, 4})

    in_cluster(scenario, size=4)
