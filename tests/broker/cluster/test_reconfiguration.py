"""Nodes come, go and are replaced while the cluster serves."""

from functools import partial
from os import urandom

import pytest
import trio

from raftmq.broker.replica.removal import has_left
from raftmq.chaos.world.disk import PowerLoss
from raftmq.consensus import Message, MessageKind
from raftmq.log.store import LogStore
from raftmq.wire.messages import ClusterView, FrameKind, GroupView, NodeStatus, Status
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, bodies, in_cluster

DATA_GROUPS = (1, 2, 3)


async def produce_everywhere(cluster: Cluster, first: int, count: int, rest: bytes = b"") -> None:
    """The next messages of one producer to each of three queues, wherever they are led: the number
    of each, and the rest."""
    for queue in range(QUEUE, QUEUE + 3):
        for n in range(first, first + count):
            while True:
                try:
                    async with cluster.client(cluster.leader_of(queue)) as client:
                        await client.produce(queue, [b"%d" % n + rest], n)
                    break
                except (Refused, OSError, trio.BrokenResourceError):
                    await trio.sleep(0.1)


async def check_everywhere(cluster: Cluster, count: int) -> None:
    for queue in range(QUEUE, QUEUE + 3):
        assert await bodies(cluster, queue) == [b"%d" % n for n in range(count)]


def linked(cluster: Cluster, node: int) -> list[int]:
    """The other nodes that keep a link to a node."""
    return [
        number
        for number, other in cluster.nodes.items()
        if number != node and other.links.get(node) is not None
    ]


def test_node_that_joins_takes_over_its_share_and_has_every_message() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 10)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.start(4)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        carried = [g for g in DATA_GROUPS if 4 in cluster.nodes[1].catalog.groups[g].members]
        assert len(carried) == 2
        for group in carried:
            await cluster.wait_until(partial(lambda group: 4 in cluster.members(group), group))
            assert len(cluster.members(group)) == 3
        await produce_everywhere(cluster, 10, 10)
        await trio.sleep(2)
        for group in carried:
            here = cluster.nodes[4].groups[group].machine
            there = cluster.nodes[cluster.leader(group)].groups[group].machine
            assert (here.applied, here.digest) == (there.applied, there.digest)
        await check_everywhere(cluster, 20)

    in_cluster(scenario)


def test_node_behind_a_slow_link_is_no_voter_before_it_holds_what_there_is() -> None:
    """Sixty records of 50 kB: a few records, and 8 s at 400 kB/s."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for number in range(60):
            async with cluster.client(cluster.leader_of(QUEUE)) as client:
                await client.produce(QUEUE, [urandom(50_000)], number)
        group = next(g for g in DATA_GROUPS if cluster.nodes[1].groups[g].machine.applied > 60)
        held = cluster.nodes[1].groups[group].cache.last_index()
        old = cluster.nodes[cluster.leader(group)]
        gone = next(n for n in (1, 2, 3) if n != old.id)
        for number in (1, 2, 3):
            cluster.network.link(f"node{number}", "node4").rate = 400_000
        await cluster.change("replace", gone, new=4, host="node4", port=7400)
        await cluster.start(4)
        await cluster.wait_until(lambda: 4 in cluster.members(group))
        assert cluster.nodes[4].groups[group].cache.last_index() >= held

    in_cluster(scenario)


def log_files(cluster: Cluster, node: int, group: int) -> list[str]:
    """The files left in the folder of a replica."""
    names = cluster.files[node].list(f"/data/groups/{group:05d}")
    return [name for name in names if name != "LOCK"]


async def move_one_away(cluster: Cluster) -> tuple[int, int]:
    """Let node 4 join; the (node, partition group) of a replica that moved to it."""
    await produce_everywhere(cluster, 0, 5)
    await cluster.change("add", 4, host="node4", port=7400)
    await cluster.start(4)
    await cluster.wait_until(lambda: cluster.has_joined(4))
    for group in DATA_GROUPS:
        members = cluster.nodes[1].catalog.groups[group].members
        if 4 in members:
            return next(node for node in (1, 2, 3) if node not in members), group
    raise AssertionError("nothing moved")


def test_replica_that_moved_away_is_deleted_and_can_come_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        old, group = await move_one_away(cluster)
        assert log_files(cluster, old, group)
        await cluster.wait_until(lambda: group not in cluster.nodes[old].groups)
        assert old not in cluster.members(group)
        await cluster.wait_until(lambda: log_files(cluster, old, group) == [])
        await produce_everywhere(cluster, 5, 5)
        # A restart does not bring it back.
        cluster.kill(old, power=True)
        await cluster.start(old)
        await trio.sleep(5)
        assert group not in cluster.nodes[old].groups
        await check_everywhere(cluster, 10)
        # Node 4 leaves: its replicas go to the node that has no copy, by a snapshot.
        await cluster.change("remove", 4)
        await cluster.wait_until(lambda: old in cluster.members(group))
        await cluster.wait_until(lambda: 4 not in cluster.nodes[1].catalog.nodes)
        await trio.sleep(5)
        here = cluster.nodes[old].groups[group].machine
        there = cluster.nodes[cluster.leader(group)].groups[group].machine
        assert (here.applied, here.digest) == (there.applied, there.digest)
        await check_everywhere(cluster, 10)

    for seed in range(2):
        in_cluster(scenario, seed=seed)


def test_replica_that_knows_a_term_in_which_nobody_leads_is_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        replica = cluster.nodes[3].groups[1]
        links = [(f"node{a}", f"node{b}") for n in (1, 2) for a, b in ((n, 3), (3, n))]
        for link in links:
            cluster.network.block(*link)
        await cluster.wait_until(lambda: not replica.leader)
        # A candidate of a term that no other node ever hears of, however often leaders change.
        replica.step(
            Message(MessageKind.VOTE, replica.raft.id, 2, term=99, index=10**6, log_term=99)
        )
        await trio.sleep(0.5)
        cluster.kill(3)
        assert await move_one_away(cluster) == (3, 1)
        await cluster.wait_until(lambda: 3 not in cluster.members(1))
        for link in links:
            cluster.network.unblock(*link)
        await cluster.start(3)
        assert cluster.nodes[3].groups[1].raft.term == 99
        await cluster.wait_until(lambda: log_files(cluster, 3, 1) == [])
        assert 1 not in cluster.nodes[3].groups
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6, 7, 8])
def test_crash_while_a_replica_is_deleted_leaves_nothing_that_looks_damaged(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        old, group = await move_one_away(cluster)
        opener, files = cluster.nodes[old]._opener, cluster.files[old]
        discard = opener.discard

        def crash_in_it(number: int, store: LogStore) -> None:
            files.crash_at(call)
            try:
                discard(number, store)
            except PowerLoss:
                cluster.kill(old, power=True)

        monkeypatch.setattr(opener, "discard", crash_in_it)
        await cluster.wait_until(lambda: old not in cluster.nodes)
        await cluster.start(old)
        assert cluster.stopped == {}
        await cluster.wait_until(lambda: group not in cluster.nodes[old].groups)
        await cluster.wait_until(lambda: log_files(cluster, old, group) == [])
        await cluster.wait_led(0, *DATA_GROUPS)
        await trio.sleep(1)
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


def test_node_that_is_removed_hands_over_and_the_rest_serves_without_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await cluster.change("remove", 3)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {1, 2} for group in (0, *DATA_GROUPS))
        )
        await cluster.wait_until(lambda: sorted(cluster.nodes[1].catalog.nodes) == [1, 2])
        # Its own catalog says that it leaves, so it need not wait to be unwanted to ask.
        for node in (1, 2, 3):
            removal = cluster.nodes[node].removal
            assert (removal.is_leaving, removal.is_removed) == (node == 3, False)
        await cluster.wait_until(lambda: not linked(cluster, 3))
        # Node 3 goes on knocking; no node links back, and its requests cost no record.
        await trio.sleep(30)
        assert not linked(cluster, 3)
        committed = cluster.nodes[1].catalog.applied
        await trio.sleep(60)
        assert cluster.nodes[1].catalog.applied - committed < 3
        assert [cluster.nodes[n].removal.is_removed for n in (1, 2, 3)] == [False, False, True]
        with pytest.raises(Refused) as caught:
            await cluster.change("remove", 3)
        assert caught.value.reply.message == "node 3 has left; the members are nodes 1, 2"
        cluster.kill(3)
        await produce_everywhere(cluster, 5, 5)
        await check_everywhere(cluster, 10)
        # The settings of a founder still name it.
        cluster.kill(1)
        await cluster.start(1)
        await cluster.wait_until(lambda: not linked(cluster, 3))
        await cluster.wait_led(0, *DATA_GROUPS)
        await produce_everywhere(cluster, 10, 1)

    in_cluster(scenario)


def test_removal_that_the_catalog_refuses_does_not_fill_the_log() -> None:
    """A leaving node is a wanted member of groups that it never joined: so says the catalog after
    these commands of an administrator."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await cluster.change("add", 2, host="nowhere", port=1)
        await trio.sleep(1)
        await cluster.change("remove", 1)
        async with cluster.client(1) as client:
            await client.admin("put_node", [2, "nowhere", 1, True])
        log = cluster.nodes[1].groups[0].raft
        before = log.status().last_index
        await trio.sleep(60)
        assert log.status().last_index - before < 20

    in_cluster(scenario, size=1)


def test_node_takes_the_place_of_another_under_load() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await cluster.start(4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce_everywhere, cluster, 5, 40)
            await cluster.change("replace", 1, new=4, host="node4", port=7400)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {2, 3, 4} for group in (0, *DATA_GROUPS))
        )
        await cluster.wait_until(lambda: sorted(cluster.nodes[2].catalog.nodes) == [2, 3, 4])
        cluster.kill(1)
        await cluster.wait_led(0, *DATA_GROUPS)
        await check_everywhere(cluster, 45)

    for seed in range(3):
        in_cluster(scenario, seed=seed)


def test_node_that_lost_its_disk_is_replaced_under_a_new_number() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        cluster.kill(2)
        await cluster.wait_led(0, *DATA_GROUPS)
        await cluster.start(4)
        await cluster.change("replace", 2, new=4, host="node4", port=7400)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {1, 3, 4} for group in (0, *DATA_GROUPS))
        )
        await produce_everywhere(cluster, 5, 5)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


def test_groups_that_a_removal_left_with_two_copies_get_a_third_from_a_node_that_joins() -> None:
    """Three copies mean that any one node may die."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        await cluster.change("remove", 3)
        await cluster.wait_until(lambda: sorted(cluster.nodes[1].catalog.nodes) == [1, 2])
        async with cluster.client(1) as client:
            groups = (await client.view()).groups
        assert [(group.copies, len(group.voters)) for group in groups] == [(0, 2)] + [(3, 2)] * 3
        cluster.kill(3)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.start(4)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {1, 2, 4} for group in (0, *DATA_GROUPS))
        )
        # The catalog's newest record reaches node 4, and memberships that were joint are over.
        await trio.sleep(5)
        cluster.kill(1)
        await cluster.wait_led(0, *DATA_GROUPS)
        await produce_everywhere(cluster, 5, 5)
        await check_everywhere(cluster, 10)

    in_cluster(scenario)


def test_refused_replacement_by_a_running_member_leaves_all_as_it_was() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        async with cluster.client(cluster.leader(0)) as client:
            before = await client.view()
        with pytest.raises(Refused) as caught:
            await cluster.change("replace", 1, new=2, host="127.0.0.1", port=7613)
        told = "node 2 is a member, at node2:7400: give another number"
        assert caught.value.reply.message == told
        async with cluster.client(cluster.leader(0)) as client:
            assert (await client.view()).nodes == before.nodes
        await trio.sleep(10)
        assert sorted(linked(cluster, 2)) == [1, 3]
        await produce_everywhere(cluster, 0, 5)

    in_cluster(scenario)


def test_node_that_is_leaving_is_shown_so_and_stays_if_it_is_added_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await produce_everywhere(cluster, 0, 5)
        leaver = next(n for n in (1, 2, 3) if n != cluster.leader(0))
        await cluster.change("remove", leaver)
        async with cluster.client(cluster.leader(0)) as client:
            leaving = [node.id for node in (await client.view()).nodes if node.is_leaving]
        assert leaving == [leaver]
        await cluster.change("add", leaver, host=f"node{leaver}", port=7400)
        await cluster.wait_until(
            lambda: all(cluster.members(group) == {1, 2, 3} for group in (0, *DATA_GROUPS))
        )
        async with cluster.client(cluster.leader(0)) as client:
            assert not [node.id for node in (await client.view()).nodes if node.is_leaving]
        await trio.sleep(30)
        assert all(cluster.members(group) == {1, 2, 3} for group in (0, *DATA_GROUPS))
        await check_everywhere(cluster, 5)

    in_cluster(scenario)


@pytest.mark.parametrize(
    ("action", "node", "more", "code"),
    [
        ("promote", 1, {}, "bad_argument"),
        ("add", 4, {}, "bad_argument"),
        ("remove", 9, {}, "unknown_node"),
        ("replace", 1, {"host": "x", "port": 1}, "bad_argument"),
        ("replace", 1, {"host": "x", "port": 1, "new": 1}, "bad_argument"),
    ],
)
def test_change_that_makes_no_sense_is_refused(
    action: str, node: int, more: dict[str, object], code: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        with pytest.raises(Refused) as caught:
            await cluster.change(action, node, **more)
        assert caught.value.reply.code == code
        if node == 9:
            members = "there is no node 9; the members are nodes 1, 2, 3"
            assert caught.value.reply.message == members
        async with cluster.client(1) as client:
            await client.ask(FrameKind.STATUS, Status(), NodeStatus)

    in_cluster(scenario)


def told(term: int, leader: int, members: list[int]) -> ClusterView:
    """One node's view of partition group 7."""
    return ClusterView("c", 1, [], [GroupView(7, leader, term, members, [], [], members)], [])


FOUNDED, MOVED = [1, 2, 3], [1, 2, 4]


@pytest.mark.parametrize(
    ("views", "has"),
    [
        ({1: told(3, 1, MOVED), 2: told(3, 1, MOVED)}, True),
        ({1: told(3, 1, FOUNDED), 2: told(3, 1, FOUNDED)}, False),
        # The leader alone, or together with a non-voter, may be an old one.
        ({1: told(3, 1, MOVED)}, False),
        ({1: told(3, 1, MOVED), 5: told(3, 1, MOVED)}, False),
        # A voter that is behind has not stored the change; a node without a replica proves nothing.
        ({1: told(3, 1, MOVED), 4: told(2, 3, FOUNDED)}, False),
        ({1: told(3, 1, MOVED), 4: told(0, 0, [])}, False),
        # A member of an older term may not know that it was added again.
        ({1: told(3, 1, MOVED), 2: told(4, 2, [2, 3, 4]), 4: told(4, 2, [2, 3, 4])}, False),
        ({1: told(4, 1, MOVED), 2: told(4, 1, FOUNDED)}, False),
        # There may be a later leader that no node names.
        ({1: told(3, 1, MOVED), 2: told(4, 0, MOVED)}, False),
        # The replica itself stood for election, was not heard, and was removed then.
        ({1: told(3, 1, MOVED), 2: told(3, 1, MOVED), 3: told(9, 0, FOUNDED)}, True),
        # No leader is known.
        ({1: told(3, 0, MOVED), 2: told(3, 0, MOVED)}, False),
        ({}, False),
    ],
)
def test_replica_has_left_when_most_voters_of_the_newest_leader_know_of_none_later(
    views: dict[int, ClusterView], has: bool
) -> None:
    assert has_left(3, 7, views) == has


def test_node_joins_though_most_of_the_nodes_it_was_told_of_are_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        for old, new in ((1, 4), (3, 5)):
            cluster.start_soon(new)
            await cluster.change("replace", old, new=new, host=f"node{new}", port=7400)
            await cluster.wait_until(
                partial(lambda old: old not in cluster.nodes[2].catalog.nodes, old)
            )
            cluster.kill(old)
        await produce_everywhere(cluster, 0, 5)
        # Its settings name nodes 1, 2 and 3, of which only 2 is left.
        cluster.start_soon(6)
        await cluster.change("add", 6, host="node6", port=7400)
        await cluster.wait_until(lambda: cluster.has_joined(6))
        # After the loss of its folder the node's own word is not enough.
        cluster.kill(6)
        cluster.wipe(6)
        await cluster.start(6)
        assert cluster.nodes[6].generation == 1

    in_cluster(scenario)


def test_node_that_joins_may_be_restarted_before_it_is_let_in() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        leader = cluster.leader(0)
        followers = [node for node in (1, 2, 3) if node != leader]
        await cluster.change("add", 4, host="node4", port=7400)
        for node in followers:
            cluster.kill(node)
        # The leader has lost its majority, so no node's answer counts.
        cluster.start_soon(4)
        await trio.sleep(2)
        assert not cluster.nodes[4].is_serving
        cluster.kill(4)
        cluster.start_soon(4)
        for node in followers:
            await cluster.start(node)
        await cluster.wait_until(lambda: cluster.has_joined(4))

    in_cluster(scenario)
