"""Data groups that are added to a cluster: who founds them, and which queues they get."""

from collections import Counter

import pytest

from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.catalog.replicas import GROUPS_MAX, member_id
from tests.broker.harness import Cluster, Refused
from tests.broker.replica.test_reentry import wait_voters, wipe
from tests.broker.scenario import in_cluster


def catalog_of(cluster: Cluster) -> Catalog:
    return cluster.nodes[cluster.leader(0)].catalog


async def add_group(cluster: Cluster, number: int, *members: int) -> bool:
    async with cluster.client(cluster.leader(0)) as client:
        changed: bool = await client.admin("add_group", number, list(members))
        return changed


async def alter(cluster: Cluster, queues: int) -> None:
    async with cluster.client(cluster.leader(0)) as client:
        await client.admin("alter_topic", "t", queues)


async def send(cluster: Cluster, queue: int, number: int) -> None:
    await cluster.wait_until(lambda: cluster.leader_of(queue) != 0)
    async with cluster.client(cluster.leader_of(queue)) as client:
        await client.produce(queue, [b"%d" % number], number)


async def started(cluster: Cluster) -> None:
    await cluster.found("t", 3)
    await cluster.wait_until(
        lambda: (
            cluster.leader(0) != 0
            and all(node.incarnation for node in catalog_of(cluster).nodes.values())
            and catalog_of(cluster).level >= 2
        )
    )


def test_new_queues_go_to_the_new_groups_and_old_ones_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        before = catalog_of(cluster).topics["t"].groups
        assert await add_group(cluster, 4, 2, 3, 1)
        assert await add_group(cluster, 5, 3, 1, 2)
        # A repeat changes nothing.
        assert not await add_group(cluster, 5, 3, 1, 2)
        await alter(cluster, 6)
        topic = catalog_of(cluster).topics["t"]
        assert topic.groups[:3] == before
        assert {4, 5} <= set(topic.groups[3:])
        assert max(Counter(topic.groups).values()) == 2
        for queue in topic.queues:
            await send(cluster, queue, 0)
        await cluster.wait_until(lambda: cluster.leader(4) == 2 and cluster.leader(5) == 3)
        assert cluster.members(4) == {1, 2, 3}

    in_cluster(scenario)


def test_a_founder_that_was_down_takes_its_part_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        down = next(number for number in (3, 2) if number != cluster.leader(0))
        cluster.kill(down)
        await add_group(cluster, 4, down, *{1, 2, 3} - {down})
        await alter(cluster, 4)
        queue = catalog_of(cluster).topics["t"].queues[3]
        await send(cluster, queue, 0)
        await cluster.start(down)
        await cluster.wait_until(lambda: cluster.leader(4) == down)
        await send(cluster, queue, 1)

    in_cluster(scenario)


def test_nodes_that_lost_their_disks_before_found_a_group_like_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        for number, others in ((2, (1, 3)), (3, (1, member_id(2, 1)))):
            wipe(cluster, number)
            await cluster.start(number)
            await wait_voters(cluster, *others, member_id(number, 1))
        await add_group(cluster, 4, 2, 3, 1)
        assert catalog_of(cluster).groups[4].founders == [
            member_id(2, 1), member_id(3, 1), 1
        ]  # fmt: skip
        await alter(cluster, 4)
        queue = catalog_of(cluster).topics["t"].queues[3]
        await send(cluster, queue, 0)
        # Without the one that never lost a disk.
        cluster.kill(1)
        await send(cluster, queue, 1)

    in_cluster(scenario)


def test_a_founder_that_loses_its_disk_at_once_is_taken_in_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        await cluster.wait_until(lambda: cluster.leader(0) != 0)
        number = next(n for n in (1, 2, 3) if n != cluster.leader(0))
        cluster.kill(number)
        await add_group(cluster, 4, number, *{1, 2, 3} - {number})
        wipe(cluster, number)
        await cluster.start(number)
        next_self = member_id(number, 1)
        await cluster.wait_until(
            lambda: (
                cluster.leader(4) != 0
                and next_self in cluster.nodes[cluster.leader(4)].groups[4].conf_state.voters
            )
        )

    in_cluster(scenario)


def test_a_group_that_moves_before_it_was_founded_is_founded_all_the_same() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        down = [number for number in (5, 4, 3) if number != cluster.leader(0)][:2]
        up = [number for number in range(1, 6) if number not in down]
        for number in down:
            cluster.kill(number)
        await cluster.wait_until(lambda: cluster.leader(0) != 0)
        await add_group(cluster, 4, up[0], *down)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("move_group", 4, up, [up[0], *down])
        await cluster.start(*down)
        await cluster.wait_until(lambda: cluster.members(4) == {*up})
        await alter(cluster, 4)
        await send(cluster, catalog_of(cluster).topics["t"].queues[3], 0)
        # What the founders had of it is gone again.
        await cluster.wait_until(
            lambda: all(4 not in cluster.nodes[number].groups for number in down)
        )

    in_cluster(scenario, size=5)


def test_founders_that_are_removed_before_they_founded_come_back_and_leave() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        for number in (6, 7):
            cluster.kill(number)
        await cluster.wait_until(lambda: cluster.leader(0) not in (0, 6, 7))
        await add_group(cluster, 4, 1, 6, 7)
        for number in (6, 7):
            await cluster.change("remove", number)
        await cluster.start(6, 7)
        await cluster.wait_until(lambda: not {6, 7} & catalog_of(cluster).nodes.keys())
        assert len(cluster.members(4)) == 3

    in_cluster(scenario, size=7)


def test_a_group_is_not_added_to_where_nothing_can_carry_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await started(cluster)
        for number, members, text in (
            (3, (1, 2), "the last group is 3"),
            (5, (1, 2, 3), "group 5 is not next"),
            (GROUPS_MAX + 1, (1,), "of 4096 at the most"),
            (4, (), "needs nodes"),
            (4, (1, 1), "each named once"),
            (4, (1, 9), "there is no node 9"),
        ):
            async with cluster.client(cluster.leader(0)) as client:
                with pytest.raises(Refused, match=text):
                    await client.admin("add_group", number, list(members))

    in_cluster(scenario)
