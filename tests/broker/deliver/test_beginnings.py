"""Where groups at the latest message begin in queues that their topic got later, in whole simulated
clusters."""

from typing import Any

import trio

from raftmq.client import Client, Consumer
from raftmq.wire.assignment import Assigned
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client
from tests.broker.serve.test_assignment import QUEUES, opened, send, with_clients

from .test_resets import bodies_of

OLD, NEW = range(24), range(24, 64)


async def send_to_new_queues(mq: Client, numbers: range) -> None:
    """Give the topic four more queues, and send to these."""
    count = len((await mq.admin.describe_topic("orders")).queues)
    await mq.admin.alter_topic("orders", count + 4)
    async with mq.producer("orders") as p:
        for number in numbers:
            await p.send(b"%d" % number, queue=count + number % 4)


async def read(*consumers: Consumer, count: int) -> list[int]:
    """This many messages, or those that come in a while, in order."""
    got: list[int] = []
    with trio.move_on_after(20):
        while len(got) < count:
            for each in consumers:
                got += [int(m.body) for m in await each.fetch(100, wait=0.5)]
    return sorted(got)


async def read_none(*consumers: Consumer) -> bool:
    return not [m for each in consumers for m in await each.fetch(100, wait=3)]


def test_group_misses_nothing_in_queues_that_are_added_while_it_has_no_member() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[2], len(OLD))
        async with opened(mqs[0], start="latest"):
            pass
        await send_to_new_queues(mqs[2], NEW)
        async with opened(mqs[0], start="latest") as a, opened(mqs[1], start="latest") as b:
            assert await read(a, b, count=len(NEW)) == list(NEW)

    with_clients(job)


def test_nodes_that_start_again_know_where_a_group_began() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], start="latest"):
            pass
        for number in cluster.nodes:
            cluster.kill(number)
            await cluster.start(number)
        await send_to_new_queues(mqs[2], NEW)
        async with opened(mqs[1], start="latest") as a:
            assert await read(a, count=len(NEW)) == list(NEW)

    with_clients(job)


def test_group_that_is_made_again_begins_at_the_latest_in_all_queues() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], start="latest"):
            pass
        await send_to_new_queues(mqs[2], NEW)
        await mqs[2].admin.delete_consumer_group("g")
        async with opened(mqs[0], start="latest") as a:
            assert await read_none(a)

    with_clients(job)


def test_group_on_a_topic_that_is_made_again_begins_there_at_the_latest() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], start="latest"):
            pass
        await mqs[2].admin.delete_topic("orders")
        await mqs[2].admin.create_topic("orders", queues=QUEUES + 4)
        await send(mqs[2], len(OLD))
        async with opened(mqs[0], start="latest") as a:
            assert await read_none(a)
        await send_to_new_queues(mqs[2], NEW)
        async with opened(mqs[1], start="latest") as a:
            assert await read(a, count=len(NEW)) == list(NEW)

    with_clients(job)


def test_reset_holds_in_new_queues_and_leaves_alone_those_that_come_after_it() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], start="latest"):
            pass
        await send_to_new_queues(mqs[2], OLD)
        await mqs[2].admin.reset_group("g", "orders", to="latest")
        await send_to_new_queues(mqs[2], NEW)
        async with opened(mqs[0], start="latest") as a:
            assert await read(a, count=len(NEW)) == list(NEW)

    with_clients(job)


def test_leader_of_older_software_leaves_it_to_the_member_what_is_old(monkeypatch: Any) -> None:
    def without(*values: Any) -> Assigned:
        return Assigned(*values[:5])

    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[2], len(OLD))
        async with opened(mqs[0], start="latest") as a:
            await send_to_new_queues(mqs[2], NEW)
            assert await read(a, count=len(NEW)) == list(NEW)

    monkeypatch.setattr("raftmq.broker.serve.group_coordinator.Assigned", without)
    with_clients(job)


def test_books_of_a_group_that_pops_from_the_latest_on_count_queues_that_came_later() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        await mq.admin.attach("orders", "g", start="latest")
        # In a data group that has not heard of the group.
        await mq.admin.alter_topic("orders", 2)
        async with mq.producer("orders") as p:
            for number in range(10):
                await p.send(b"%d" % number, queue=1)
        old, new = await mq.admin.backlogs(group="g")
        assert (old.lag, new.lag) == (0, 10)
        await mq.admin.clone_group("g", "h", "orders")
        for group in ("g", "h"):
            assert await bodies_of(mq, group) == list(range(10)), group

    with_client(job)
