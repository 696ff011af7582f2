"""Quotas of messages in flight on simulated nodes: the bound holds, and consumers take turns."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from raftmq.broker.deliver import in_flight as in_flight_module
from raftmq.broker.deliver.in_flight import COUNT_SECONDS, RECOUNT_TIMES, InFlight
from raftmq.broker.replica.group import Group
from raftmq.client import Client
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.popping import Lease, Leave, Popped
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE

from .throttled import ALICE, BOB, TOPIC, as_client, in_flight, leader, put_quota, with_users

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


@pytest.mark.parametrize(("kind", "name"), [("user", ALICE), ("topic", TOPIC)])
def test_consumer_that_settles_all_and_asks_at_once_has_all_of_its_room(
    kind: str, name: str
) -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one = consumer(1)
        for _ in range(MESSAGES // 5):
            popped, _ = await one.pop(5)
            assert taken(popped) == 5
            await ack_all(one, popped)

    with_messages(scenario, kind=kind, name=name)


def test_consumer_that_found_nothing_and_asks_at_once_gets_the_messages_that_came() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one = consumer(1)
        for _ in range(MESSAGES // 5):
            await ack_all(one, (await one.pop(5, wait_ms=1000))[0])
        assert not (await one.pop(5))[0].leases
        await alice.produce(QUEUE, [b"y"] * 5, MESSAGES)
        assert taken((await one.pop(5))[0]) == 5

    with_messages(scenario)


def test_consumer_that_asks_at_once_takes_no_room_from_those_that_wait() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        one, counts = consumer(1), list[int]()
        popped, _ = await one.pop(5)
        async with (
            cluster.client(cluster.leader_of(QUEUE), user=ALICE) as another,
            trio.open_nursery() as nursery,
        ):

            async def wait() -> None:
                counts.append(taken((await consumer(2, another).pop(2, wait_ms=2000))[0]))

            nursery.start_soon(wait)
            await trio.sleep(0.3)
            await ack_all(one, popped)
            until = trio.current_time() + 1
            while trio.current_time() < until and not counts:
                # It never has less in hand than the quota allows it, nor asks for less.
                await ack_all(one, popped := (await one.pop(5))[0])
        assert counts == [2]

    with_messages(scenario)


@pytest.mark.parametrize("seconds", [0.001, 0.05])
def test_counts_take_a_part_of_the_time_only(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast a consumer asks, here with a user whose count takes this time."""
    counts, counted = InFlight._count_user, 0

    def counting(own: InFlight, user: str) -> int:
        nonlocal counted
        counted += 1
        return counts(own, user)

    def now() -> float:
        return trio.current_time() + counted * seconds

    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        await alice.produce(QUEUE, [b"x"] * 1000, MESSAGES)
        monkeypatch.setattr(InFlight, "_count_user", counting)
        monkeypatch.setattr(in_flight_module, "trio", SimpleNamespace(current_time=now))
        one, asked, until = consumer(1), 0, now() + 2
        while now() < until:
            await ack_all(one, (await one.pop(1))[0])
            asked += 1
        before_time, in_time = RECOUNT_TIMES * seconds, max(COUNT_SECONDS, RECOUNT_TIMES * seconds)
        at_most = 2 / before_time + 2 / in_time + 1
        assert counted <= at_most < asked

    with_messages(scenario, bound=1)


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
        assert leader(cluster).quotas.status()["throttled_most"][0]["name"] == ALICE

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


@pytest.mark.parametrize("hold", [0.03, 0.07, 0.1, 0.12])
def test_consumers_that_wait_for_room_have_it_in_turn(hold: float) -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        await alice.produce(QUEUE, [b"x"] * 1000, MESSAGES)
        counts = Counter[int]()

        async def work(me: int) -> None:
            async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as client:
                mine = consumer(me, client)
                while True:
                    popped, _ = await mine.pop(1, wait_ms=5000)
                    if popped.leases:
                        counts[me] += 1
                        await trio.sleep(hold)
                        await ack_all(mine, popped)

        async with trio.open_nursery() as nursery:
            for me in (1, 2, 3):
                nursery.start_soon(work, me)
                await trio.sleep(0.01)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        assert max(counts.values()) - min(counts[me] for me in (1, 2, 3)) <= 3, counts

    with_messages(scenario, bound=1)


def test_consumers_behind_a_full_line_are_told_soon_that_their_group_is_deleted() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            other, _ = await admin.admin("attach", TOPIC, "h", "pop", False)
        assert taken((await consumer(1).pop(5, invisible_ms=600_000))[0]) == 5
        told: list[float] = []

        async def wait(waiting: Consumer) -> None:
            with suppress(Refused):
                await waiting.pop(1, wait_ms=30_000)
            told.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for me in range(2, 102):
                nursery.start_soon(wait, consumer(me))
            await trio.sleep(0.5)
            for me in range(5):
                nursery.start_soon(wait, Consumer(alice, other, me=1000 + me))
            await trio.sleep(0.2)
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("delete_consumer_group", "h")
            deleted = trio.current_time()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(told) >= 5
        assert max(told[:5]) - deleted < 0.3

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


def test_consumer_that_comes_on_another_connection_asks_for_no_more_than_the_quota() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        asking, all_there = list[int](), trio.Event()

        async def ask(me: int, count: int) -> None:
            # The POPs of all these connections have one correlation.
            async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as client:
                asking.append(me)
                if len(asking) == 4:
                    all_there.set()
                await all_there.wait()
                await consumer(me, client).pop(count, wait_ms=1000)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for me, count in ((1, 2), (1, 2), (2, 4), (3, 4)):
                nursery.start_soon(ask, me, count)
            await trio.sleep(0.5)
            assert in_flight(cluster) <= 4
            nursery.cancel_scope.cancel()

    with_messages(scenario, bound=4)


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


def test_quota_that_is_set_later_counts_what_consumers_of_all_open_connections_have() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=BOB) as bob:
            assert taken((await consumer(1).pop(4))[0]) == 4
            assert taken((await consumer(3, bob).pop(4))[0]) == 4
            await put_quota(cluster, "user", ALICE, in_flight=5)
            async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as another:
                assert taken((await consumer(2, another).pop(5))[0]) == 1

    with_messages(scenario, kind="topic", name=TOPIC, bound=100)


def test_leader_counts_again_when_it_leads_another_group() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            await admin.admin("create_topic", "wide", 3)
            number, _ = await admin.admin("attach", "wide", "g", "pop", False)
        await cluster.wait_known("wide")
        await put_quota(cluster, "topic", "wide", in_flight=5)
        topic = leader(cluster).catalog.topics["wide"]
        queue = topic.id << QUEUE_BITS | topic.groups.index(1)
        before, after = cluster.leader(1), cluster.leader(2)
        async with cluster.client(before, user=ALICE) as client:
            await client.produce(queue, [b"x"] * 20, 0, producer=2)
            assert taken((await Consumer(client, number, me=1).pop(5))[0]) == 5
        group = cluster.nodes[after].groups[1]
        async with cluster.client(after, user=ALICE) as client:
            idle, hungry = (Consumer(client, number, me=me, group=4 - me) for me in (2, 3))
            cluster.nodes[before].groups[1].transfer(group.raft.id)
            while not group.is_current:
                # It counts the messages of the group that it has led before.
                await idle.pop(1)
            await hungry.pop(1)
        assert isinstance(group.machine, PartitionMachine)
        assert group.machine.pop_groups.in_flight(topic.id, group.now_ms()) == 5

    with_messages(scenario)


def test_leader_lets_in_none_before_it_has_applied_what_was_let_in_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        is_applied = False
        monkeypatch.setattr(Group, "is_current", property(lambda _: is_applied))
        assert not (await consumer(1).pop(5))[0].leases
        async with trio.open_nursery() as nursery:
            counts = list[int]()

            async def wait() -> None:
                counts.append(taken((await consumer(2).pop(5, wait_ms=5000))[0]))

            nursery.start_soon(wait)
            await trio.sleep(1)
            assert not counts
            is_applied = True
        assert counts == [5]

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


def test_two_whole_clients_of_a_user_share_the_room_and_take_each_message_once() -> None:
    async def scenario(cluster: Cluster, alice: RawClient, consumer: Any) -> None:
        numbers, got = set[int](), list[list[int]]()

        async def consume(mq: Client) -> None:
            mine = list[int]()
            got.append(mine)
            async with mq.consumer(TOPIC, group="g", mode="pop") as consumer:
                numbers.add(consumer._consumer)
                while sum(map(len, got)) < MESSAGES:
                    for message in await consumer.pop(2, wait=1):
                        assert in_flight(cluster) <= 5
                        mine.append(message.offset)
                        await message.ack()

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(as_client, cluster, ALICE, consume)
        assert len(numbers) == 2
        assert all(got)
        assert sorted(offset for mine in got for offset in mine) == list(range(MESSAGES))

    with_messages(scenario)
