"""A slow disk: leaders send ahead of it, and the node holds a bounded number of their bytes."""

import trio
from msgspec.structs import replace

from raftmq.broker.settings import Limits
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies, in_cluster

QUEUES = range(QUEUE, QUEUE + 6)
BODY, COUNT = 4000, 20
UNWRITTEN_BYTES_MAX = 50_000
LAST_APPEND_BYTES = 3 * BODY
"""An append that arrives just below the bound is taken whole; here it holds a few batches."""


def unwritten(cluster: Cluster, node: int) -> int:
    return cluster.nodes[node].disk.unwritten_bytes


async def store_beside_a_slow_disk(cluster: Cluster) -> tuple[int, int]:
    """Fill all groups while one follower's disk takes seconds for each pass; the follower, and the
    most bytes that it held."""
    await cluster.found("t", len(QUEUES))
    leaders = {cluster.leader_of(queue) for queue in QUEUES}
    slow = max(leaders)
    cluster.machines[slow].slowness = 30_000.0
    most = 0
    for n in range(COUNT):
        for queue in QUEUES:
            if (leader := cluster.leader_of(queue)) != slow:
                async with cluster.client(leader) as client:
                    await client.produce(queue, [b"%d" % n + b"." * BODY], n)
                most = max(most, unwritten(cluster, slow))
    return slow, most


def test_node_with_a_slow_disk_holds_a_bounded_part_of_what_all_groups_send() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = replace(Limits(), unwritten_bytes_max=UNWRITTEN_BYTES_MAX)
        slow, most = await store_beside_a_slow_disk(cluster)
        assert UNWRITTEN_BYTES_MAX <= most <= UNWRITTEN_BYTES_MAX + LAST_APPEND_BYTES
        assert cluster.nodes[slow].status()["unwritten_bytes"] == unwritten(cluster, slow)
        cluster.machines[slow].slowness = 1.0
        with trio.fail_after(120):
            await cluster.wait_until(lambda: is_level(cluster, slow))
        assert unwritten(cluster, slow) == 0
        for queue in QUEUES:
            if cluster.leader_of(queue) != slow:
                assert len(await bodies(cluster, queue)) == COUNT

    in_cluster(scenario)


def is_level(cluster: Cluster, node: int) -> bool:
    """Whether a node holds what the leaders hold."""
    for number, group in cluster.nodes[node].groups.items():
        leader = cluster.nodes[cluster.leader(number)].groups[number]
        if group.raft.status().applied != leader.raft.status().applied:
            return False
    return True


def test_bound_is_needed() -> None:
    async def scenario(cluster: Cluster) -> None:
        _, most = await store_beside_a_slow_disk(cluster)
        assert most > 2 * UNWRITTEN_BYTES_MAX

    in_cluster(scenario)
