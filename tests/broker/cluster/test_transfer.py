"""Leaderships that are moved by hand."""

from functools import partial

import pytest
import trio

from raftmq.broker.cluster.preference import prefer
from raftmq.broker.replica import group as group_module
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.world import run
from raftmq.cli.cluster.commands import _transfer
from raftmq.client import Client
from raftmq.machine.catalog.replicas import listed_members
from tests.broker.harness import Cluster
from tests.broker.replica.test_old_catalogs import lead
from tests.broker.replica.test_removed_learners import place
from tests.broker.scenario import in_cluster


def test_transfer_is_seen_though_the_node_with_the_routing_table_lacks_the_group() -> None:
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, seed=1, size=5)
            await cluster.found()
            clients = Clients(cluster, nursery, seed=1)
            await clients.once(transfer_each)
            assert not clients.failures, clients.failures
            leader = cluster.leader(0)
            lacking = [n for n in (1, 2, 3) if n not in cluster.nodes[leader].groups]
            assert lacking, "the system group's leader carries all groups: this shows nothing"
            nursery.cancel_scope.cancel()

    async def transfer_each(mq: Client, _: object) -> None:
        for group in (await mq.admin.cluster()).groups:
            if group.id:
                to = group.voters[1]
                assert await _transfer(mq, group.id, to) == to

    run(scenario, seed=1)


def test_node_remembers_the_latest_leaders_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "LEADERS_MAX", 3)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        system = {number: node.groups[0] for number, node in cluster.nodes.items()}

        def all_follow(leader: int) -> bool:
            return all(each.raft.leader == leader for each in system.values())

        for _ in range(5):
            leader = cluster.leader(0)
            heir = leader % 3 + 1
            system[leader].transfer(heir)
            await cluster.wait_until(partial(all_follow, heir))
            for each in system.values():
                assert each.leaders[each.raft.term] == heir
                assert len(each.leaders) <= 3
        assert max(len(each.leaders) for each in system.values()) == 3

    in_cluster(scenario)


def test_transfer_to_a_stranger_names_all_members_and_who_leads() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        leader = cluster.leader(0)
        refused = cluster.nodes[leader].groups[0].transfer(9)
        assert refused is not None
        members = ", ".join(f"{n} (leads)" if n == leader else str(n) for n in (1, 2, 3))
        assert refused.message == (
            f"node 9 is no voter of partition group 0; its members are nodes {members}"
        )

    in_cluster(scenario)


def test_member_that_only_learns_is_marked() -> None:
    assert listed_members([2, 1], [7 << 32 | 3], leader=2) == "1, 2 (leads), 3 (learns)"


def test_transfer_to_a_node_that_the_group_is_leaving_is_refused() -> None:
    """It would be undone when the group has moved."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await cluster.wait_until(lambda: cluster.leader(1) != 0)
        await cluster.change("add", 9, host="node9", port=7400)
        await place(cluster, 1, 2, 9)
        leader = cluster.leader(1)
        node = cluster.nodes[leader]
        refused = await prefer(node, node.groups[1], 3)
        assert refused is not None
        assert refused.message == (
            "partition group 1 is moving away from node 3, to nodes 1, 2, 9: name one of these"
        )
        assert await prefer(node, node.groups[1], 2) is None
        await cluster.wait_until(lambda: cluster.nodes[1].catalog.groups[1].members == [2, 1, 9])

    in_cluster(scenario)


def test_note_of_a_group_whose_replicas_were_retired_goes_to_the_catalog() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await lead(cluster, 0, 4)
        await place(cluster, 1, 2, 3)
        await place(cluster, 1, 2, 5)
        await cluster.wait_until(lambda: bool(cluster.nodes[1].catalog.groups[1].replicas))
        leader = cluster.leader(1)
        node = cluster.nodes[leader]
        heir = next(each for each in (1, 2, 5) if each != leader)
        assert await prefer(node, node.groups[1], heir) is None
        assert cluster.nodes[4].catalog.groups[1].members[0] == heir

    in_cluster(scenario, size=5)


def test_note_of_who_shall_lead_does_not_undo_a_move() -> None:
    """The group's leader has not heard of the move yet, so its note names all members."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        await lead(cluster, 0, 5)
        await place(cluster, 2, 1, 3)
        await lead(cluster, 1, 1)
        await cluster.wait_until(lambda: cluster.nodes[1].catalog.groups[1].members == [2, 1, 3])
        await place(cluster, 2, 1, 4)
        node = cluster.nodes[1]
        assert node.catalog.groups[1].members == [2, 1, 3]
        refused = await prefer(node, node.groups[1], 3)
        assert refused is not None
        assert "moving away from node 3, to nodes 2, 1, 4" in refused.message
        assert cluster.nodes[5].catalog.groups[1].members == [2, 1, 4]

    in_cluster(scenario, size=5)
