"""Nodes that stop while they hold requests for quotas, or let consumers wait for room."""

from functools import partial
from typing import Any

import trio

from raftmq.broker.node import Node
from raftmq.client import Client
from tests.broker.harness import Cluster, Refused
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE, bodies

from .throttled import ALICE, BOB, TOPIC, as_client, leader, put_quota, with_users

COUNT, RATE = 60, 10
STOP_SECONDS = 2.0
"""A stop in which each group finds another leader takes less."""


def _holds(node: Node) -> bool:
    return bool(node.quotas.status()["held"])


def test_node_that_stops_while_batches_are_held_ends_in_time_and_loses_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_messages=RATE)
        sent = [b"%d" % n for n in range(COUNT)]

        async def produce(mq: Client) -> None:
            async with mq.producer(TOPIC, batch_messages=5) as producer:
                await producer.send_many(sent, timeout=60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(as_client, cluster, ALICE, produce)
            for _ in range(2):
                node = leader(cluster)
                await cluster.wait_until(partial(_holds, node))
                began = trio.current_time()
                await cluster.stop(node.id)
                assert trio.current_time() - began < STOP_SECONDS
                await cluster.start(node.id)
                await cluster.wait_led(1)
        assert await bodies(cluster, QUEUE) == sent

    with_users(scenario)


def test_node_that_stops_while_consumers_wait_for_room_ends_in_time_and_keeps_acks() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            number, _ = await admin.admin("attach", TOPIC, "g", "pop", False)
        await put_quota(cluster, "topic", TOPIC, in_flight=5)
        node, acked = leader(cluster), list[int]()
        async with (
            cluster.client(node.id, user=ALICE) as alice,
            cluster.client(node.id, user=BOB) as bob,
            trio.open_nursery() as nursery,
        ):
            await alice.produce(QUEUE, [b"%d" % n for n in range(20)], 0)
            holder: Any = Consumer(alice, number, me=1)
            popped, got = await holder.pop(5, invisible_ms=4000)
            lease = popped.leases[0]
            assert await holder.ack(lease) == [5]
            acked += map(int, got)
            assert len((await holder.pop(5, invisible_ms=4000))[1]) == 5
            refused = list[str]()

            async def wait() -> None:
                try:
                    await Consumer(bob, number, me=2).pop(5, wait_ms=30_000)
                except Refused as error:
                    refused.append(error.reply.code)

            nursery.start_soon(wait)
            await trio.sleep(0.2)
            began = trio.current_time()
            await cluster.stop(node.id)
            assert trio.current_time() - began < STOP_SECONDS
            assert refused == ["not_leader"]
            nursery.cancel_scope.cancel()
        await cluster.start(node.id)
        rest = list[int]()

        async def consume(mq: Client) -> None:
            async with mq.consumer(TOPIC, group="g", mode="pop") as consumer:
                while len(acked) + len(rest) < 20:
                    messages = await consumer.pop(5, wait=1)
                    rest.extend(int(message.body) for message in messages)
                    await messages.ack()

        await as_client(cluster, BOB, consume)
        assert sorted(acked + rest) == list(range(20))

    with_users(scenario)
