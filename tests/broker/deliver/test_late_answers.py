"""Calls whose answer is late, so that the client sends them again: each takes effect once, whatever
others have done meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from raftmq.client import Client
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.start import Start
from raftmq.errors import Rejected
from tests.broker.harness import Cluster
from tests.broker.serve.test_assignment import with_clients

LATE_SECONDS = 6.0
"""Longer than a client waits before it sends a request again."""


@asynccontextmanager
async def late_answer(cluster: Cluster, mq: Client) -> AsyncIterator[trio.Event]:
    """Delay the answer to the client's next change until the client asks again; yields the
    event that is set when the change is under way."""
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
    """Messages that a popping group is handed and acknowledges."""
    async with mq.consumer("t", group="g", mode="pop") as consumer:
        messages = await consumer.pop(count, wait=2)
        if messages:
            assert (await messages.ack()).is_complete
        return list(messages.bodies)


def test_creation_of_a_topic_does_not_bring_it_back() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]

        async def create() -> None:
            # The topic was there, and is gone.
            with pytest.raises(Rejected, match="there is no topic 't'"):
                await operator.admin.create_topic("t", queues=1)

        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await asked.wait()
            await trio.sleep(1)
            await app.admin.delete_topic("t")
        assert [topic.name for topic in await app.admin.list_topics()] == ["orders"]

    with_clients(job, clients=2)


def test_change_of_a_group_spares_the_next_one() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        change = app.admin.create_consumer_group
        await change("g")
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(partial(operator.admin.create_consumer_group, "g", attempts_max=3))
            await asked.wait()
            await trio.sleep(1)
            (before,) = await app.admin.consumer_groups(name="g")
            await change("g", attempts_max=5)
        (after,) = await app.admin.consumer_groups(name="g")
        assert (before.attempts_max, after.attempts_max) == (3, 5)

    with_clients(job, clients=2)


def test_filter_of_a_group_spares_the_next_one() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(operator.admin.subscribe, "orders", "g", "paid")
            await asked.wait()
            await trio.sleep(1)
            await app.admin.subscribe("orders", "g", "shipped")
        (found,) = await app.admin.list_subscriptions()
        assert found.filter == "shipped"

    with_clients(job, clients=2)


def test_attachment_of_a_group_that_was_detached_does_not_come_back() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]

        async def attach() -> None:
            with pytest.raises(Rejected):
                await operator.admin.attach("orders", "g")

        async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
            nursery.start_soon(attach)
            await asked.wait()
            await trio.sleep(1)
            assert await app.admin.detach("orders", "g")
        assert not await app.admin.detach("orders", "g")

    with_clients(job, clients=2)


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


async def commit_meanwhile(
    consumer: Consumer, asked: trio.Event, *, found: dict[int, int], commits: dict[int, int]
) -> None:
    """Commit after a request was carried out, and before its sender asks again."""
    await asked.wait()
    await trio.sleep(1)
    assert await consumer.committed() == found
    await consumer.commit(commits)


def test_commit_that_is_sent_again_spares_what_another_reader_committed() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        slow, other = mqs[:2]
        await other.admin.create_topic("t", queues=1)
        await send(other, [b"one", b"two", b"three"])
        async with (
            slow.consumer("t", group="g") as first,
            other.consumer("t", group="g") as second,
        ):
            async with late_answer(cluster, slow) as asked, trio.open_nursery() as nursery:
                nursery.start_soon(first.commit, {0: 1})
                await commit_meanwhile(second, asked, found={0: 1}, commits={0: 3})
            assert await second.committed() == {0: 3}

    with_clients(job, clients=2)


def test_commits_of_a_consumer_count_in_the_order_of_its_calls() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        mq = mqs[0]
        await mq.admin.create_topic("t", queues=1)
        await send(mq, [b"one", b"two", b"three"])
        call_leader, asked = mq._router.call_leader, trio.Event()

        async def call(*args: Any, **options: Any) -> Any:
            if options.get("is_change") and not asked.is_set():
                asked.set()
                await trio.sleep(2)
            return await call_leader(*args, **options)

        async with mq.consumer("t", group="g") as consumer:
            mq._router.call_leader = call  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {0: 1})
                await asked.wait()
                await consumer.commit({0: 3})
            assert await consumer.committed() == {0: 3}

    with_clients(job, clients=1)


def test_reset_that_is_sent_again_spares_what_was_committed_since() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        app, operator = mqs[:2]
        await app.admin.create_topic("t", queues=1)
        await send(app, [b"one", b"two", b"three"])
        async with app.consumer("t", group="g") as consumer:
            await consumer.commit({0: 3})
            async with late_answer(cluster, operator) as asked, trio.open_nursery() as nursery:
                nursery.start_soon(partial(operator.admin.reset_group, "g", "t", to="earliest"))
                await commit_meanwhile(consumer, asked, found={0: 0}, commits={0: 2})
            assert await consumer.committed() == {0: 2}

    with_clients(job, clients=2)
