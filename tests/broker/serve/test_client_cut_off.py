"""A real client and real nodes: one node that is cut off from the others still answers clients."""

import trio

from raftmq.chaos.world import Machine, MemoryFiles, Process, SimulatedClientWorld
from raftmq.client import connect
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies, in_cluster


def test_client_that_knows_only_a_node_that_is_cut_off_finds_the_leaders() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        isolated = cluster.leader(0)
        for other in {1, 2, 3} - {isolated}:
            cluster.network.block(f"node{isolated}", f"node{other}")
            cluster.network.block(f"node{other}", f"node{isolated}")
        machine = Machine("client", cluster.agenda, MemoryFiles())
        world = SimulatedClientWorld(cluster.network, Process(machine, cluster.agenda, seed=1))
        await cluster.wait_until(lambda: cluster.leader(0) not in (0, isolated))
        async with connect(f"raftmq://node{isolated}:7400", world=world, timeout=30.0) as mq:
            with trio.fail_after(60):
                assert [topic.name for topic in await mq.admin.list_topics()] == ["t"]
                async with mq.producer("t") as producer:
                    for queue in range(3):
                        await producer.send(b"x", queue=queue)
        for queue in range(QUEUE, QUEUE + 3):
            assert await bodies(cluster, queue) == [b"x"]

    in_cluster(scenario)
