"""Quotas of messages in flight on simulated nodes: the bound holds, and consumers take turns."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from raftmq.client import Client
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.popping import Lease, Leave, Popped
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE

from .throttled import ALICE, BOB, TOPIC, as_client, leader, put_quota, with_users

MESSAGES = 30

Job = Callable[[Cluster, RawClient, Callable[..., Consumer]], Awaitable[Any]]


def with_messages(job: Job, *, kind: str = "user", name: str = ALICE, bound: int = 5) -> None:
    """Run a job with a topic that has messages, a bound, a connection of Alice, and what makes
    her consumers of one group."""

    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            number, _ = await admin.admin("attach", TOPIC, "g", "pop", False)
        await put_quota(cluster, kind, name, in_flight=bound)
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            await alice.produce(QUEUE, [b"x"] * MESSAGES, 0)

            def consumer(me: int, client: RawClient = alice) -> Consumer:
                return Consumer(client, number, me=me)

            await job(cluster, alice, consumer)

    with_users(scenario)


def in_flight(cluster: Cluster) -> int:
    node = leader(cluster)
    group = node.group(1)
    assert group is not None
    assert isinstance(group.machine, PartitionMachine)
    return group.machine.pop_groups.in_flight(QUEUE >> 16, group.now_ms())


def size(lease: Lease) -> int:
    return int.from_bytes(lease.bits, "little").bit_count()


def taken(popped: Popped) -> int:
    return sum(map(size, popped.leases))


async def ack_all(consumer: Consumer, popped: Popped) -> None:
    for lease in popped.leases:
        assert await consumer.ack(lease) == [size(lease)]


@pytest.mark.parametrize(("kind", "name"), [("user", ALICE), ("topic", TOPIC)])
def test_no_more_is_in_flight_than_the_quota_allows(kind: str, name: str) -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one, two = consumer(1), consumer(2)
        popped, _ = await one.pop(3)
        assert taken(popped) == 3
        more, _ = await two.pop(100)
        assert taken(more) == 2
        began = trio.current_time()
        nothing, _ = await one.pop(10, wait_ms=1000)
        assert not nothing.leases
        assert 0.9 < trio.current_time() - began < 1.2
        assert 900 < nothing.throttle_ms < 1200
        await ack_all(one, popped)
        again, _ = await one.pop(10, wait_ms=1000)
        assert taken(again) == 3

    with_messages(scenario, kind=kind, name=name)


def test_consumer_that_waits_for_room_goes_on_once_another_one_has_settled() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one, two = consumer(1), consumer(2)
        popped, _ = await one.pop(5)
        async with (
            cluster.client(cluster.leader_of(QUEUE), user=ALICE) as another,
            trio.open_nursery() as nursery,
        ):
            two.client = another
            waits = trio.Event()

            async def wait() -> None:
                assert taken((await two.pop(100, wait_ms=5000, is_kept=True))[0]) == 5
                waits.set()

            nursery.start_soon(wait)
            await trio.sleep(0.5)
            assert not waits.is_set()
            began = trio.current_time()
            await ack_all(one, popped)
            await waits.wait()
            assert trio.current_time() - began < 0.3
        assert leader(cluster).quotas.status()["slowed_most"][0]["name"] == ALICE

    with_messages(scenario)


def test_credit_of_consumers_that_wait_for_messages_counts() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        first = consumer(1)
        for _ in range(MESSAGES // 5):
            await ack_all(first, (await first.pop(5))[0])
        answers: list[int] = []

        async def wait(me: int) -> None:
            async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as client:
                waiting = consumer(me, client)
                popped, _ = await waiting.pop(3, wait_ms=3000, is_kept=True)
                answers.append(taken(popped))
                await trio.sleep(3)

        async with trio.open_nursery() as nursery:
            for me in range(2, 6):
                nursery.start_soon(wait, me)
            await trio.sleep(0.5)
            assert in_flight(cluster) == 5
            await alice.produce(QUEUE, [b"y"] * 20, MESSAGES)
            await trio.sleep(1)
            assert in_flight(cluster) == 5
            assert sum(answers) == 5

    with_messages(scenario)


def test_messages_of_a_consumer_that_is_gone_count_until_their_leases_end() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        gone = consumer(1)
        popped, _ = await gone.pop(5, invisible_ms=4000)
        assert taken(popped) == 5
        leave = Leave(gone.group, gone.number, gone.me)
        await alice.ask(FrameKind.LEAVE, leave, Done)
        began = trio.current_time()
        more, _ = await consumer(2).pop(5, wait_ms=10_000)
        assert taken(more) == 5
        assert 3.5 < trio.current_time() - began < 4.5

    with_messages(scenario)


def test_another_user_and_another_topic_have_bounds_of_their_own() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        assert taken((await consumer(1).pop(100))[0]) == 5
        async with cluster.client(cluster.leader_of(QUEUE), user=BOB) as bob:
            other = consumer(2, bob)
            assert taken((await other.pop(7))[0]) == 7

    with_messages(scenario)


def test_consumer_that_waits_for_messages_shares_its_credit_with_those_that_have_some() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            idle, _ = await admin.admin("attach", TOPIC, "idle", "pop", True)
        waiting = Consumer(alice, idle, me=9)

        async def wait(nursery: trio.Nursery) -> None:
            while True:
                # Each POP ends the wait of the one before, whose credit has not ended.
                nursery.start_soon(partial(waiting.pop, 100, wait_ms=1000, is_kept=True))
                await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, nursery)
            await trio.sleep(0.5)
            assert in_flight(cluster) == 5
            async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as another:
                popped, _ = await consumer(1, another).pop(4, wait_ms=2000)
                assert 2 <= taken(popped) <= 3
                assert in_flight(cluster) <= 5
            nursery.cancel_scope.cancel()

    with_messages(scenario)


def test_consumers_that_wait_for_room_are_refused_when_their_group_is_deleted() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        await consumer(1).pop(5)
        async with trio.open_nursery() as nursery:
            refused: list[str] = []

            async def wait() -> None:
                try:
                    await consumer(2).pop(5, wait_ms=5000)
                except Refused as error:
                    refused.append(error.reply.code)

            nursery.start_soon(wait)
            await trio.sleep(0.3)
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("detach", TOPIC, "g")
            await cluster.wait_until(lambda: bool(refused))
        assert refused == ["unknown_group"]

    with_messages(scenario)


def test_pops_after_one_another_and_negative_counts_get_no_more_than_the_quota() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one = consumer(1)
        async with trio.open_nursery() as nursery:
            for count in (5, -1000, 5, -1000, 5, 5, 5, 5):
                nursery.start_soon(partial(one.pop, count, wait_ms=200, is_kept=True))
                await trio.sleep(0.0002)
        assert in_flight(cluster) <= 5

    with_messages(scenario)


async def work(cluster: Cluster, consumer: Any, me: int, wait_ms: int, until: float) -> int:
    """Take a message at a time and work on it; how many it was until that time."""
    done = 0
    async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as client:
        own = consumer(me, client)
        while trio.current_time() < until:
            popped, _ = await own.pop(1, wait_ms=wait_ms)
            await trio.sleep(0.2 if popped.leases else 0)
            await ack_all(own, popped)
            done += taken(popped)
    return done


def test_consumer_that_waits_for_short_times_gets_its_share_of_the_room() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        await alice.produce(QUEUE, [b"x"] * 200, MESSAGES)
        counts: dict[int, int] = {}
        until = trio.current_time() + 20

        async def count(me: int, wait_ms: int) -> None:
            counts[me] = await work(cluster, consumer, me, wait_ms, until)

        async with trio.open_nursery() as nursery:
            for me, wait_ms in ((1, 10_000), (2, 10_000), (3, 500)):
                nursery.start_soon(count, me, wait_ms)
        assert counts[3] >= min(counts[1], counts[2]) / 2, counts

    with_messages(scenario, bound=1)


def test_new_leader_counts_what_the_consumer_that_asks_has_in_hand() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one = consumer(1)
        assert taken((await one.pop(5))[0]) == 5
        before = cluster.leader_of(QUEUE)
        after = next(node for node in cluster.nodes if node != before)
        cluster.nodes[before].groups[1].transfer(cluster.nodes[after].groups[1].raft.id)
        await cluster.wait_until(lambda: cluster.leader_of(QUEUE) == after)
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as client:
            again = consumer(1, client)
            # The new leader sends again what the consumer has in hand, and no more.
            counts = [taken((await again.pop(5, wait_ms=300))[0]) for _ in range(3)]
            assert counts == [5, 0, 0]
        assert in_flight(cluster) == 5

    with_messages(scenario)


def test_raised_quota_holds_for_consumers_that_wait() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        await consumer(1).pop(5)
        counts: list[int] = []

        async def wait() -> None:
            counts.append(taken((await consumer(2).pop(100, wait_ms=5000))[0]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.3)
            began = trio.current_time()
            await put_quota(cluster, "user", ALICE, in_flight=8)
            await cluster.wait_until(lambda: bool(counts))
            assert trio.current_time() - began < 1
        assert counts == [3]

    with_messages(scenario)


def test_a_whole_client_takes_all_messages_a_few_at_a_time() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        highest = 0

        async def consume(mq: Client) -> None:
            nonlocal highest
            got = 0
            async with mq.consumer(TOPIC, group="g", mode="pop") as consumer:
                while got < MESSAGES:
                    for message in await consumer.pop(100, wait=1):
                        highest = max(highest, in_flight(cluster))
                        await message.ack()
                        got += 1

        await as_client(cluster, ALICE, consume)
        assert 1 <= highest <= 5

    with_messages(scenario)
