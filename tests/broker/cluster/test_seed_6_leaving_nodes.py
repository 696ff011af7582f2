"""Found by the simulation, seeds 6 and 24: nodes that leave while a group cannot move at once."""

import pytest
import trio

from raftmq.broker.cluster.reconfiguration import is_unused
from raftmq.broker.cluster.views import ask_all
from raftmq.broker.node import Node
from raftmq.wire.messages import ClusterView, GroupView
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import in_cluster


def test_leader_that_leaves_learns_of_the_catalog_until_its_groups_have_moved() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.start(4)
        await cluster.wait_until(lambda: all(4 in cluster.members(group) for group in (1, 2)))
        assert cluster.has_joined(4)
        leaver = cluster.leader(3)
        # The member that group 3 is to get instead hears nothing: the group cannot move yet.
        for source in ("node1", "node2", "node3"):
            cluster.network.block(source, "node4")
        await cluster.change("remove", leaver)
        await cluster.wait_until(lambda: cluster.nodes[leaver].catalog.nodes[leaver].is_leaving)
        # The wanted members change again, which the leaver must hear of as well.
        await cluster.change("add", 5, host="node5", port=7400)
        await cluster.start(5)
        await cluster.change("remove", 4)
        await cluster.wait_until(lambda: cluster.leader(0) not in (0, leaver), seconds=10)
        for source in ("node1", "node2", "node3"):
            cluster.network.unblock(source, "node4")
        await cluster.wait_until(
            lambda: {leaver, 4}.isdisjoint(cluster.nodes[cluster.leader(0)].catalog.nodes)
        )
        assert all(leaver not in cluster.members(group) for group in (0, 1, 2, 3))

    in_cluster(scenario)


def test_node_that_leaves_a_second_time_leaves_the_system_group_after_its_data_groups() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await _join(cluster, 4)
        await cluster.change("remove", 4)
        await cluster.wait_until(lambda: 4 not in cluster.nodes[cluster.leader(0)].catalog.nodes)
        carried = await _join(cluster, 4)
        _hold(cluster, carried)
        await cluster.change("remove", 4)
        await trio.sleep(10)
        assert 4 in cluster.members(carried)
        assert cluster.has_joined(4)

    in_cluster(scenario)


def test_node_that_leaves_a_second_time_is_not_judged_by_answers_about_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers come up to a second after they were asked for."""
    asked, comes = trio.Event(), trio.Event()

    async def ask_slowly(node: Node) -> dict[int, ClusterView]:
        views = await ask_all(node)
        if not asked.is_set() and is_unused(4, views, is_data=True):
            asked.set()
            await comes.wait()
        return views

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await _join(cluster, 4)
        monkeypatch.setattr("raftmq.broker.leader_tasks.ask_all", ask_slowly)
        await cluster.change("remove", 4)
        await asked.wait()
        carried = await _join(cluster, 4)
        _hold(cluster, carried)
        await cluster.change("remove", 4)
        leader = cluster.nodes[cluster.leader(0)]
        await cluster.wait_until(lambda: leader.catalog.nodes[4].is_leaving)
        comes.set()
        await trio.sleep(10)
        assert 4 in cluster.members(carried)
        assert cluster.has_joined(4)
        assert 4 in leader.catalog.nodes

    in_cluster(scenario)


def _hold(cluster: Cluster, group: int) -> None:
    """The member that a group is to get in place of node 4 hears nothing: it cannot move yet."""
    (instead,) = {1, 2, 3} - cluster.members(group)
    for source in {1, 2, 3, 4} - {instead}:
        cluster.network.block(f"node{source}", f"node{instead}")


async def _join(cluster: Cluster, node: int) -> int:
    """A node joins; a data group that it then carries."""
    await cluster.change("add", node, host=f"node{node}", port=7400)
    if node not in cluster.nodes:
        await cluster.start(node)
    await cluster.wait_until(lambda: cluster.has_joined(node))
    groups = cluster.nodes[cluster.leader(0)].catalog.groups.values()
    carried = [group.id for group in groups if group.id and node in group.members]
    await cluster.wait_until(lambda: all(node in cluster.members(number) for number in carried))
    return carried[0]


def test_changes_that_are_asked_for_at_once_do_not_undo_each_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)

        async def add(node: int) -> None:
            is_done = False
            while not is_done:
                try:
                    await cluster.change("add", node, host=f"node{node}", port=7400)
                    is_done = True
                except Refused:
                    await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            for node in (4, 5, 6):
                nursery.start_soon(add, node)
        catalog = cluster.nodes[cluster.leader(0)].catalog
        assert sorted(catalog.groups[0].members) == [1, 2, 3, 4, 5, 6]

    in_cluster(scenario)


def test_node_in_the_place_of_one_that_leaves_already_belongs_to_the_system_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.change("remove", 1)
        await cluster.change("replace", 1, new=5, host="node5", port=7400)
        catalog = cluster.nodes[cluster.leader(0)].catalog
        assert sorted(catalog.groups[0].members) == [2, 3, 4, 5]

    in_cluster(scenario)


def view(*groups: GroupView) -> ClusterView:
    return ClusterView("test", 1, [], list(groups), [])


def test_leader_says_who_its_members_are_whatever_a_removed_node_believes() -> None:
    views = {
        1: view(GroupView(1, 1, 4, [1, 2], [], members=[1, 2])),
        2: view(GroupView(1, 1, 4, [1, 2], [], members=[1, 2])),
        3: view(GroupView(1, 1, 4, [1, 2, 3], [], members=[1, 2, 3])),
    }
    assert is_unused(3, views)
    assert not is_unused(2, views)
    assert not is_unused(3, {3: views[3]}), "the leader has not said anything"
    # It was removed a moment ago, and may have to vote for the others again.
    told = view(GroupView(1, 1, 4, [1, 2], [], members=[1, 2, 3]))
    assert not is_unused(3, views | {1: told})
    assert not is_unused(3, views | {2: told})
