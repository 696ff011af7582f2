"""Administrative calls whose answer is late, so that the client sends them again: each takes effect
once, whatever others have done meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from raftmq.client import Client
from raftmq.client.consumer import Start
from tests.broker.cluster import Cluster
from tests.broker.test_assignment import with_clients

LATE_SECONDS = 6.0
"""Longer than a client waits before it sends a request again."""


@asynccontextmanager
async def late_answer(cluster: Cluster, mq: Client) -> AsyncIterator[trio.Event]:
    """The answer to the next change that a client asks for comes so late that it asks again; the
    event: it is under way."""
    router, asked = mq._router, trio.Event()
    call_leader = router.call_leader
    me = mq._world._process.machine.name  # type: ignore[attr-defined]

    async def let_pass(host: str) -> None:
        await trio.sleep(LATE_SECONDS)
        cluster.network.unblock(host, me)

    async def call(group: int, *args: Any, **options: Any) -> Any:
        if options.get("is_change") and not asked.is_set():
            host = cluster.settings((await router.leader(group)).node).node.host
            cluster.network.block(host, me)
            nursery.start_soon(let_pass, host)
            asked.set()
        return await call_leader(group, *args, **options)

    router.call_leader = call  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        yield asked
    router.call_leader = call_leader  # type: ignore[method-assign]


async def send(mq: Client, bodies: list[bytes]) -> None:
    async with mq.producer("t") as producer:
        await producer.send_many(bodies=bodies)


async def take(mq: Client, count: int = 10) -> list[bytes]:
    """What a popping group is handed, and acknowledges."""
    async with mq.consumer("t", group="g", mode="pop") as consumer:
        messages = await consumer.pop(count, wait=2)
        if messages:
            assert (await messages.ack()).is_complete
        return list(messages.bodies)


def test_deletion_of_a_topic_spares_the_next_one_of_its_name() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(operator.admin.delete_topic, "t")
            await asked.wait()
            await trio.sleep(1)
            assert [topic.name for topic in await app.admin.list_topics()] == ["orders"]
            await app.admin.create_topic("t", queues=1)
            await send(app, [b"new"])
        assert await take(app) == [b"new"]

    with_clients(job, clients=2)


def test_deletion_of_a_group_spares_the_next_one_of_its_name() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        await send(app, [b"one", b"two"])
        assert await take(app) == [b"one", b"two"]
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(operator.admin.delete_consumer_group, "g")
            await asked.wait()
            await trio.sleep(1)
            assert await take(app) == [b"one", b"two"]
        assert await take(app) == []

    with_clients(job, clients=2)


def test_detaching_a_group_spares_its_next_attachment() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        await send(app, [b"one", b"two"])
        assert await take(app) == [b"one", b"two"]
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:

            async def detach() -> None:
                assert await operator.admin.detach("t", "g")

            nursery.start_soon(detach)
            await asked.wait()
            await trio.sleep(1)
            assert await take(app) == [b"one", b"two"]
        assert await take(app) == []
        assert await operator.admin.detach("t", "g")
        assert not await operator.admin.detach("t", "g")

    with_clients(job, clients=2)


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_reset_of_a_group_that_pops_is_carried_out_once(to: Start) -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        await send(app, [b"one", b"two"])
        assert await take(app) == [b"one", b"two"]
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(partial(operator.admin.reset_group, "g", "t", to=to))
            await asked.wait()
            await trio.sleep(1)
            await send(app, [b"three"])
            came = [b"three"] if to == "latest" else [b"one", b"two", b"three"]
            assert await take(app) == came
        assert await take(app) == []

    with_clients(job, clients=2)


def test_dead_letters_that_are_redriven_are_counted() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        await send(app, [b"one", b"two"])
        async with app.consumer("t", group="g", mode="pop") as consumer:
            await (await consumer.pop(10, wait=2)).reject("bad")
        letters = await operator.admin.dead_letters("t", "g")
        async with late_answer(cluster, operator):
            assert await operator.admin.redrive(letters) == 2
        assert await take(app) == [b"one", b"two"]

    with_clients(job, clients=2)


def test_message_that_was_taken_back_is_said_to_be() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        async with app.producer("t") as producer:
            receipt = await producer.send(b"later", delay=600)
        assert receipt.id is not None
        async with late_answer(cluster, operator):
            assert await operator.cancel(receipt.id)
        assert not await operator.cancel(receipt.id)

    with_clients(job, clients=2)
