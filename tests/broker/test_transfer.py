"""Leaderships that are moved by hand, on clusters with more nodes than replicas."""

import trio

from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.world import run
from raftmq.cli.cluster import _transfer
from raftmq.client import Client
from tests.broker.cluster import Cluster


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
