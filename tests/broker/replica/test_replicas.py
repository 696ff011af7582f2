"""A log that was deleted or lost never comes back under its member id."""

from functools import partial

import msgspec
import pytest
import trio

from raftmq.broker.cluster.reconfiguration import is_unused
from raftmq.broker.replica.disk import DiskLoop
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import FOUNDING_INDEX, GONE
from raftmq.broker.replica.removal import has_left, has_taken_in
from raftmq.broker.tickets import Callback
from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.consensus import Message, MessageKind
from raftmq.log.faults import DiskFull
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import PutGroup
from raftmq.machine.catalog.replicas import member_id, member_of
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import Admin, AdminDone, ClusterView, ErrorReply, FrameKind, GroupView
from tests.broker.cluster.test_reconfiguration import (
    check_everywhere,
    log_files,
    move_one_away,
    produce_everywhere,
)
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, in_cluster


def lose(files: MemoryFiles, group: int, *, how: str) -> None:
    """The folder of a replica is gone, empty, or says that it was being deleted."""
    folder = f"/data/groups/{group:05d}"
    if how != "marked":
        for name in files.list(folder):
            files.unlink(f"{folder}/{name}")
    if how == "missing":
        del files._folders[folder]
    if how == "marked":
        files.create(f"{folder}/{GONE}").datasync()
    if how != "missing":
        files.sync_folder(folder)


async def move_to_two_new_nodes(cluster: Cluster) -> None:
    """Group 1 moves from nodes 1, 2 and 3 to 1, 4 and 5; 2 and 3 delete their logs."""
    for new in (4, 5):
        await cluster.change("add", new, host=f"node{new}", port=7400)
        await cluster.start(new)
        await cluster.wait_until(partial(cluster.has_joined, new))
    await cluster.wait_until(lambda: cluster.members(1) == {1, 4, 5})
    await cluster.wait_until(lambda: all(1 not in cluster.nodes[n].groups for n in (2, 3)))
    await cluster.wait_until(lambda: not any(log_files(cluster, n, 1) for n in (2, 3)))


def test_two_founders_that_come_back_do_not_found_their_group_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await move_to_two_new_nodes(cluster)
        await cluster.change("remove", 4)
        await cluster.change("remove", 5)
        await cluster.wait_until(lambda: all(1 in cluster.nodes[n].groups for n in (2, 3)))
        # Now a majority of the founding membership runs; the leader of the present one is away.
        cluster.kill(1, power=True)
        await trio.sleep(5)
        assert cluster.leader(1) in (4, 5)
        assert cluster.nodes[2].groups[1].raft.id == member_id(2, 0, 1)
        await cluster.start(1)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await produce_everywhere(cluster, 5, 5)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


@pytest.mark.parametrize("how", ["missing", "empty", "marked"])
@pytest.mark.parametrize("group", [0, 1])
def test_replica_whose_folder_is_lost_re_enters_as_another_member(how: str, group: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(2)
        lose(cluster.files[2], group, how=how)
        await cluster.start(2)
        new = member_id(2, 0, 1)
        await cluster.wait_until(lambda: group in cluster.nodes[2].groups)
        assert cluster.nodes[2].groups[group].raft.id == new
        await cluster.wait_until(lambda: new in conf(cluster, group).voters)
        assert set(conf(cluster, group).voters) == {1, new, 3}
        # The others keep their ids, and so does this one when it starts again.
        assert {g.raft.id for n, g in cluster.nodes[2].groups.items() if n != group} == {2}
        cluster.kill(2, power=True)
        await cluster.start(2)
        assert cluster.nodes[2].groups[group].raft.id == new
        await produce_everywhere(cluster, 5, 5)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


def test_what_is_left_of_a_lost_log_goes_when_its_group_has_moved_away() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        node, group = await move_one_away(cluster)
        cluster.kill(node)
        files, folder = cluster.files[node], f"/data/groups/{group:05d}"
        files.unlink(f"{folder}/{FOUNDING_INDEX + 1:020d}.log")
        assert log_files(cluster, node, group)
        await cluster.start(node)
        await cluster.wait_until(lambda: not log_files(cluster, node, group))

    in_cluster(scenario)


def test_log_that_took_the_place_of_a_lost_one_stays_as_long_as_it_is_carried() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(2)
        lose(cluster.files[2], 1, how="empty")
        await cluster.start(2)
        await cluster.wait_until(lambda: member_id(2, 0, 1) in conf(cluster, 1).voters)
        carried = cluster.nodes[2].groups[1]

        def has_log() -> bool:
            return len(log_files(cluster, 2, 1)) >= len(carried.store.segments())

        assert has_log()
        await cluster.change("add", 4, host="node4", port=7400)
        # The group is wanted elsewhere, and moves no further, as node 4 never starts.
        leader = cluster.nodes[cluster.leader(0)]
        moved = msgspec.structs.replace(leader.catalog.groups[1], members=[1, 3, 4])
        nothing = Callback(lambda _: None, lambda _: None)
        leader.groups[0].propose(Kind.COMMANDS, encode_commands([PutGroup(moved)]), nothing)
        await cluster.wait_until(lambda: cluster.nodes[2].catalog.groups[1].members == [1, 3, 4])
        await trio.sleep(5)
        assert cluster.nodes[2].groups[1] is carried
        assert has_log()

    in_cluster(scenario)


def conf(cluster: Cluster, group: int):  # type: ignore[no-untyped-def]
    """The membership of a group by its leader."""
    leader = cluster.leader(group) or min(cluster.nodes)
    return cluster.nodes[leader].groups[group].conf_state


def test_group_whose_only_logs_are_lost_waits_and_is_not_founded_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        for node in (1, 2):
            cluster.kill(node)
            lose(cluster.files[node], 1, how="empty")
        await cluster.start(1, 2)
        await trio.sleep(30)
        assert not cluster.leader(1)
        assert cluster.leader(2)

    in_cluster(scenario)


@pytest.mark.parametrize("power", [False, True])
def test_crash_after_an_id_was_used_up_leaves_the_old_log_or_none(power: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        old, group = await move_one_away(cluster)
        leader = cluster.nodes[cluster.leader(0)]
        taker = member_id(old, 0, 1)
        with trio.fail_after(60):
            while member_of(leader.catalog, group, old) != taker:
                await trio.sleep(0.0005)
        cluster.kill(old, power=power)
        await cluster.start(old)
        await cluster.wait_until(lambda: group not in cluster.nodes[old].groups)
        await cluster.wait_until(lambda: log_files(cluster, old, group) == [])
        await cluster.change("remove", 4)
        await cluster.wait_until(lambda: old in cluster.members(group))
        assert cluster.nodes[old].groups[group].raft.id == taker
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_node_that_is_about_to_join_starts_again_with_its_blank_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        cluster.prepare(4)
        await cluster.start(4)
        cluster.kill(4)
        lose(cluster.files[4], 0, how="empty")
        await cluster.start(4)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.wait_until(lambda: cluster.has_joined(4))

    in_cluster(scenario)


def test_client_cannot_retire_a_replica() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        command = Admin(["retire_replica", 1, 2, True])
        async with cluster.client(cluster.leader(0)) as client:
            with pytest.raises(Refused, match="only the node itself"):
                await client.ask(FrameKind.ADMIN, command, AdminDone)
        assert cluster.nodes[1].catalog.groups[1].replicas == {}

    in_cluster(scenario)


def told(conf: GroupView) -> dict[int, ClusterView]:
    """The same view of a group from each node."""
    return {node: ClusterView("c", 1, [], [conf], []) for node in (1, 2, 3, 4, 5)}


def test_outgoing_voters_of_a_joint_membership_still_count() -> None:
    joint = told(GroupView(7, 1, 3, [1, 4, 5], [], [1, 2, 3], [1, 2, 3, 4, 5]))
    assert not is_unused(2, joint)
    assert not has_left(2, 7, joint)
    left = told(GroupView(7, 1, 3, [1, 4, 5], [], [], [1, 4, 5]))
    assert is_unused(2, left)
    assert has_left(2, 7, left)


def test_both_halves_of_a_joint_membership_must_know_of_no_newer_term() -> None:
    joint = told(GroupView(7, 1, 3, [1, 4, 5], [], [1, 2, 3], [1, 2, 3, 4, 5]))
    assert has_left(6, 7, joint)
    for apart in ((2, 3), (4, 5)):
        assert not has_left(6, 7, {n: view for n, view in joint.items() if n not in apart})


def test_replaced_replica_goes_when_the_leader_has_the_one_in_its_place() -> None:
    new = member_id(2, 0, 1)
    views = told(GroupView(7, 1, 3, [1, 3], [2], [], [1, 2, 3, new]))
    assert has_taken_in(new, 7, views)
    assert not has_left(2, 7, views)
    # Node 2 has a new self that only learns: it has no vote.
    assert not has_taken_in(new, 7, {n: view for n, view in views.items() if n != 3})
    # The former self votes, in one of the halves.
    assert not has_taken_in(new, 7, told(GroupView(7, 1, 3, [1, 2, 3], [2], [], [1, 2, 3, new])))
    assert not has_taken_in(new, 7, told(GroupView(7, 1, 3, [1, 3], [2], [2, 3], [1, 2, 3, new])))


def test_write_of_a_replica_that_met_a_full_disk_does_not_outlive_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        node = cluster.nodes[1]
        disk, group = node.disk, node.groups[1]
        assert isinstance(disk, DiskLoop)
        write = Message(MessageKind.STORAGE_APPEND, group.raft.id)
        disk.write(group, write)
        pending = disk._pending.pop(1)
        pending.full = DiskFull("full")
        disk._postpone(pending)
        disk.forget(group)
        disk.write(group, write)
        assert disk._pending[1] is not pending
        await trio.sleep(2)
        assert 1 not in disk._postponed

    in_cluster(scenario)


def test_who_waits_for_a_replica_that_is_retired_is_told() -> None:
    heard: list[ErrorReply] = []

    class Told:
        def done(self, results: object) -> None:
            raise AssertionError("it is never written")

        def failed(self, error: ErrorReply) -> None:
            heard.append(error)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        group: Group = cluster.nodes[1].groups[1]
        group.propose(1, b"", Told())
        group.retire()
        assert [error.code for error in heard] == ["not_leader"]

    in_cluster(scenario)


@pytest.mark.parametrize("calls", range(12))
def test_next_self_that_crashes_while_it_opens_its_log_is_not_met_as_its_former_self(
    calls: int,
) -> None:
    """Nodes 1 and 3 have acknowledged messages, and 3 loses its log, the one permanent failure. It
    crashes after some calls of its disk for the new log; then it votes with node 2 alone."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.wait_led(1)
        await trio.sleep(2)
        catalog = cluster.nodes[1].catalog
        queue = next(q for q in range(QUEUE, QUEUE + 3) if catalog.group_of(q) == 1)
        cluster.kill(2)
        await cluster.wait_until(lambda: cluster.leader(1) in (1, 3))
        async with cluster.client(cluster.leader(1)) as client:
            for number in range(5):
                await client.produce(queue, [b"%d" % number], number)
        await trio.sleep(2)
        cluster.kill(3)
        lose(cluster.files[3], 1, how="empty")
        seen: list[str] = []

        def crash(node: int, call: str) -> None:
            if node == 3 and ("groups/00001" in call or "node.json" in call):
                seen.append(call)
                if len(seen) > calls:
                    raise PowerLoss(call)

        cluster.disk_listeners.append(crash)
        cluster.start_soon(3)
        await cluster.wait_until(lambda: len(seen) > calls and 3 not in cluster.processes, 60)
        cluster.disk_listeners.remove(crash)
        cluster.kill(1)
        await cluster.start(3, 2)
        await trio.sleep(20)
        await cluster.start(1)
        await cluster.wait_until(lambda: cluster.leader(1) != 0, 120)
        await trio.sleep(20)
        async with cluster.client(cluster.leader(1)) as client:
            read = await client.read(queue, 0)
        assert [body for _, batch in read for body in batch.bodies] == [b"%d" % n for n in range(5)]

    in_cluster(scenario, size=3)
