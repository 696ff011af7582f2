"""Members change only by recent answers: a member that is dead, hangs or lacks records is no voter
to count on, however long the leader's process stood still."""

from itertools import count, pairwise

import pytest
import trio

from raftmq.broker.cluster import member_changes, views
from raftmq.broker.node import Node
from raftmq.broker.settings import Log, Raft
from raftmq.broker.tickets import Callback, Ticket
from raftmq.consensus import Change, ProgressState
from raftmq.log.record import Kind
from raftmq.machine.catalog.replicas import RetireReplica, member_id
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import ClusterView, GroupView
from tests.broker.harness import Cluster, Refused
from tests.broker.replica.test_old_catalogs import lead
from tests.broker.replica.test_removed_learners import place
from tests.broker.replica.test_repair import abstaining, segment_path
from tests.broker.replica.test_space import RESERVE, shrink
from tests.broker.scenario import QUEUE, in_cluster

from .test_reconfiguration import produce_everywhere


async def one_group(cluster: Cluster, *members: int) -> None:
    """Group 1 has these members, the first one leads; the catalog is led by node 5."""
    await cluster.found("t", 3)
    await lead(cluster, 0, 5)
    for group in (2, 3):
        await place(cluster, 5, 2, 3, group=group)
    await place(cluster, *members)
    await cluster.wait_until(
        lambda: cluster.members(1) == set(members) and cluster.leader(1) == members[0]
    )
    await trio.sleep(8)


async def move(cluster: Cluster, *members: int) -> None:
    """Group 1 gets these members."""
    await place(cluster, *members)
    await cluster.wait_until(lambda: cluster.members(1) == set(members))


async def replace(cluster: Cluster, old: int, new: int) -> None:
    """Ask until the catalog's leader has heard from the new node."""
    while True:
        try:
            await cluster.change("replace", old, new=new, host=f"node{new}", port=7400)
            return
        except (Refused, OSError):
            await trio.sleep(0.1)


def lose_way_to_1(cluster: Cluster, node: int) -> None:
    """The node is reached by node 1, and cannot look node 1's name up."""
    cluster.network.lost_names["node1"] += 1
    for connection in list(cluster.network.connections):
        if connection.ends == (f"node{node}", "node1"):
            connection.reset()


def test_node_speaks_for_its_own_member_only() -> None:
    """A wrong answer must not have a dead node's voter counted."""
    again = member_id(3, 1)
    said = {1: 1, 2: 3, 3: again, 4: 0}
    views = {
        node: ClusterView("c", 1, [], [GroupView(7, 1, 2, [1, 2, 3], [], member=member)], [])
        for node, member in said.items()
    }
    assert member_changes.present_members(views) == {7: {1, again}}


@pytest.mark.parametrize("pause", [0, 60])
def test_leader_that_stood_still_does_not_count_on_a_voter_that_died_meanwhile(pause: int) -> None:
    """Else node 2 would be removed, and node 1 be left alone with a dead voter."""

    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await one_group(cluster, 1, 2, 3)
        cluster.processes[1].freeze()
        cluster.kill(3, power=True)
        await place(cluster, 1, 3)
        await trio.sleep(pause)
        cluster.processes[1].thaw()
        await trio.sleep(30)
        await cluster.wait_led(1)
        assert cluster.members(1) == {1, 2, 3}

    in_cluster(scenario, size=5)


def test_leader_of_the_catalog_that_stood_still_asks_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await cluster.found("t", 3)
        await lead(cluster, 0, 1)
        for group in (1, 2, 3):
            await place(cluster, 1, group=group)
        await trio.sleep(20)
        cluster.kill(3, power=True)
        await trio.sleep(0.05)
        await cluster.change("remove", 2)
        cluster.processes[1].freeze()
        await trio.sleep(20)
        cluster.processes[1].thaw()
        await trio.sleep(30)
        await cluster.wait_led(0)

    in_cluster(scenario)


def test_voter_that_abstains_is_none_to_count_on() -> None:
    """Its log was cut before rot, and its disk is full, so it can be filled later at the
    earliest."""

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        await produce_everywhere(cluster, 0, 20)
        await trio.sleep(8)
        cluster.kill(3)
        path = segment_path(1)
        cluster.files[3].flip(path, 8 * (len(cluster.files[3].bytes_of(path)) // 2))
        shrink(cluster, 3, left=RESERVE // 4)
        await cluster.start(3)
        await trio.sleep(5)
        assert 3 in abstaining(cluster, 1)
        await place(cluster, 1, 3)
        await trio.sleep(10)
        cluster.kill(1)
        await cluster.start(1)
        await trio.sleep(3)
        cluster.files[3].space = None
        await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 300)
        assert abstaining(cluster, 1) == []

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    in_cluster(scenario, size=5, log=log)


def test_leader_that_leaves_makes_the_change_itself_if_no_wanted_voter_is_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        cluster.kill(2)
        await trio.sleep(5)
        await place(cluster, 2, 4, 5)
        await cluster.wait_until(lambda: cluster.members(1) == {2, 4, 5}, 120)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)


def test_learner_that_hangs_becomes_no_voter() -> None:
    """The learner had caught up; the leader heard nothing of the catalog meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1)
        group = cluster.nodes[1].groups[1]

        def has_caught_up() -> bool:
            progress = group.raft.status().progress.get(4)
            if progress is None or progress.state is not ProgressState.REPLICATE:
                return False
            return progress.match == group.raft.last_index

        await trio.sleep(30)
        await place(cluster, 1, 4)
        await cluster.wait_until(has_caught_up)
        ways = (("node1", "node5"), ("node5", "node1"))
        for way in ways:
            cluster.network.block(*way)
        await trio.sleep(6)
        assert group.conf_state.learners == (4,)
        cluster.processes[4].freeze()
        await trio.sleep(120)
        for way in ways:
            cluster.network.unblock(*way)
        await trio.sleep(20)
        assert group.conf_state.voters == (1,)
        cluster.kill(4, power=True)
        cluster.wipe(4)
        cluster.start_soon(4)
        await cluster.wait_until(lambda: len(cluster.members(1)) == 2, 300)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)


def test_two_nodes_are_replaced_while_a_third_is_down() -> None:
    """Nothing but an operator's commands: the groups must not wait for the third."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await trio.sleep(6)
        cluster.kill(2)
        await trio.sleep(5)
        for old, new in ((1, 4), (3, 5)):
            cluster.start_soon(new)
            await replace(cluster, old, new)
        groups = range(4)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {2, 4, 5} for group in groups), 300
        )
        for group in groups:
            await cluster.wait_led(group)

    in_cluster(scenario)


def test_voter_whose_disk_has_no_room_for_records_is_none_to_count_on() -> None:
    """In a quiet group the voter lacks no record; without node 2 nothing could be committed."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await trio.sleep(8)
        shrink(cluster, 3, left=RESERVE // 4)
        await trio.sleep(40)
        await cluster.change("remove", 2)
        await trio.sleep(60)
        assert all(cluster.members(group) == {1, 2, 3} for group in range(4))
        with trio.fail_after(60):
            await produce_everywhere(cluster, 5, 1)

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    in_cluster(scenario, log=log)


def test_leader_that_leaves_makes_the_change_itself_if_all_wanted_voters_decline() -> None:
    """Node 2 votes and stores, and does not lead, as its disk is full."""

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        shrink(cluster, 2, left=RESERVE - 1)
        await trio.sleep(5)
        await place(cluster, 2, 4, 5)
        await cluster.wait_until(lambda: cluster.members(1) == {2, 4, 5}, 120)
        await cluster.wait_led(1)

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    in_cluster(scenario, size=5, log=log)


def test_rounds_are_paced_while_the_catalog_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    renew = views.renew_catalog

    async def counted(node: Node) -> bool:
        begun.append(trio.current_time())
        return await renew(node)

    monkeypatch.setattr(member_changes, "renew_catalog", counted)

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        cluster.kill(4)
        await place(cluster, 1, 2, 4)
        begun.clear()
        for _ in range(200):
            await place(cluster, 1, 2, 4)
            await trio.sleep(0.05)
        pauses = [later - earlier for earlier, later in pairwise(begun)]
        assert len(pauses) > 5
        assert min(pauses) >= member_changes.ROUND_PAUSE_SECONDS

    in_cluster(scenario, size=5)


async def use_up_the_id_of_voter_3(cluster: Cluster) -> None:
    """Use up the id of node 3's member in group 1, where it stays a voter."""
    retire = encode_commands([RetireReplica(1, 3, True)])
    ticket = Callback(lambda _: None, lambda _: None)
    cluster.nodes[5].groups[0].propose(Kind.COMMANDS, retire, ticket)
    await trio.sleep(5)


def test_voter_whose_id_was_used_up_gets_a_snapshot() -> None:
    """The voter stands for its node, so no next member comes; its missing records are gone from the
    log."""

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        await use_up_the_id_of_voter_3(cluster)
        cluster.kill(3)
        for number in range(80):
            await produce_everywhere(cluster, number, 1, bytes(20_000))
            await trio.sleep(0.5)
        await trio.sleep(20)
        leader = cluster.nodes[1].groups[1]
        assert leader.store.first_index > 5
        await cluster.start(3)
        await cluster.wait_until(
            lambda: cluster.nodes[3].groups[1].machine.applied == leader.machine.applied, 120
        )
        assert cluster.nodes[3].groups[1].raft.id == 3

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=0, retention_bytes=1 << 17)
    in_cluster(scenario, size=5, log=log)


def test_learner_that_no_node_needs_goes_before_the_voters_change() -> None:
    """Voter 3 came back to a group that had given its node another id, and node 2 is to leave. The
    learner with that id kept the snapshot from voter 3, and nothing but voter 3 could end that."""

    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        await use_up_the_id_of_voter_3(cluster)
        cluster.kill(3)
        for number in range(60):
            await produce_everywhere(cluster, number, 1, bytes(20_000))
            await trio.sleep(0.5)
        await trio.sleep(10)
        leader = cluster.nodes[1].groups[1]
        assert leader.conf_state.learners == (member_id(3, 0, 1),)
        assert leader.store.first_index > 5
        await place(cluster, 1, 3)
        await trio.sleep(5)
        await cluster.start(3)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 120)

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=0, retention_bytes=1 << 17)
    in_cluster(scenario, size=5, log=log)


def test_voter_whose_answers_do_not_arrive_is_none_to_count_on() -> None:
    """Node 3 is reached by node 1 and says that it is well, but cannot reach node 1."""

    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await one_group(cluster, 1, 2, 3)
        lose_way_to_1(cluster, 3)
        await trio.sleep(20)
        await place(cluster, 1, 3)
        await trio.sleep(60)
        assert cluster.members(1) == {1, 2, 3}
        await cluster.wait_led(1)
        cluster.network.lost_names["node1"] -= 1
        await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 120)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)


def test_joint_membership_ends_though_a_transfer_was_declined_meanwhile() -> None:
    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        # Node 3 stores and votes, and takes no leadership.
        shrink(cluster, 3, left=RESERVE - 1)
        await trio.sleep(40)
        group = cluster.nodes[1].groups[1]
        propose = group.change_members

        def propose_and_transfer(changes: list[Change], ticket: Ticket) -> None:
            propose(changes, ticket)
            if len(changes) > 1:
                assert group.transfer(3) is None

        group.change_members = propose_and_transfer  # type: ignore[method-assign]
        await place(cluster, 1, 4, 3)
        await cluster.wait_until(lambda: group.conf_state.voters == (1, 3, 4), 60)
        await cluster.wait_until(lambda: group.conf_state.voters_outgoing == (), 60)

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    in_cluster(scenario, size=5, log=log)


def test_leader_whose_disk_has_no_room_for_records_does_not_count_itself() -> None:
    async def scenario(cluster: Cluster) -> None:
        await one_group(cluster, 1, 2, 3)
        # Nodes 2 and 3 store and vote, and take no leadership.
        for node in (2, 3):
            shrink(cluster, node, left=RESERVE - 1)
        await trio.sleep(10)
        cluster.kill(3)
        await place(cluster, 1, 3)
        await trio.sleep(5)
        shrink(cluster, 1, left=RESERVE // 4)
        await trio.sleep(5)
        await cluster.start(3)
        await trio.sleep(60)
        assert cluster.members(1) == {1, 2, 3}

    log = Log(segment_bytes=1 << 16, cache_bytes=1 << 20, reserve_bytes=RESERVE)
    in_cluster(scenario, size=5, log=log)


def test_answers_to_the_roll_call_of_an_earlier_round_do_not_count() -> None:
    """Group 1 gets other members while a round runs for group 2: it has called no roll in it."""

    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await one_group(cluster, 1, 2, 3)
        await place(cluster, 1, 2, group=2)
        await cluster.wait_until(lambda: cluster.members(2) == {1, 2} and cluster.leader(2) == 1)
        await move(cluster, 1, 2, 3, 4)
        await move(cluster, 1, 2, 3)
        assert 3 in cluster.nodes[1].groups[1].raft.roll_call_answers
        lose_way_to_1(cluster, 3)
        await trio.sleep(30)
        cluster.processes[4].freeze()
        await place(cluster, 1, 2, 4, group=2)
        await trio.sleep(5)
        await place(cluster, 1, 3)
        await trio.sleep(30)
        assert cluster.members(1) == {1, 2, 3}
        await cluster.wait_led(1)
        cluster.processes[4].thaw()

    in_cluster(scenario, size=5)


def test_members_that_cannot_reach_each_other_are_not_left_to_themselves() -> None:
    """All members reach the leader that goes; one of them has to lead before it goes."""

    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await one_group(cluster, 1, 2, 3)
        await lead(cluster, 0, 2)
        cluster.network.block("node4", "node5")
        cluster.network.block("node5", "node4")
        await trio.sleep(10)
        await place(cluster, 4, 5)
        await trio.sleep(60)
        await cluster.wait_led(1)
        cluster.network.unblock("node4", "node5")
        cluster.network.unblock("node5", "node4")
        await cluster.wait_until(lambda: cluster.members(1) == {4, 5}, 120)
        await cluster.wait_led(1)

    in_cluster(scenario, size=5)


def test_voter_whose_answers_wait_behind_its_bulk_is_counted() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await one_group(cluster, 1, 2, 3)
        await place(cluster, 3, 1, group=2)
        await cluster.wait_until(lambda: cluster.members(2) == {1, 3} and cluster.leader(2) == 3)
        catalog = cluster.nodes[1].catalog
        queue = next(n for n in range(QUEUE, QUEUE + 3) if catalog.group_of(n) == 2)
        # Node 3's messages in flight to node 1 take 0.4 s.
        cluster.network.link("node3", "node1").rate = 1_000_000

        async def load(number: int) -> None:
            async with cluster.client(3) as client:
                for sequence in count():
                    await client.produce(queue, [bytes(100_000)], sequence, producer=number)

        async with trio.open_nursery() as nursery:
            for number in range(100, 104):
                nursery.start_soon(load, number)
            await trio.sleep(10)
            await place(cluster, 1, 3)
            await cluster.wait_until(lambda: cluster.members(1) == {1, 3}, 60)
            nursery.cancel_scope.cancel()

    in_cluster(scenario, size=5)
