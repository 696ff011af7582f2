"""Rot in files that can be done without: snapshots before others, and indexes."""

import errno
import struct

import pytest
import trio

from raftmq.broker.node import Node
from raftmq.broker.replica.repair import PAUSE_SECONDS_MAX
from raftmq.errors import CorruptRecord
from raftmq.log.builder import SegmentBuilder
from raftmq.log.index_file import IndexDamaged, SegmentIndex
from raftmq.log.store import LogStore
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

from .test_repair import (
    BATCHES,
    COLD,
    abstaining,
    check_copies,
    findings,
    segment_path,
    snapshot_paths,
    stored,
)

POSITIONS, BASES = 2, 6
"""Sections of an index: the first is not told by the machine, the second is."""


def rot(cluster: Cluster, node: int, path: str, section: int) -> None:
    """Flip a bit of a section of an index file."""
    data = cluster.files[node].bytes_of(path)
    offset, length, _ = struct.unpack_from("<QII", data, 80 + 16 * section)
    assert length
    cluster.files[node].flip(path, 8 * offset)


def meet_rot(node: Node, group: int, names: list[int]) -> None:
    """Read the indexes of segments one right after the other; returns the damaged ones."""
    replica = node.groups[group]
    for name in names:
        (segment,) = [one for one in replica.store.sealed if one.name == name]
        with pytest.raises(IndexDamaged) as raised:
            segment.check()
        node.index_failed(replica, raised.value)


def test_bit_in_the_oldest_snapshot_of_two_of_three_costs_neither_a_record_nor_a_vote() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        for number in (1, 2):
            cluster.kill(number)
        for number in (1, 2):
            cluster.files[number].flip(snapshot_paths(cluster, number, group)[0], 8 * 40)
        await cluster.start(1, 2)
        assert abstaining(cluster, group) == []
        cluster.kill(3)
        await check_copies(cluster, group, BATCHES)
        (described,) = [g for g in cluster.nodes[1].status()["groups"] if g["group"] == group]
        assert "CRC-32C" in described["rotten_snapshots"][0]

    in_cluster(scenario, log=COLD)


def test_unreadable_page_of_an_index_is_built_again_at_the_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        victim, path = 1, segment_path(group).replace(".log", ".index")
        files = cluster.files[victim]
        before = files.bytes_of(path)
        for start in (0, 272):
            cluster.kill(victim)
            files.spoil(path, start, start + 100)
            await cluster.start(victim)
            await cluster.wait_until(lambda: path in files.paths())
            assert not files.inode(path).unreadable
            assert files.bytes_of(path) == before
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


def test_all_damaged_indexes_are_built_again_though_none_is_met_a_second_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        node, files = cluster.nodes[1], cluster.files[1]
        names = [segment.name for segment in node.groups[group].store.sealed][:4]
        paths = [segment_path(group, name).replace(".log", ".index") for name in names]
        before = [files.bytes_of(path) for path in paths]
        for path in paths:
            rot(cluster, 1, path, BASES)
        meet_rot(node, group, names)
        assert len(findings(cluster, group)) == len(names)
        await cluster.wait_until(lambda: [files.bytes_of(path) for path in paths] == before)
        assert findings(cluster, group) == []

    in_cluster(scenario, log=COLD)


def test_index_that_cannot_be_built_is_not_reported_once_its_segment_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        node = cluster.nodes[1]
        store = node.groups[group].store
        name = store.sealed[0].name
        rot(cluster, 1, segment_path(group, name).replace(".log", ".index"), POSITIONS)
        meet_rot(node, group, [name])
        await cluster.wait_until(
            lambda: "cannot be built" in str([f["state"] for f in findings(cluster, group)])
        )
        store.drop_before(store.sealed[1].last + 1)
        assert findings(cluster, group) == []

    in_cluster(scenario, log=COLD)


def test_rotten_snapshot_is_replaced_though_the_disk_was_full_at_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster, 5, 100)
        node, files = cluster.nodes[1], cluster.files[1]
        (path,) = snapshot_paths(cluster, 1, group)
        files.flip(path, 8 * 40)
        files.fail_next("create", errno.ENOSPC)
        replica = node.groups[group]
        with pytest.raises(CorruptRecord) as raised:
            replica.store.open_snapshot(replica.store.first_index - 1).verify()
        node.repairs.found_snapshot(replica, replica.store.first_index - 1, raised.value)
        await cluster.wait_until(
            lambda: len(snapshot_paths(cluster, 1, group)) > 1, 3 * PAUSE_SECONDS_MAX
        )

    in_cluster(scenario, log=COLD)


def test_leader_that_found_its_snapshot_rotten_as_a_follower_hands_over_when_it_is_needed() -> None:
    async def scenario(cluster: Cluster) -> None:
        group = await stored(cluster)
        rotten = cluster.leader(group) % 3 + 1
        path = snapshot_paths(cluster, rotten, group)[0]
        cluster.kill(rotten)
        cluster.files[rotten].flip(path, 8 * 40)
        await cluster.start(rotten)
        replica = cluster.nodes[rotten].groups[group]
        at = replica.store.first_index - 1
        assert not replica.is_leader
        await cluster.wait_until(lambda: replica.leader != 0)
        leading = cluster.nodes[cluster.leader(group)].groups[group]
        # Before that it declines, as a change of members may be pending in what it has to apply.
        await cluster.wait_until(lambda: replica.machine.applied == leading.machine.applied)
        leading.transfer(replica.raft.id)
        await cluster.wait_until(lambda: replica.is_leader)
        assert cluster.nodes[rotten].repairs.gives_way(replica, at)
        assert replica.raft.status().transferee
        await check_copies(cluster, group, BATCHES)

    in_cluster(scenario, log=COLD)


def test_index_that_failed_at_first_is_written_though_the_log_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seal(store: LogStore, builder: SegmentBuilder) -> SegmentIndex:
        raise IndexDamaged("it cannot be read back", builder.name)

    async def scenario(cluster: Cluster) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LogStore, "seal", seal)
            group = await stored(cluster)
            await trio.sleep(10)
        stores = [node.groups[group].store for node in cluster.nodes.values()]
        assert all(len(store.layout) > 1 for store in stores)
        await cluster.wait_until(lambda: all(len(store.layout) == 1 for store in stores))

    in_cluster(scenario, log=COLD)
