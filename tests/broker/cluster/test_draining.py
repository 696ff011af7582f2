"""Drained nodes lead nothing, and count as before."""

from functools import partial

import pytest
import trio

from raftmq.chaos.sim.clients import Clients
from raftmq.client import Client
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.levels import LEVEL
from raftmq.wire.messages import Done, FrameKind, Transfer
from tests.broker.harness import Cluster, Refused
from tests.broker.replica.test_space import LOG, RESERVE, shrink, store
from tests.broker.scenario import QUEUE, in_cluster

SENDS = 400
PAUSE_SECONDS = 0.02
SILENCE_SECONDS_MAX = 0.4
"""Of the client, while leaders change without an election; an election takes a second or more."""


BACK_SECONDS_MAX = 10.0
"""From the end of a drain until the node leads its share again."""


async def found(cluster: Cluster) -> None:
    await cluster.found("orders", 6)
    await cluster.wait_until(
        lambda: all(node.catalog.level == LEVEL for node in cluster.nodes.values())
    )


async def drain(cluster: Cluster, node: int, is_on: bool = True) -> None:
    async with cluster.client(cluster.leader(SYSTEM_GROUP)) as client:
        await client.admin("drain_node", node, is_on)


def leads(cluster: Cluster, node: int) -> list[int]:
    groups = cluster.nodes[node].groups if node in cluster.nodes else {}
    return [number for number, group in groups.items() if group.is_leader]


def leads_nothing(cluster: Cluster, node: int) -> bool:
    return not leads(cluster, node)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_drained_node_leads_nothing_until_it_is_undrained(node: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        assert leads(cluster, node)
        await drain(cluster, node)
        await cluster.wait_until(lambda: not leads(cluster, node))
        # Nor after its restart, and that of another one.
        for other in (node, node % 3 + 1):
            await cluster.stop(other)
            await cluster.start(other)
            await trio.sleep(20)
            assert leads(cluster, node) == []
            assert all(cluster.leader(group) for group in range(4))
        begun = trio.current_time()
        await drain(cluster, node, is_on=False)
        await cluster.wait_until(lambda: cluster.leader(node) == node)
        assert trio.current_time() - begun < BACK_SECONDS_MAX

    in_cluster(scenario, seed=node)


def test_a_drained_node_gives_back_a_leadership_that_is_handed_to_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        await drain(cluster, 2)
        await cluster.wait_until(lambda: not leads(cluster, 2))
        leader = cluster.leader(1)
        term = cluster.nodes[leader].groups[1].raft.term
        cluster.nodes[leader].groups[1].transfer(2)
        await trio.sleep(10)
        assert cluster.nodes[2].groups[1].leaders[term + 1] == 2
        assert cluster.leader(1) in (1, 3)

    in_cluster(scenario)


def test_a_transfer_to_a_drained_node_is_refused_and_changes_no_preference() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        await drain(cluster, 2)
        await cluster.wait_until(lambda: not leads(cluster, 2))
        leader = cluster.leader(1)
        async with cluster.client(leader) as client:
            for group in (SYSTEM_GROUP, 1):
                if cluster.leader(group) == leader:
                    with pytest.raises(Refused, match="node 2 is drained: `raftmq cluster undrain"):
                        await client.ask(FrameKind.TRANSFER, Transfer(group, 2), Done)
        assert cluster.nodes[leader].catalog.groups[1].members[0] == 1

    in_cluster(scenario)


def test_a_drained_node_votes_so_that_the_others_can_lose_a_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        await drain(cluster, 2)
        await cluster.wait_until(lambda: not leads(cluster, 2))
        cluster.kill(1)
        await cluster.wait_until(lambda: all(cluster.leader(group) == 3 for group in range(4)))
        cluster.stopped.clear()
        # A node that comes back leads its share; the drained one still leads nothing.
        await cluster.start(1)
        await cluster.wait_until(lambda: 1 in cluster.nodes and bool(leads(cluster, 1)))
        assert leads(cluster, 2) == []

    in_cluster(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_a_drain_and_its_end_take_seconds(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        node = seed % 3 + 1
        for _ in range(4):
            await trio.sleep(cluster.random.uniform(0, 3))
            begun = trio.current_time()
            await drain(cluster, node)
            await cluster.wait_until(partial(leads_nothing, cluster, node))
            assert trio.current_time() - begun < BACK_SECONDS_MAX
            await trio.sleep(cluster.random.uniform(0, 20))
            begun = trio.current_time()
            await drain(cluster, node, is_on=False)
            await cluster.wait_until(lambda: cluster.leader(node) == node)
            assert trio.current_time() - begun < BACK_SECONDS_MAX

    in_cluster(scenario, seed=seed)


def test_a_drained_node_with_space_leads_where_the_other_disks_are_full() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        await drain(cluster, 3)
        await cluster.wait_until(partial(leads_nothing, cluster, 3))
        for number in (1, 2):
            shrink(cluster, number, left=RESERVE - 1)
        await store(cluster, 0, 20, seconds=300)
        assert cluster.leader_of(QUEUE) == 3

    in_cluster(scenario, log=LOG)


def test_a_drained_node_leads_where_no_other_can() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        for node in (1, 2):
            await drain(cluster, node)
            await cluster.wait_until(partial(leads_nothing, cluster, node))
        cluster.kill(3)
        await cluster.wait_until(lambda: all(cluster.leader(group) for group in range(4)))
        await trio.sleep(60)
        assert all(cluster.leader(group) in (1, 2) for group in range(4))
        cluster.stopped.clear()
        await cluster.start(3)
        await cluster.wait_until(lambda: all(cluster.leader(group) == 3 for group in range(4)))

    in_cluster(scenario)


def test_a_transfer_to_any_node_goes_past_a_drained_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        await drain(cluster, 1)
        await cluster.wait_until(partial(leads_nothing, cluster, 1))
        before = cluster.leader(1)
        async with cluster.client(before) as client:
            await client.ask(FrameKind.TRANSFER, Transfer(1, 0), Done)
        await cluster.wait_until(lambda: cluster.leader(1) not in (0, before))
        assert cluster.leader(1) == 5 - before

    in_cluster(scenario)


def test_a_client_does_not_notice_a_drain_and_a_restart() -> None:
    gaps: list[float] = []

    async def send(mq: Client, _: object) -> None:
        async with mq.producer("orders") as producer:
            for number in range(SENDS):
                begun = trio.current_time()
                await producer.send(b"x", key=str(number))
                gaps.append(trio.current_time() - begun)
                await trio.sleep(PAUSE_SECONDS)

    async def scenario(cluster: Cluster) -> None:
        await found(cluster)
        async with trio.open_nursery() as nursery:
            clients = Clients(cluster, nursery, seed=1)

            async def restart_all() -> None:
                for node in (1, 2, 3):
                    await drain(cluster, node)
                    await cluster.wait_until(partial(leads_nothing, cluster, node))
                    await cluster.stop(node)
                    await cluster.start(node)
                    await drain(cluster, node, is_on=False)

            nursery.start_soon(restart_all)
            await clients.once(send)
            assert not clients.failures, clients.failures
            nursery.cancel_scope.cancel()

    in_cluster(scenario)
    assert len(gaps) == SENDS
    assert max(gaps) < SILENCE_SECONDS_MAX
