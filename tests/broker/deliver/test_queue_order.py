"""A group that keeps the order of queues, from the client's call to the brokers and back; and a
group of either order that meets a message that cannot be read."""

from typing import Any, Literal

import pytest

from raftmq.client import Client
from raftmq.client.message import decode
from raftmq.client.pop import session
from raftmq.errors import CorruptRecord, UnreadableBatch
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client


def test_message_that_failed_is_not_overtaken_by_what_was_handed_out_with_it() -> None:
    async def job(_: Cluster, mq: Client) -> list[tuple[bytes, int]]:
        await mq.admin.create_consumer_group("g", mode="ordered", order="queue")
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(6)])
        got: list[tuple[bytes, int]] = []
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            while len(got) < 7:
                (message,) = await consumer.pop(1, wait=30.0)
                got.append((message.body, message.attempt))
                await (message.nack(0) if len(got) == 3 else message.ack())
        return got

    bodies = [b"0", b"1", b"2", b"2", b"3", b"4", b"5"]
    assert with_client(job) == [(body, 1 + (n == 3)) for n, body in enumerate(bodies)]


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("order", ["queue", "key"])
def test_messages_behind_one_that_cannot_be_read_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, order: Literal["queue", "key"], is_blocking: bool
) -> None:
    def damaged(payload: Any, base: int, timestamp: int, queue: int, topic: str) -> Any:
        if base == 1:
            error = CorruptRecord("planted", position=0)
            raise UnreadableBatch(error, topic=topic, queue=0, offset=1, next_offset=2)
        return decode(payload, base, timestamp, queue, topic)

    monkeypatch.setattr(session, "decode", damaged)

    async def job(_: Cluster, mq: Client) -> list[tuple[bytes, int]]:
        await mq.admin.create_consumer_group(
            "g", "ordered", order=order, is_blocking=is_blocking, attempts_max=1, invisible=5
        )
        async with mq.producer("orders") as producer:
            for n in range(4):
                await producer.send(b"%d" % n, key="a")
        got: list[tuple[bytes, int]] = []
        raised = 0
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            for _pop in range(4):
                try:
                    messages = await consumer.pop(9, wait=8.0)
                except UnreadableBatch:
                    raised += 1
                    continue
                dead = len(await mq.admin.dead_letters("orders", "g"))
                got += [(each.body, dead) for each in messages]
                await messages.ack()
        assert raised == 1
        return got

    # Each with the number of dead letters by then: the message at offset 1 is the first.
    rest = [] if is_blocking else [(b"2", 1), (b"3", 1)]
    assert with_client(job) == [(b"0", 0), *rest]
