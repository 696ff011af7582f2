"""Whole clients under quotas, for half a minute: rates hold, and nothing is lost."""

from typing import Any

import pytest
import trio

from raftmq.client import Client
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, bodies

from .throttled import (
    ALICE,
    BOB,
    TOPIC,
    as_client,
    leader,
    put_quota,
    with_users,
)


def test_a_producer_is_held_to_its_rate_and_loses_nothing_over_a_change_of_leader() -> None:
    count, rate = 330, 10

    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_messages=rate)
        sent: list[bytes] = [b"%d" % n for n in range(count)]
        took, throttled = 0.0, 0.0

        async def produce(mq: Client) -> None:
            nonlocal took, throttled
            began = trio.current_time()
            async with mq.producer(TOPIC, batch_messages=3) as producer:
                for at in range(0, count, 30):
                    await producer.send_many(sent[at : at + 30], timeout=60)
            took, throttled = trio.current_time() - began, mq.throttled

        async def move_leader() -> None:
            await trio.sleep(12)
            cluster.kill(cluster.leader_of(QUEUE))

        async def bob(mq: Client) -> None:
            async with mq.producer(TOPIC) as producer:
                for _ in range(20):
                    began = trio.current_time()
                    await producer.send(b"bob")
                    assert trio.current_time() - began < 0.2
                    await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(as_client, cluster, BOB, bob)
            nursery.start_soon(move_leader)
            await as_client(cluster, ALICE, produce)
        stored = [body for body in await bodies(cluster, QUEUE) if body != b"bob"]
        assert stored == sent
        # The next leader has an empty bucket: each has a burst.
        assert count / rate - 6 < took < count / rate + 6
        assert throttled > 10

    with_users(scenario)


def test_a_producer_far_over_its_quota_loses_no_time_by_refusals() -> None:
    """What is held is answered while the time that the refused batches were told goes by."""
    count, rate = 300, 10

    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_messages=rate)
        sent = [b"%d" % n for n in range(count)]

        async def produce(mq: Client) -> None:
            began = trio.current_time()
            async with mq.producer(TOPIC, batch_messages=5) as producer:
                await producer.send_many(sent, timeout=100)
            assert count / rate - 2 < trio.current_time() - began < count / rate + 2

        await as_client(cluster, ALICE, produce)
        assert await bodies(cluster, QUEUE) == sent
        assert leader(cluster).quotas.status()["refused"] > 0

    with_users(scenario)


def test_a_consumer_reads_at_the_rate_of_its_quota() -> None:
    count, rate = 600, 20

    async def scenario(cluster: Cluster) -> None:
        sent = [b"%d" % n for n in range(count)]

        async def fill(mq: Client) -> None:
            async with mq.producer(TOPIC, batch_messages=5) as producer:
                await producer.send_many(sent)

        await as_client(cluster, BOB, fill)
        await put_quota(cluster, "user", ALICE, read_messages=rate)
        got: list[bytes] = []
        took = 0.0

        async def consume(mq: Client) -> None:
            nonlocal took
            began = trio.current_time()
            async with mq.consumer(TOPIC, queues=[0]) as consumer:
                while len(got) < count:
                    got.extend(message.body for message in await consumer.fetch(500, wait=1))
            took = trio.current_time() - began
            assert mq.throttled > 20

        await as_client(cluster, ALICE, consume)
        assert got == sent
        assert count / rate - 2 < took < count / rate + 3

    with_users(scenario)


def test_fetches_that_are_refused_leave_no_sessions_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            for n in range(10):
                await alice.produce(QUEUE, [b"x"] * 30, 30 * n)
        await put_quota(cluster, "user", ALICE, read_messages=5)
        node, most = leader(cluster), 0

        async def consume(mq: Client) -> None:
            nonlocal most
            got = 0
            async with mq.consumer(TOPIC, queues=[0]) as consumer:
                while got < 300:
                    got += len(await consumer.fetch(500, wait=1))
                    most = max(most, len(node._fetches.sessions))

        await as_client(cluster, ALICE, consume)
        assert node.quotas.status()["refused"] > 5
        assert most <= 2

    with_users(scenario)


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_a_consumer_waits_for_as_long_as_it_is_told_and_does_not_fail(mode: str) -> None:
    """A batch is read whole, so it may bring a debt that is longer than the client's time limit."""

    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            await alice.produce(QUEUE, [b"x"] * 1000, 0)
            await put_quota(cluster, "user", ALICE, read_messages=50)
            await alice.fetch(QUEUE, 0)
            options: dict[str, Any] = (
                {"queues": [0]} if mode == "pull" else {"group": "g", "mode": "pop"}
            )
            took = 0.0

            async def consume(mq: Client) -> None:
                nonlocal took
                began = trio.current_time()
                opened: Any = mq.consumer(TOPIC, **options)
                async with opened as consumer:
                    take = consumer.fetch if mode == "pull" else consumer.pop
                    while not await take(1, wait=60):
                        pass
                took = trio.current_time() - began

            await as_client(cluster, ALICE, consume)
            assert took > 15  # The client's calls end after 8 s.

    with_users(scenario)


@pytest.mark.parametrize("amount", ["read_messages", "read_bytes"])
def test_a_consumer_pops_at_the_rate_of_its_quota_and_each_message_once(amount: str) -> None:
    count, rate = 300, 10
    body = bytes(1000)

    async def scenario(cluster: Cluster) -> None:
        async def fill(mq: Client) -> None:
            async with mq.producer(TOPIC, batch_messages=1) as producer:
                for n in range(count):
                    await producer.send(b"%d " % n + body)

        await as_client(cluster, BOB, fill)
        amounts = {amount: rate * (1 if amount == "read_messages" else 1100)}
        await put_quota(cluster, "user", ALICE, **amounts)
        got: list[tuple[int, int]] = []
        took = 0.0

        async def consume(mq: Client) -> None:
            nonlocal took
            began = trio.current_time()
            async with mq.consumer(TOPIC, group="g", mode="pop", invisible=5) as consumer:
                while len(got) < count:
                    for message in await consumer.pop(100, wait=1):
                        got.append((int(message.body.split()[0]), message.attempt))
                        await message.ack()
            took = trio.current_time() - began

        await as_client(cluster, ALICE, consume)
        # No lease ran out at the node: messages are handed out as they can be sent.
        assert sorted(got) == [(n, 1) for n in range(count)]
        assert count / rate - 4 < took < count / rate + 8

    with_users(scenario)


def test_a_request_that_waits_for_settings_takes_no_place_of_the_users_work() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, requests=1)

        async def produce(mq: Client) -> None:
            async with mq.producer(TOPIC) as producer:
                for _ in range(5):
                    with trio.fail_after(2):
                        await producer.send(b"x")
                    await trio.sleep(1)

        await as_client(cluster, ALICE, produce)

    with_users(scenario)
