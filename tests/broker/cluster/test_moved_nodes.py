"""A node that moved to another address is found by a node that was down meanwhile."""

from functools import partial

import msgspec
import pytest

from raftmq.broker.settings import Settings
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster

NEW_PORT = 7401


def move(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, node: int) -> None:
    settings = Cluster.settings

    def moved(self: Cluster, number: int) -> Settings:
        found = settings(self, number)
        if number != node:
            return found
        return msgspec.structs.replace(
            found, node=msgspec.structs.replace(found.node, port=NEW_PORT)
        )

    monkeypatch.setattr(Cluster, "settings", moved)


def test_node_that_was_down_finds_a_leader_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        cluster.kill(3)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("put_node", [1, "node1", NEW_PORT])
        cluster.kill(1)
        move(cluster, monkeypatch, 1)
        await cluster.start(1)
        await cluster.wait_led(0, 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for n in range(50):
                await client.produce(QUEUE, [bytes(10_000)], n)
        for group in (SYSTEM_GROUP, 1):
            leader = cluster.nodes[cluster.leader(group)]
            if leader.id != 1:
                leader.groups[group].transfer(1)
                await cluster.wait_until(partial(lambda n: cluster.leader(n) == 1, group))
        await cluster.start(3)
        last = cluster.nodes[1].groups[1].machine.applied
        await cluster.wait_until(lambda: cluster.nodes[3].groups[1].machine.applied >= last)
        await cluster.wait_until(lambda: cluster.nodes[3].catalog.nodes[1].port == NEW_PORT)

    in_cluster(scenario)
