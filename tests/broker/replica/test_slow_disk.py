"""A slow disk: leaders send ahead of it, and the node holds a bounded number of their bytes."""

from itertools import count

import trio
from msgspec.structs import replace

from raftmq.broker.replica.disk import WINDOWS_MAX
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


def test_records_that_a_node_leads_take_no_room_from_those_that_it_follows() -> None:
    """A hostile reading: own proposals kept the sum at the bound, and all others were dropped."""

    async def scenario(cluster: Cluster) -> None:
        cluster.limits = replace(Limits(), unwritten_bytes_max=UNWRITTEN_BYTES_MAX)
        await cluster.found("t", len(QUEUES))
        led = {cluster.leader_of(queue): queue for queue in QUEUES}
        slow, other = list(led)[:2]
        cluster.machines[slow].slowness = 1000.0
        for number in set(cluster.nodes) - {slow, other}:
            cluster.kill(number)

        async def keep_busy(producer: int) -> None:
            async with cluster.client(slow) as client:
                for n in count():
                    await client.produce(led[slow], [b"." * BODY], n, producer=producer)

        async with trio.open_nursery() as nursery:
            for producer in range(100, 130):
                nursery.start_soon(keep_busy, producer)
            await trio.sleep(5)
            # Two of three nodes are alive: the other one's group goes on.
            async with cluster.client(other) as client:
                with trio.fail_after(60):
                    for n in range(5):
                        await client.produce(led[other], [b"x"], n)
            nursery.cancel_scope.cancel()

    in_cluster(scenario)


def test_answers_that_wait_for_a_disk_that_stands_still_are_bounded() -> None:
    async def scenario(cluster: Cluster) -> None:
        messages_max = WINDOWS_MAX * cluster.raft.inflight_messages_max
        await cluster.found("t", 1)
        still = next(node for node in cluster.nodes if node != cluster.leader_of(QUEUE))
        cluster.machines[still].slowness = 1e9
        for n in range(2):
            async with cluster.client(cluster.leader_of(QUEUE)) as client:
                await client.produce(QUEUE, [b"x"], n)
            await trio.sleep(5)
        await trio.sleep(
            2 * messages_max * cluster.raft.heartbeat_ticks * cluster.raft.tick_ms / 1e3
        )
        waiting = [len(write.messages) for write in cluster.nodes[still].disk._pending.values()]
        assert max(waiting) == messages_max

    in_cluster(scenario)
