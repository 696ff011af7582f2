"""Few nodes of a large cluster vote in the system group; the others learn."""

import pytest
import trio

from raftmq.broker.replica.group import node_of
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import FIRST_LEVEL, LEARNERS_LEVEL
from raftmq.machine.catalog.replicas import member_id
from raftmq.machine.catalog.state import CatalogState, Group
from tests.broker.harness import Cluster
from tests.broker.replica.test_removed_learners import place
from tests.broker.replica.test_replicas import lose
from tests.broker.scenario import QUEUE, bodies, in_cluster


def learners(cluster: Cluster) -> set[int]:
    """The nodes that learn in the system group, by its leader."""
    leader = cluster.leader(SYSTEM_GROUP)
    conf = cluster.nodes[leader].groups[SYSTEM_GROUP].conf_state if leader else None
    return set(map(node_of, conf.learners)) if conf is not None else set()


async def wait_for(cluster: Cluster, voting: set[int], learning: set[int]) -> None:
    def is_there() -> bool:
        return cluster.members(SYSTEM_GROUP) == voting and learners(cluster) == learning

    await cluster.wait_until(is_there, 120)


async def wait_for_member(cluster: Cluster, member: int) -> None:
    """Wait until a returning node's new member has the role of the old one, among seven."""
    await cluster.wait_until(
        lambda: (
            cluster.leader(SYSTEM_GROUP) != 0
            and member in cluster.nodes[cluster.leader(SYSTEM_GROUP)].groups[SYSTEM_GROUP].members
        ),
        120,
    )
    await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})


async def send(cluster: Cluster, number: int) -> None:
    async with cluster.client(cluster.leader_of(QUEUE)) as client:
        await client.produce(QUEUE, [b"%d" % number], number)


@pytest.mark.parametrize(
    ("size", "voters"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (6, 5), (25, 5)]
)
def test_at_most_five_members_vote_and_never_four(size: int, voters: int) -> None:
    group, catalog = Group(SYSTEM_GROUP, list(range(size, 0, -1))), CatalogState()
    assert catalog.voters(group) == group.members
    catalog.raise_level(LEARNERS_LEVEL)
    assert sorted(catalog.voters(group)) == list(range(1, voters + 1))


def test_absent_members_vote_only_where_there_are_no_others() -> None:
    catalog = CatalogState()
    catalog.raise_level(LEARNERS_LEVEL)
    catalog.absent = {1, 4}
    assert catalog.voters(Group(SYSTEM_GROUP, [1, 2, 3, 4, 5, 6, 7])) == [2, 3, 5, 6, 7]
    assert catalog.voters(Group(SYSTEM_GROUP, [1, 2, 3, 4])) == [1, 2, 3]
    assert catalog.voters(Group(SYSTEM_GROUP, [1, 2, 3])) == [1, 2, 3]
    assert catalog.voters(Group(1, [4, 1, 2])) == [4, 1, 2]


def test_of_nine_founders_the_first_five_go_on_voting() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7, 8, 9})
        # Each node has the catalog, and any answers for it.
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            await client.admin("create_topic", "more", 1)
        await cluster.wait_until(
            lambda: all("more" in node.catalog.topics for node in cluster.nodes.values())
        )

    in_cluster(scenario, size=9)


def test_leader_that_shall_learn_hands_over_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.level_max = dict.fromkeys(range(1, 8), FIRST_LEVEL)
        await cluster.found("t", 3)
        await cluster.wait_until(lambda: cluster.leader(SYSTEM_GROUP) != 0)
        old = cluster.nodes[cluster.leader(SYSTEM_GROUP)].groups[SYSTEM_GROUP]
        if node_of(old.raft.id) != 7:
            old.transfer(7)
        await cluster.wait_until(lambda: cluster.leader(SYSTEM_GROUP) == 7)
        assert cluster.members(SYSTEM_GROUP) == set(range(1, 8))
        term = cluster.nodes[7].groups[SYSTEM_GROUP].raft.term
        cluster.level_max.clear()
        for number in range(1, 7):
            await cluster.stop(number)
            await cluster.start(number)
        # Node 7 still holds the level, and leads.
        assert cluster.leader(SYSTEM_GROUP) == 7
        await cluster.stop(7)
        await cluster.start(7)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        assert cluster.nodes[1].groups[SYSTEM_GROUP].raft.term > term

    in_cluster(scenario, size=7)


def test_next_node_votes_when_a_voter_leaves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        await cluster.change("remove", 2)
        await wait_for(cluster, {1, 3, 4, 5, 6}, {7})
        await cluster.wait_until(lambda: 2 not in cluster.nodes[1].catalog.nodes)
        await send(cluster, 0)

    in_cluster(scenario, size=7)


def test_node_that_learns_leaves_after_its_data_groups_have_moved() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 7)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        await place(cluster, 1, 2, 7)
        await cluster.wait_until(lambda: cluster.members(1) == {1, 2, 7})
        await cluster.change("remove", 7)
        await cluster.wait_until(lambda: 7 not in cluster.nodes[1].catalog.nodes, 120)
        assert 7 not in cluster.members(1)
        assert len(cluster.members(1)) == 3
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6})

    in_cluster(scenario, size=7)


def test_catalog_is_changed_with_all_learners_and_two_voters_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7, 8, 9})
        for number in (4, 5, 6, 7, 8, 9):
            cluster.kill(number)
        await cluster.wait_until(lambda: cluster.leader(SYSTEM_GROUP) != 0)
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            await client.admin("create_topic", "more", 1)
        assert "more" in cluster.nodes[cluster.leader(SYSTEM_GROUP)].catalog.topics

    in_cluster(scenario, size=9)


@pytest.mark.parametrize("lost", [2, 7])
def test_node_that_lost_its_disk_takes_its_part_again(lost: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        await send(cluster, 0)
        cluster.kill(lost, power=True)
        cluster.wipe(lost)
        await cluster.start(lost)
        await wait_for_member(cluster, member_id(lost, 1))
        assert await bodies(cluster, QUEUE) == [b"0"]

    in_cluster(scenario, size=7)


@pytest.mark.parametrize("lost", [2, 7])
def test_node_that_lost_its_log_of_the_catalog_takes_its_part_again(lost: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        cluster.kill(lost)
        lose(cluster.files[lost], SYSTEM_GROUP, how="empty")
        await cluster.start(lost)
        await wait_for_member(cluster, member_id(lost, 0, 1))

    in_cluster(scenario, size=7)


def test_next_leader_finishes_the_change_to_five_voters() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.wait_until(
            lambda: any(
                node.groups[SYSTEM_GROUP].conf_state.learners_next
                or node.groups[SYSTEM_GROUP].conf_state.learners
                for node in cluster.nodes.values()
            )
        )
        leader = cluster.leader(SYSTEM_GROUP)
        cluster.kill(leader, power=True)
        await trio.sleep(5)
        await cluster.start(leader)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})

    in_cluster(scenario, size=7)


def test_next_healthy_node_votes_while_the_one_before_it_is_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7, 8, 9})
        for number in (1, 2, 6):
            cluster.kill(number)
        await trio.sleep(10)
        for number in (1, 2):
            await cluster.change("remove", number)
        await cluster.wait_until(lambda: cluster.members(SYSTEM_GROUP) == {2, 3, 4, 5, 7}, 120)
        # Five of the seven that stay are up.
        cluster.kill(3)
        await cluster.wait_led(SYSTEM_GROUP)
        await cluster.start(6, 3)
        await cluster.wait_until(lambda: cluster.members(SYSTEM_GROUP) == {3, 4, 5, 6, 7}, 120)

    in_cluster(scenario, size=9)


def test_node_that_was_added_and_never_started_holds_up_no_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await wait_for(cluster, {1, 2, 3, 4, 5}, {6, 7})
        await cluster.change("add", 8, host="node8", port=7400)
        cluster.kill(2)
        await cluster.change("remove", 2)
        await cluster.wait_until(lambda: cluster.members(SYSTEM_GROUP) == {1, 3, 4, 5, 6}, 120)
        await cluster.start(8)
        await wait_for(cluster, {1, 3, 4, 5, 6}, {7, 8})

    in_cluster(scenario, size=7)
