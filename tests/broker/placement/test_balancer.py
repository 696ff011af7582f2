"""The system group's leader replaces nodes that stay silent, and evens out what nodes lead."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from raftmq.broker.placement.balancer import LEADERS_MAX
from raftmq.broker.settings import Balance, NodeSettings, Raft, Settings
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from tests.broker.harness import Cluster
from tests.broker.replica.test_removed_learners import place
from tests.broker.scenario import QUEUE, bodies, in_cluster

ABSENT_SECONDS = 20.0
SECONDS_MAX = 120.0

Scenario = Callable[[Cluster], Awaitable[None]]


def with_absences(scenario: Scenario, *, size: int = 5) -> None:
    async def begin(cluster: Cluster) -> None:
        cluster.balance = Balance(absent_ms=int(1000 * ABSENT_SECONDS))
        await cluster.found("t", size)
        await cluster.wait_until(lambda: cluster.leader(SYSTEM_GROUP) != 0)
        await scenario(cluster)

    in_cluster(begin, size=size)


def absent(cluster: Cluster) -> set[int]:
    return cluster.nodes[cluster.leader(SYSTEM_GROUP) or min(cluster.nodes)].catalog.absent


def carries(cluster: Cluster, node: int) -> list[int]:
    """The data groups that a node counts in, by their leaders."""
    groups = cluster.nodes[min(cluster.nodes)].catalog.groups
    return [number for number in groups if number and node in cluster.members(number)]


async def wait_replaced(cluster: Cluster, node: int) -> None:
    await cluster.wait_until(lambda: not carries(cluster, node), SECONDS_MAX)
    groups = cluster.nodes[min(cluster.nodes)].catalog.groups
    assert all(len(cluster.members(number)) == 3 for number in groups if number)


async def send(cluster: Cluster, count: int) -> None:
    async with cluster.client(cluster.leader_of(QUEUE)) as client:
        for number in range(count):
            await client.produce(QUEUE, [b"%d" % number], number)


def test_copies_of_a_node_that_stays_dead_are_made_on_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        await send(cluster, 20)
        assert carries(cluster, 3)
        cluster.kill(3)
        await trio.sleep(ABSENT_SECONDS / 2)
        assert absent(cluster) == set()
        await wait_replaced(cluster, 3)
        assert absent(cluster) == {3}
        # A second loss takes nothing, as each group is whole again.
        await cluster.wait_until(lambda: bool(cluster.leader(SYSTEM_GROUP)))
        cluster.kill(2)
        await cluster.wait_until(lambda: cluster.leader_of(QUEUE) not in (0, 2), SECONDS_MAX)
        assert await bodies(cluster, QUEUE) == [b"%d" % number for number in range(20)]

    with_absences(scenario)


def test_a_node_that_comes_back_is_a_member_as_any_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.kill(5)
        await wait_replaced(cluster, 5)
        await cluster.start(5)
        await cluster.wait_until(lambda: absent(cluster) == set(), SECONDS_MAX)
        members = cluster.nodes[1].catalog.groups[1].members
        await place(cluster, 5, *members[1:])
        await cluster.wait_until(lambda: 5 in cluster.members(1), SECONDS_MAX)

    with_absences(scenario)


def test_another_node_votes_in_the_system_group_for_an_absent_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.wait_until(
            lambda: cluster.members(SYSTEM_GROUP) == {1, 2, 3, 4, 5}, SECONDS_MAX
        )
        cluster.kill(2)
        await cluster.wait_until(
            lambda: cluster.members(SYSTEM_GROUP) == {1, 3, 4, 5, 6}, SECONDS_MAX
        )
        await cluster.start(2)
        await cluster.wait_until(
            lambda: cluster.members(SYSTEM_GROUP) == {1, 2, 3, 4, 5}, SECONDS_MAX
        )

    with_absences(scenario, size=7)


def test_a_node_that_stands_still_is_absent_though_its_connections_are_open() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = next(n for n in cluster.nodes if n != cluster.leader(SYSTEM_GROUP))
        cluster.processes[node].freeze()
        await cluster.wait_until(lambda: absent(cluster) == {node}, SECONDS_MAX)
        cluster.processes[node].thaw()
        await cluster.wait_until(lambda: absent(cluster) == set(), SECONDS_MAX)

    with_absences(scenario)


def test_a_leader_that_stood_still_makes_no_other_node_absent() -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = cluster.leader(SYSTEM_GROUP)
        cluster.processes[leader].freeze()
        await trio.sleep(2 * ABSENT_SECONDS)
        cluster.processes[leader].thaw()
        await trio.sleep(ABSENT_SECONDS / 2)
        seen = {node: cluster.nodes[node].catalog.absent for node in cluster.nodes}
        # The others had another leader meanwhile, to which this node was silent.
        assert all(found <= {leader} for found in seen.values()), seen

    with_absences(scenario)


def test_half_of_the_nodes_are_never_absent() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.wait_until(
            lambda: cluster.members(SYSTEM_GROUP) == {1, 2, 3, 4, 5}, SECONDS_MAX
        )
        # The voters of the system group are up, and most nodes are not.
        for node in (5, 6, 7, 8, 9):
            cluster.kill(node)
        await trio.sleep(2 * ABSENT_SECONDS)
        assert absent(cluster) == set()
        await cluster.start(9)
        await cluster.wait_until(lambda: absent(cluster) == {5, 6, 7, 8}, SECONDS_MAX)

    with_absences(scenario, size=9)


def test_nodes_that_were_never_started_keep_no_dead_node_in_place() -> None:
    async def scenario(cluster: Cluster) -> None:
        for new in (6, 7, 8):
            await cluster.change("add", new, host=f"node{new}", port=7400)
        dead = next(node for node in (2, 3) if node != cluster.leader(SYSTEM_GROUP))
        cluster.kill(dead)
        await cluster.wait_until(lambda: absent(cluster) == {dead, 6, 7, 8}, SECONDS_MAX)
        await wait_replaced(cluster, dead)
        assert not any(carries(cluster, node) for node in (6, 7, 8))

    with_absences(scenario)


def test_a_drained_node_is_not_replaced() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
            await client.admin("drain_node", 4, True)
        cluster.kill(4)
        await trio.sleep(3 * ABSENT_SECONDS)
        assert absent(cluster) == set()

    with_absences(scenario)


def test_three_nodes_with_three_copies_wait_for_a_fourth() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.kill(3)
        await cluster.wait_until(lambda: absent(cluster) == {3}, SECONDS_MAX)
        await trio.sleep(ABSENT_SECONDS)
        assert carries(cluster, 3)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.start(4)
        await wait_replaced(cluster, 3)
        await cluster.wait_until(lambda: cluster.members(SYSTEM_GROUP) == {1, 2, 4}, SECONDS_MAX)

    with_absences(scenario, size=3)


def test_without_the_setting_nothing_moves() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 5)
        before = dict(cluster.nodes[1].catalog.groups)
        cluster.kill(3)
        await trio.sleep(200)
        assert absent(cluster) == set()
        assert cluster.nodes[1].catalog.groups == before

    in_cluster(scenario, size=5)


def test_leaderships_are_evened_out() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.balance = Balance(leaders_ms=30_000)
        await cluster.found("t", 3)
        members = {
            number: group.members for number, group in cluster.nodes[1].catalog.groups.items()
        }
        numbers = [number for number in members if number]
        for number in numbers:
            await place(cluster, 1, 2, 3, group=number)
        await cluster.wait_until(
            lambda: all(cluster.leader(number) == 1 for number in numbers), SECONDS_MAX
        )
        await cluster.wait_until(
            lambda: {cluster.leader(number) for number in numbers} == {1, 2, 3}, SECONDS_MAX
        )
        assert len(numbers) <= LEADERS_MAX
        settled = {n: g.members for n, g in cluster.nodes[1].catalog.groups.items()}
        await trio.sleep(300)
        assert {n: g.members for n, g in cluster.nodes[1].catalog.groups.items()} == settled

    in_cluster(scenario)


def test_an_absence_is_longer_than_an_election() -> None:
    own = NodeSettings(1, "c", "data", join=[])
    settings = Settings(own, Raft(), balance=Balance(absent_ms=1999))
    with pytest.raises(ValueError, match=r"balance\.absent_ms \(1999\) must be 0 or at least 2000"):
        settings.validate()
