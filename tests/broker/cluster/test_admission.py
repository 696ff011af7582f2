"""Clients that come before the cluster is founded."""

import pytest
import trio

from raftmq.broker.leader_tasks import LeaderTasks
from raftmq.chaos.sim.clients import Clients, Session
from raftmq.client import Client
from raftmq.wire.messages import ChangeNode, Done, FrameKind
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import in_cluster


async def said(client: RawClient, *command: object) -> str:
    """The code with which a change of the catalog is refused; empty: it is done."""
    try:
        await client.admin(*command)
    except Refused as refused:
        return refused.reply.code
    return ""


async def member_said(client: RawClient) -> str:
    """The same for a change of members."""
    try:
        await client.ask(FrameKind.CHANGE_NODE, ChangeNode("add", 9, "node9", 9), Done)
    except Refused as refused:
        return refused.reply.code
    return ""


def test_client_that_comes_early_waits_until_the_cluster_is_founded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = LeaderTasks._found
    monkeypatch.setattr(LeaderTasks, "_found", lambda _: None)

    async def scenario(cluster: Cluster) -> list[str]:
        done: list[int] = []

        async def early(mq: Client, _: Session) -> None:
            await mq.admin.create_topic("orders", queues=2)
            await mq.admin.create_consumer_group("billing")
            done.append(await mq.admin.attach("orders", "billing"))

        await cluster.start()
        await cluster.wait_led(0)
        async with trio.open_nursery() as nursery:
            clients = Clients(cluster, nursery, seed=1)
            nursery.start_soon(clients.once, early)
            async with cluster.client(cluster.leader(0)) as leader:
                codes = [
                    await said(leader, "create_topic", "orders", 2),
                    await said(leader, "delete_topic", "orders"),
                    await said(leader, "delete_consumer_group", "billing"),
                    await member_said(leader),
                ]
            # Less than a client waits by itself.
            await trio.sleep(4)
            assert not done
            monkeypatch.setattr(LeaderTasks, "_found", found)
        assert not clients.failures, clients.failures
        assert done == [1]
        return codes

    assert in_cluster(scenario) == ["unavailable"] * 4
