"""A learner that was removed hears nothing of it, and believes in its last leader for ever."""

from typing import Any

import msgspec
import pytest
import trio

from raftmq.broker.cluster.views import ask_all
from raftmq.broker.replica import removal
from raftmq.broker.replica.removal import has_left, has_taken_in
from raftmq.broker.tickets import Callback
from raftmq.consensus import ConfState
from raftmq.consensus.messages import Message, MessageKind
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import PutGroup
from raftmq.machine.catalog.replicas import RetireReplica, member_id, member_of
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import ClusterView, GroupView
from tests.broker.cluster.test_reconfiguration import log_files
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster


async def place(cluster: Cluster, *members: int, group: int = 1) -> None:
    """Let the catalog place a group on these nodes."""
    await cluster.wait_led(0)
    leader = cluster.nodes[cluster.leader(0)]
    placed = msgspec.structs.replace(leader.catalog.groups[group], members=list(members))
    done = trio.Event()
    ticket = Callback(lambda _: done.set(), lambda _: None)
    leader.groups[0].propose(Kind.COMMANDS, encode_commands([PutGroup(placed)]), ticket)
    await done.wait()


async def learns_in_vain(cluster: Cluster, *members: int) -> None:
    """Node 4 learns, waits for node 5, which is down, and is removed before both may vote."""
    cluster.kill(5)
    await place(cluster, *members, 4, 5)
    await cluster.wait_until(lambda: 1 in cluster.nodes[4].groups)
    await trio.sleep(10)
    assert cluster.members(1) == set(members)
    await place(cluster, *members)
    await trio.sleep(5)


def test_learner_that_was_removed_deletes_its_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await learns_in_vain(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: log_files(cluster, 4, 1) == [])
        assert 1 not in cluster.nodes[4].groups

    in_cluster(scenario, size=5)


def test_voter_keeps_its_log_though_a_learner_of_old_believes_in_an_old_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1)
        await cluster.wait_until(lambda: cluster.members(1) == {1})
        await trio.sleep(40)
        await learns_in_vain(cluster, 1)
        await place(cluster, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {2, 3})
        await trio.sleep(1)
        cluster.kill(1, power=True)
        await cluster.wait_led(0, 1)
        # Node 3 votes until node 5 can take its place.
        await place(cluster, 2, 5)
        await trio.sleep(30)
        cluster.kill(2, power=True)
        await cluster.start(1)
        await trio.sleep(60)
        assert log_files(cluster, 3, 1)
        await cluster.start(2, 5)
        await cluster.wait_until(lambda: cluster.members(1) == {2, 5})

    in_cluster(scenario, size=5)


def test_node_that_is_removed_and_added_again_carries_its_groups_again() -> None:
    """Its former selves still run, in the leader's term, and count themselves as members."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.change("remove", 3)
        await trio.sleep(60)
        await cluster.change("add", 3, host="node3", port=7400)
        await cluster.wait_until(lambda: all(3 in cluster.members(group) for group in (1, 2, 3)))

    in_cluster(scenario)


def test_group_that_moves_away_from_two_nodes_moves_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1)
        catalog = cluster.nodes[1].catalog
        await cluster.wait_until(lambda: {2, 3} <= catalog.groups[1].replicas.keys())
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})

    in_cluster(scenario)


def view(leader: int, term: int, voters: list[int], *learners: int) -> ClusterView:
    """One node's view of partition group 7."""
    members = sorted({*voters, *learners})
    return ClusterView(
        "c", 1, [], [GroupView(7, leader, term, voters, [*learners], [], members)], []
    )


def test_only_the_leader_itself_is_believed_to_lead() -> None:
    learner = view(1, 2, [1], 4, 5)
    assert not has_left(3, 7, {1: view(0, 2, [2, 3]), 4: learner, 3: view(0, 3, [2, 3])})
    # Node 4 counts on the replica, and names no leader.
    assert not has_left(3, 7, {2: view(1, 2, [1, 2, 4]), 4: view(0, 2, [1, 2, 3])})
    # A removed member has no say, neither for nor against.
    moved = {node: view(1, 2, [1, 2, 5]) for node in (1, 2, 5)}
    assert has_left(3, 7, moved | {4: view(1, 2, [1, 2, 3], 4)})


def test_former_self_of_a_member_has_no_say() -> None:
    again = member_id(3, 0, 1)
    now = ClusterView("c", 1, [], [GroupView(7, 1, 2, [1, 2], [3], [], [1, 2, again])], [])
    views = {1: now, 2: now, 3: view(0, 2, [1, 2, 3])}
    assert has_taken_in(again, 7, views)
    assert has_left(3, 7, views)


def test_log_stays_if_a_leader_is_heard_while_the_others_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later leader may have added the member again: the answers are out of date."""
    terms: list[int] = []
    """Of the replica, each time it might have been deleted."""

    async def ask_all_and_hear(node: Any) -> dict[int, ClusterView]:
        found = await ask_all(node)
        if node.id == 3 and member_of(node.catalog, 1, 3) > member_id(3, 0):
            replica = node.groups[1].raft
            terms.append(replica.term)
            if len(terms) == 1:
                heartbeat = Message(MessageKind.HEARTBEAT, replica.id, 2, replica.term + 1)
                node.groups[1].step(heartbeat)
        return found

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await place(cluster, 1, 2, 3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 3})
        await place(cluster, 1, 2, 4)
        await cluster.wait_until(lambda: log_files(cluster, 3, 1) == [])
        assert terms == [terms[0], terms[0] + 1]

    monkeypatch.setattr(removal, "ask_all", ask_all_and_hear)
    in_cluster(scenario, size=5)


async def votes_on_unwanted(cluster: Cluster) -> None:
    """Node 5 votes in group 1, and is to leave it for node 4, which is down."""
    await cluster.found("t", 3)
    await place(cluster, 1, 5)
    await cluster.wait_until(lambda: cluster.members(1) == {1, 5})
    cluster.kill(4)
    await place(cluster, 1, 4)
    await trio.sleep(2)
    assert cluster.members(1) == {1, 5}


def test_request_to_use_up_an_id_that_comes_late_is_refused() -> None:
    """It made sense when it was sent, before the member was added again."""

    async def scenario(cluster: Cluster) -> None:
        await votes_on_unwanted(cluster)
        assert await cluster.nodes[5].removal.retire(1, member_id(5, 0)) == 0
        assert cluster.nodes[1].catalog.groups[1].replicas.get(5, 0) == 0

    in_cluster(scenario, size=5)


def test_voter_whose_id_was_used_up_stands_for_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is whole. It is deleted after the group has moved away; then comes the next self."""

    async def scenario(cluster: Cluster) -> None:
        def retire(removing: Any, group: Any) -> None:
            assert group.raft.id not in cluster.nodes[1].groups[1].conf_state.voters
            retire_one(removing, group)

        retire_one = removal.ReplicaRemoval._retire
        monkeypatch.setattr(removal.ReplicaRemoval, "_retire", retire)
        await votes_on_unwanted(cluster)
        system = cluster.nodes[cluster.leader(0)].groups[0]
        payload = encode_commands([RetireReplica(1, member_id(5, 0))])
        system.propose(Kind.COMMANDS, payload, Callback(lambda _: None, lambda _: None))
        await cluster.wait_until(lambda: cluster.nodes[1].catalog.groups[1].replicas.get(5, 0) == 1)
        await place(cluster, 1, 5)
        await trio.sleep(30)
        assert cluster.nodes[1].groups[1].conf_state == ConfState((1, 5))
        await place(cluster, 5, 2)
        await cluster.wait_until(lambda: cluster.members(1) == {2, 5})
        await place(cluster, 2, 1)
        await cluster.wait_until(lambda: log_files(cluster, 5, 1) == [])
        await place(cluster, 2, 5)
        again = member_id(5, 0, 1)
        await cluster.wait_until(lambda: again in cluster.nodes[2].groups[1].conf_state.voters)
        assert cluster.members(1) == {2, 5}

    in_cluster(scenario, size=5)
