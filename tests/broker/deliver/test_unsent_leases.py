"""Leases of which an answer had no room for all, and what happens to them before the next answer:
the rest is sent as the machine has it by then."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from raftmq.broker.deliver import popping
from raftmq.broker.settings import Log
from raftmq.client import Client
from raftmq.pop.actions import FENCED, Action
from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.popping import Lease, Popped, ResetGroup, SettleItem
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import BOB, Consumer, offsets, with_group
from tests.broker.quotas.throttled import put_quota
from tests.broker.scenario import QUEUE, with_client


async def half_sent(client: RawClient, alice: Consumer, *, invisible_ms: int = 60_000) -> Lease:
    """A lease of four messages, of which the first answer has room for one."""
    for n in range(4):
        await client.produce(QUEUE, [b"m%d" % n], n)
    popped, bodies = await alice.pop(4, invisible_ms=invisible_ms, bytes_max=1)
    assert (bodies, popped.is_more) == ([b"m0"], True)
    return popped.leases[0]


def test_lease_that_was_cut_short_is_not_sent_once_another_consumer_has_it() -> None:
    async def job(_: Cluster, client: RawClient, alice: Consumer) -> None:
        lease = await half_sent(client, alice)
        bob = Consumer(client, alice.number, me=BOB)
        await alice.settle(SettleItem(Action.EXTEND, lease.token, delay_ms=1000))
        # The first level of the schedule is ten seconds.
        await trio.sleep(12)
        again, theirs = await bob.pop(4, wait_ms=5000, invisible_ms=60_000)
        assert theirs == [b"m0", b"m1", b"m2", b"m3"]
        assert await alice.pop(4) == (Popped([], []), [])
        assert await bob.ack(again.leases[0]) == [4]
        assert await alice.pop(4) == (Popped([], []), [])

    with_group(job)


def test_lease_that_was_reset_is_not_sent() -> None:
    async def job(_: Cluster, client: RawClient, alice: Consumer) -> None:
        lease = await half_sent(client, alice)
        reset = ResetGroup(1, alice.number, [QUEUE], [-1], 77)
        assert await client.ask(FrameKind.RESET, reset, Done) == Done()
        assert (await alice.backlog()).leased == 0
        assert await alice.pop(4) == (Popped([], []), [])
        assert await alice.ack(lease) == [FENCED]

    with_group(job)


def test_pop_that_took_the_place_of_one_whose_batches_are_read_gets_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[Callable[[], object]] = []

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        for n in range(60):
            await client.produce(QUEUE, [bytes(50_000)], n)
        reader = cluster.nodes[cluster.leader_of(QUEUE)]._popping._reader
        submit = reader.submit
        monkeypatch.setattr(reader, "submit", lambda *job: held.append(partial(submit, *job)))
        answers: list[int] = []

        async def pop(count: int) -> None:
            answers.append(len((await alice.pop(count, wait_ms=9000))[1]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pop, 2)
            await trio.sleep(0.1)
            assert len(held) == 1, "the first messages are in the cache"
            nursery.start_soon(pop, 1)
            await trio.sleep(0.1)
            assert answers == [0]
            reset = ResetGroup(1, alice.number, [QUEUE], [-1], 77)
            await client.ask(FrameKind.RESET, reset, Done)
            monkeypatch.undo()
            held[0]()
            await trio.sleep(0.5)
            began = trio.current_time()
            await client.produce(QUEUE, [b"new"], 60)
        assert answers == [0, 1]
        assert trio.current_time() - began < 1

    with_group(job, log=Log(cache_bytes=1 << 20))


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("end", ["reset", "deleted"])
def test_pop_whose_batches_are_read_while_its_leases_end(
    monkeypatch: pytest.MonkeyPatch, end: str, bound: int
) -> None:
    held: list[Callable[[], object]] = []

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        if bound:
            await put_quota(cluster, "topic", "orders", in_flight=bound)
        for n in range(60):
            await client.produce(QUEUE, [bytes(50_000)], n)
        reader = cluster.nodes[cluster.leader_of(QUEUE)]._popping._reader
        submit = reader.submit
        monkeypatch.setattr(reader, "submit", lambda *job: held.append(partial(submit, *job)))
        answers: list[int | str] = []

        async def pop(count: int) -> None:
            try:
                answers.append(len((await alice.pop(count, wait_ms=9000))[1]))
            except Refused as refused:
                answers.append(refused.reply.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pop, 2)
            await trio.sleep(0.1)
            assert len(held) == 1
            # The quota leaves this one no room while the first one's leases stand.
            nursery.start_soon(pop, 1)
            await trio.sleep(0.1)
            async with cluster.client(cluster.leader(0)) as admin:
                if end == "deleted":
                    await admin.admin("delete_consumer_group", "billing")
                else:
                    reset = ResetGroup(1, alice.number, [QUEUE], [-1], 77)
                    await client.ask(FrameKind.RESET, reset, Done)
            await trio.sleep(1)
            monkeypatch.undo()
            held[0]()
            await trio.sleep(0.5)
            began = trio.current_time()
            await client.produce(QUEUE, [b"new"], 60)
        assert answers == [0, "unknown_group" if end == "deleted" else 1]
        assert trio.current_time() - began < 1
        assert not cluster.stopped

    with_group(job, log=Log(cache_bytes=1 << 20))


def test_settled_messages_of_a_lease_are_not_sent() -> None:
    async def job(_: Cluster, client: RawClient, alice: Consumer) -> None:
        lease = await half_sent(client, alice)
        assert await alice.settle(SettleItem(Action.ACK, lease.token, 1, b"\5")) == [2]
        popped, bodies = await alice.pop(4)
        assert bodies == [b"m2"]
        assert [(each.token, offsets(each)) for each in popped.leases] == [(lease.token, [2])]
        assert not popped.is_more

    with_group(job)


def test_rest_of_a_lease_that_was_extended_is_sent_with_its_deadline() -> None:
    async def job(_: Cluster, client: RawClient, alice: Consumer) -> None:
        lease = await half_sent(client, alice, invisible_ms=2000)
        # As a consumer does that renews its leases.
        for _second in range(6):
            assert await alice.settle(SettleItem(Action.EXTEND, lease.token, delay_ms=2000)) > [0]
            await trio.sleep(1)
        popped, bodies = await alice.pop(4, invisible_ms=2000)
        (rest,) = popped.leases
        assert bodies == [b"m1", b"m2", b"m3"]
        assert rest.token == lease.token
        assert 0 < rest.remaining_ms <= 1000
        assert rest.deadline_ms > lease.deadline_ms + 4000

    with_group(job)


def test_lease_that_ends_while_its_batches_are_read_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Disk:
        """Reads when the test says so."""

        def __init__(self) -> None:
            self.reads: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []

        def submit(self, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
            self.reads.append((work, done))

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        lease = await half_sent(client, alice)
        disk, found = Disk(), list[list[bytes]]()

        async def pop() -> None:
            found.append((await alice.pop(4, wait_ms=2000))[1])

        with monkeypatch.context() as patch:
            patch.setattr(popping, "from_memory", lambda *_: {})
            patch.setattr(cluster.nodes[cluster.leader_of(QUEUE)]._popping, "_reader", disk)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pop)
                await trio.sleep(0.5)
                ((work, done),) = disk.reads
                assert await alice.settle(SettleItem(Action.ACK, lease.token, 1, b"\3")) == [2]
                done(work(), None)
        assert found == [[b"m3"]]

    with_group(job)


async def fill(mq: Client, count: int) -> None:
    """Messages of 1 MiB, of which two fill an answer."""
    async with mq.producer("orders") as producer:
        for n in range(count):
            await producer.send(b"m%d" % n + bytes(1 << 20))


def names(messages: Any) -> list[bytes]:
    return [each.body[:2] for each in messages]


def test_consumer_that_renews_its_lease_is_sent_the_rest_of_it() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        await mq.admin.create_consumer_group("g", "pop", attempts_max=1)
        await fill(mq, 6)
        options: dict[str, Any] = {"prefetch": 0, "prefetch_bytes": 1 << 20, "invisible": 3}
        async with mq.consumer("orders", group="g", mode="pop", renew=3, **options) as consumer:
            first = await consumer.pop(6, wait=30.0)
            seen = names(first)
            # The work on them takes longer than the lease was for at first.
            await trio.sleep(15)
            while more := await consumer.pop(6, wait=1.0):
                seen += names(more)
                await more.ack()
            await first.ack()
        assert seen == [b"m%d" % n for n in range(6)]
        assert await mq.admin.dead_letters("orders", "g") == []

    with_client(job)


def test_messages_in_hand_keep_the_time_that_an_extension_gave_them() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        await mq.admin.create_consumer_group("g", "pop", invisible=60)
        await fill(mq, 6)
        options: dict[str, Any] = {"prefetch": 0, "prefetch_bytes": 1 << 20}
        async with mq.consumer("orders", group="g", mode="pop", **options) as consumer:
            first = await consumer.pop(6, wait=30.0)
            await first.extend(600)
            more = await consumer.pop(6, wait=30.0)
            # Of the same lease, and told by the page with them.
            assert more[0].token == first[0].token
            assert min(first[0].remaining, more[0].remaining) > 590
            await trio.sleep(130)
            await consumer.pop(6, wait=1.0)
            assert (await first.ack()).is_complete

    with_client(job)


def test_messages_that_were_reset_and_acked_elsewhere_are_not_handed_on() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        await mq.admin.create_consumer_group("g", "pop", invisible=60)
        await fill(mq, 6)
        options: dict[str, Any] = {"prefetch": 0, "prefetch_bytes": 1 << 20}
        one = mq.consumer("orders", group="g", mode="pop", **options)
        two = mq.consumer("orders", group="g", mode="pop")
        async with one, two:
            assert names(await one.pop(6, wait=30.0))
            await mq.admin.reset_group("g", "orders", to="earliest")
            theirs: list[bytes] = []
            while len(theirs) < 6:
                got = await two.pop(6, wait=30.0)
                theirs += names(got)
                assert (await got.ack()).is_complete
            assert names(await one.pop(6, wait=5.0)) == []

    with_client(job)
