"""Messages that are stored before they may be seen, under quotas: each counts as written when it is
sent, and as in flight when a consumer gets it. Their release into the queues is not held.
"""

from collections.abc import Awaitable, Callable

import trio

from raftmq.client import Client
from raftmq.wire.messages import ErrorReply
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies

from .throttled import ALICE, BOB, TOPIC, as_client, in_flight, leader, put_quota, with_users

COUNT, RATE, BOUND = 40, 10, 5
SENT = [b"%d" % n for n in range(COUNT)]


def _end(cluster: Cluster) -> int:
    source = leader(cluster).source(QUEUE)
    assert not isinstance(source, ErrorReply)
    return source.end


class Visible:
    """When the first and the last of the messages came into the queue."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    async def watch(self, cluster: Cluster) -> None:
        """Wait for all of them."""
        while (end := _end(cluster)) < COUNT:
            self.first = self.first or (trio.current_time() if end else 0.0)
            await trio.sleep(0.01)
        self.last = trio.current_time()
        self.first = self.first or self.last


def with_withheld(send: Callable[[Client, Visible], Awaitable[None]]) -> None:
    """Have Alice send messages, and two processes of Bob take them, under quotas of the topic."""

    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "topic", TOPIC, write_messages=RATE, in_flight=BOUND)
        visible, got = Visible(), list[bytes]()

        async def consume(mq: Client) -> None:
            async with mq.consumer(TOPIC, group="g", mode="pop") as consumer:
                while len(got) < COUNT:
                    messages = await consumer.pop(100, wait=5)
                    assert in_flight(cluster) <= BOUND
                    got.extend(message.body for message in messages)
                    await messages.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(visible.watch, cluster)
            for _ in range(2):
                nursery.start_soon(as_client, cluster, BOB, consume)
            await as_client(cluster, ALICE, lambda mq: send(mq, visible))
        # At the rate they would need seconds.
        assert visible.last - visible.first < 0.5
        assert sorted(got) == sorted(SENT)
        assert sorted(await bodies(cluster, QUEUE)) == sorted(SENT)

    with_users(scenario)


def test_delayed_messages_are_held_as_they_are_sent_and_not_when_they_are_due() -> None:
    async def send(mq: Client, visible: Visible) -> None:
        began = trio.current_time()
        async with mq.producer(TOPIC, batch_messages=5) as producer:
            await producer.send_many(SENT, delay=20.0, timeout=30.0)
        # All but a burst, and the last batch.
        assert trio.current_time() - began > (COUNT - RATE - 5) / RATE - 0.1
        assert not visible.first
        await trio.sleep(25)
        assert 19.5 < visible.last - began < 21

    with_withheld(send)


def test_messages_of_a_transaction_are_held_as_they_are_sent_and_not_when_it_is_committed() -> None:
    async def send(mq: Client, visible: Visible) -> None:
        began = trio.current_time()
        async with mq.producer(TOPIC) as producer:
            transaction = producer.transaction(group="halves", timeout=30.0)
            for body in SENT:
                await transaction.send(body)
            sent = trio.current_time()
            assert sent - began > (COUNT - RATE - 1) / RATE - 0.1
            assert not visible.first
            await transaction.commit()
            assert trio.current_time() - sent < 0.2

    with_withheld(send)
