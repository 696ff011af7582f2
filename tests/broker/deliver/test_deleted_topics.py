"""The fate of messages that are sent while their topic is deleted."""

import pytest

from raftmq.errors import Reason
from raftmq.machine.queue_numbers import QUEUE_BITS
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import bodies, in_cluster


def test_leader_that_has_not_heard_of_a_deletion_takes_messages_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limits of durability in docs/guarantees.md: the deletion takes them, and no later topic of
    the same name has them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 3)
        system = cluster.leader(0)
        queues = [1 << QUEUE_BITS | number for number in range(3)]
        queue = next(each for each in queues if cluster.leader_of(each) != system)
        leader = cluster.leader_of(queue)
        async with cluster.client(system) as admin, cluster.client(leader) as client:
            await client.produce(queue, [b"before"], 0)
            with monkeypatch.context() as patch:
                patch.setattr(cluster.nodes[leader].groups[0], "step", lambda message: None)
                await admin.admin("delete_topic", "orders")
                late = await client.produce(queue, [b"late"], 1)
                assert late.base_offset == 1
            number = await admin.admin("create_topic", "orders", 3)
            assert number == 2
            await cluster.wait_until(lambda: cluster.nodes[leader].catalog.topic_of(queue) is None)
            with pytest.raises(Refused) as refused:
                await client.produce(queue, [b"too late"], 2)
            assert refused.value.reply.code == Reason.UNKNOWN_TOPIC.value
            new = [number << QUEUE_BITS | each for each in range(3)]
            await cluster.wait_until(
                lambda: all(node.catalog.topic_of(new[0]) for node in cluster.nodes.values())
            )
            assert [await bodies(cluster, each) for each in new] == [[], [], []]

    in_cluster(scenario)
