"""A group ordered by key whose leases hold runs of a key, from the client's call to the brokers and
back.
"""

from typing import Any

import pytest

from raftmq.client import Client
from raftmq.client.pop.handles import handle_of
from raftmq.errors import Reason, Rejected
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client

KEYS = "abacab"
"""The keys of the messages sent, one letter each."""


async def send(mq: Client) -> None:
    await mq.admin.create_consumer_group("g", mode="ordered")
    async with mq.producer("orders") as producer:
        for n, key in enumerate(KEYS):
            await producer.send(b"%d" % n, key=key)


def test_consumer_gets_all_that_follows_of_its_keys_and_others_pass_them_by() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq)
        async with (
            mq.consumer("orders", group="g", mode="ordered", prefetch=0) as one,
            mq.consumer("orders", group="g", mode="ordered", prefetch=0) as two,
        ):
            mine = await one.pop(3, wait=30.0)
            others = await two.pop(6, wait=30.0)
            await mine.ack()
            rest = await two.pop(6, wait=30.0)
            return [[each.body for each in got] for got in (mine, others, rest)]

    assert with_client(job, queues=1) == [[b"0", b"1", b"2"], [b"3"], [b"4", b"5"]]


@pytest.mark.parametrize("prefetch", [0, None])
def test_later_messages_of_a_key_come_again_after_one_that_failed(prefetch: int | None) -> None:
    async def job(_: Cluster, mq: Client) -> list[tuple[bytes, int]]:
        await send(mq)
        got: list[tuple[bytes, int]] = []
        async with mq.consumer("orders", group="g", mode="ordered", prefetch=prefetch) as consumer:
            while len(got) < len(KEYS) + 1:
                (message,) = await consumer.pop(1, wait=30.0)
                got.append((message.body, message.attempt))
                has_failed = got[-1] == (b"2", 1)
                await (message.nack(0) if has_failed else message.ack())
        return got

    got = with_client(job, queues=1)
    of_a = [each for each in got if each[0] in (b"0", b"2", b"4")]
    assert of_a == [(b"0", 1), (b"2", 1), (b"2", 2), (b"4", 1)]
    assert [each for each in got if each[0] in (b"1", b"5")] == [(b"1", 1), (b"5", 1)]


def test_message_behind_one_that_failed_is_no_longer_the_consumers() -> None:
    async def job(_: Cluster, mq: Client) -> list[tuple[bytes, int]]:
        await send(mq)
        async with mq.consumer("orders", group="g", mode="ordered", prefetch=0) as consumer:
            mine = list(await consumer.pop(6, wait=30.0))
            await mine[0].nack(0)
            with pytest.raises(Rejected, match="no longer"):
                await mine[2].ack()
            for other in (1, 3, 5):
                await mine[other].ack()
            again = await consumer.pop(6, wait=30.0)
            await again.ack()
            rest = await consumer.pop(6, wait=30.0)
            return [(each.body, each.attempt) for each in [*again, *rest]]

    assert with_client(job, queues=1) == [(b"0", 2), (b"2", 1), (b"4", 1)]


def test_partly_fenced_ack_withholds_what_is_behind_the_lost_message() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await send(mq)
        async with mq.consumer("orders", group="g", mode="ordered") as consumer:
            mine = await consumer.pop(2, wait=30.0)
            await mq.settle([handle_of(mine[0])], "nack", delay=60.0)
            settlement = await mine.ack()
            rest = await consumer.pop(4, wait=1.0)
            return settlement.settled, [each.body for each in rest]

    assert with_client(job, queues=1) == (1, [b"3", b"5"])


def test_run_of_1_keeps_one_message_of_a_key_in_hand() -> None:
    async def job(_: Cluster, mq: Client) -> list[bytes]:
        await mq.admin.create_consumer_group("g", mode="ordered", run=1)
        await send(mq)
        async with mq.consumer("orders", group="g", mode="ordered", prefetch=0) as consumer:
            return [each.body for each in await consumer.pop(6, wait=30.0)]

    assert with_client(job, queues=1) == [b"0", b"1", b"3"]


def test_group_keeps_its_run() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        one = await mq.admin.create_consumer_group("one", mode="ordered", run=1)
        many = await mq.admin.create_consumer_group("many", mode="ordered")
        same = await mq.admin.create_consumer_group("one", mode="ordered", attempts_max=3)
        with pytest.raises(Rejected) as refused:
            await mq.admin.create_consumer_group("one", mode="ordered", run=2)
        with pytest.raises(Rejected, match="ordered by key, not by queue"):
            await mq.admin.create_consumer_group("many", mode="ordered", order="queue")
        with pytest.raises(Rejected) as senseless:
            await mq.admin.create_consumer_group("queues", mode="ordered", order="queue", run=2)
        return [each.run for each in (one, many, same)], refused.value, senseless.value

    runs, refused, senseless = with_client(job, queues=1)
    assert runs == [1, 65_536, 1]
    assert refused.reason is Reason.GROUP_MODE
    assert "1 messages of a key" in str(refused)
    assert senseless.reason is Reason.BAD_ARGUMENT
