"""Sectors that answer with an error: no hot loop, and other errors are no rot."""

import errno

import trio

from tests.broker.cluster import Cluster
from tests.broker.scenario import QUEUE, in_cluster
from tests.broker.test_repair import (
    COLD,
    body,
    check_copies,
    produced,
    segment_path,
    stored,
    wait_mended,
)


def count_reads(cluster: Cluster, node: int, path: str) -> list[int]:
    """Positions of all reads of a file of a node from now on."""
    inode, reads = cluster.files[node].inode(path), list[int]()
    is_readable = inode.is_readable

    class Counting(type(inode)):  # type: ignore[misc]
        __slots__ = ()

        def is_readable(self, start: int, stop: int) -> bool:
            reads.append(start)
            return is_readable(start, stop)

    inode.__class__ = Counting
    return reads


def test_member_that_lacks_an_unreadable_record_gets_it_without_a_hot_loop() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 1)
        leader = cluster.leader(group)
        behind = leader % 3 + 1
        cluster.kill(behind)
        await produced(cluster, 1, 59)
        leader = cluster.leader(group)
        path = segment_path(group)
        cluster.files[leader].spoil(path, 30_000, 40_000)
        reads = count_reads(cluster, leader, path)
        await cluster.start(behind)
        await trio.sleep(20)
        assert len(reads) < 200, "it is read again and again"
        await wait_mended(cluster, group)
        await check_copies(cluster, group, 60)

    in_cluster(scenario, log=COLD)


def test_read_without_descriptors_is_tried_again_and_is_no_rot() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 60)
        leader = cluster.leader(group)
        cluster.files[leader].fail_next("pread", errno.EMFILE)
        async with cluster.client(leader) as client:
            fetched, _ = await client.fetch(QUEUE, 0)
            (item,) = fetched.queues
            assert item.error is not None
            assert "Too many open files" in item.error.message
            ((_, batch),) = (await client.read(QUEUE, 0))[:1]
            assert bytes(batch.bodies[0]) == body(0)
        assert cluster.nodes[leader].repairs.status(group) == []
        assert cluster.leader(group) == leader

    in_cluster(scenario, log=COLD)
