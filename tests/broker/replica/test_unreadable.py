"""Sectors that answer with an error: no hot loop, and other errors are no rot."""

import errno

import pytest
import trio

from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster

from .test_repair import (
    COLD,
    abstaining,
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


async def with_unapplied_end(cluster: Cluster, count: int) -> tuple[int, int]:
    """A follower restarts and hears nothing: partition group and node.

    The end of its log, in a segment that is written to, is durable, and not known to be committed.
    """
    group = await stored(cluster, count, 500)
    victim = cluster.leader(group) % 3 + 1
    cluster.kill(victim)
    for other in {1, 2, 3} - {victim}:
        cluster.network.block(f"node{other}", f"node{victim}")
        cluster.network.block(f"node{victim}", f"node{other}")
    await cluster.start(victim)
    await trio.sleep(1)
    replica = cluster.nodes[victim].groups[group]
    assert replica.machine.applied < replica.store.last_index
    assert replica.cache.get(replica.store.last_index) is None
    return group, victim


def reconnect(cluster: Cluster, node: int) -> None:
    """Let a node hear the others again."""
    for other in {1, 2, 3} - {node}:
        cluster.network.unblock(f"node{other}", f"node{node}")
        cluster.network.unblock(f"node{node}", f"node{other}")


@pytest.mark.parametrize("is_flipped", [True, False])
def test_replica_whose_unapplied_records_rot_applies_them_as_its_peers_have_them(
    is_flipped: bool,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        group, victim = await with_unapplied_end(cluster, 30)
        files, path = cluster.files[victim], segment_path(group)
        at = files.bytes_of(path).rindex(b"29.xxx")
        if is_flipped:
            files.flip(path, 8 * at)
        else:
            files.spoil(path, at, at + 1)
        reconnect(cluster, victim)
        await cluster.wait_until(
            lambda: len({n.groups[group].machine.applied for n in cluster.nodes.values()}) == 1
        )
        (finding,) = cluster.nodes[victim].repairs.status(group)
        assert finding["state"] == "waits for the segment to be sealed"
        await produced(cluster, 30, 3, 500)
        await wait_mended(cluster, group)
        assert cluster.nodes[victim].repairs.mended == 1
        assert abstaining(cluster, group) == []
        await check_copies(cluster, group, 33)

    in_cluster(scenario, log=COLD)


def test_record_that_rots_unapplied_on_a_majority_is_applied_when_a_peer_can_read_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        group, victim = await with_unapplied_end(cluster, 30)
        path = segment_path(group)
        leader = cluster.leader(group)
        third = ({1, 2, 3} - {victim, leader}).pop()
        cluster.kill(third)
        for number in (victim, leader):
            size = len(cluster.files[number].bytes_of(path))
            cluster.files[number].spoil(path, 300, size)
        reconnect(cluster, victim)
        await trio.sleep(30)
        replica = cluster.nodes[victim].groups[group]
        assert replica.machine.applied < replica.store.last_index
        assert victim not in cluster.stopped
        await cluster.start(third)
        await produced(cluster, 30, 3, 500)
        await wait_mended(cluster, group)
        await check_copies(cluster, group, 33)

    in_cluster(scenario, log=COLD)
