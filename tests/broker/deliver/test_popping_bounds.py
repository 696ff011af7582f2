"""A leader's state of consumers is bounded, and time goes on although a Tick is refused."""

from contextlib import suppress
from typing import cast

import pytest
import trio

from raftmq.broker.deliver import consumers, hand_out
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.connection import Connection
from raftmq.client import Client
from raftmq.machine import settlements
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.actions import Action
from raftmq.pop.calls import Settle, Tick
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.popping import Pop
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE, with_client
from tests.pop.counter import GROUP, Counter, step


def test_tick_that_was_refused_is_proposed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tick, propose = encode_commands([Tick()]), Group.propose
    refused: list[bytes] = []

    def refuses_some(self: Group, kind: int, payload: bytes, ticket: object, **more: bool) -> None:
        if payload == tick and len(refused) < 3:
            refused.append(payload)
            error = ErrorReply("busy", "leadership is being handed over", retry_ms=200)
            ticket.failed(error)  # type: ignore[attr-defined]
            return
        propose(self, kind, payload, ticket, **more)  # type: ignore[arg-type]

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a"], 0)
        await alice.pop(1, invisible_ms=1_000)
        monkeypatch.setattr(Group, "propose", refuses_some)
        await trio.sleep(2.5)
        assert len(refused) == 3
        assert (await alice.backlog()).leased == 0

    with_group(job)


def test_consumers_that_have_nothing_and_want_nothing_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "PRUNE_MIN", 8)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b"], 0)
        popped, bodies = await alice.pop(1, invisible_ms=60_000)
        assert bodies == [b"a"]
        kept = cluster.nodes[cluster.leader_of(QUEUE)]._popping._consumers
        for me in range(100, 200):
            one = Consumer(client, alice.number, me=me)
            (lease,) = (await one.pop(1))[0].leases if me == 100 else [None]
            if lease is not None:
                await one.ack(lease)
        assert len(kept) <= 16
        # Alice has a message in hand: the leader knows her, and sends it once.
        assert (await alice.pop(9))[1] == []
        assert await alice.ack(popped.leases[0]) == [1]

    with_group(job)


def test_consumers_of_a_connection_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "PRUNE_MIN", 4)
    monkeypatch.setattr(consumers, "CONSUMERS_MAX", 8)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"%d" % n for n in range(20)], 0)
        kept = cluster.nodes[cluster.leader_of(QUEUE)]._popping._consumers
        opened = [Consumer(client, alice.number, me=me) for me in range(100, 110)]
        leases = [(await one.pop(1, invisible_ms=60_000))[0].leases[0] for one in opened[:8]]
        for one in opened[8:]:
            with pytest.raises(Refused, match=r"too_large: .* open another connection"):
                await one.pop(1)
            assert len(kept) == 8
        # Known consumers go on, also after a restart; another connection has a bound of its own.
        opened[0].is_new = True
        again, _ = await opened[0].pop(1)
        assert leases[0].token in [lease.token for lease in again.leases]
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            assert (await Consumer(other, alice.number, me=200).pop(1))[0].leases
        # A consumer without messages in hand makes room, at the second look at the latest.
        await opened[7].ack(leases[7])
        came: list[int] = []
        for one in [*opened[8:], *opened[8:]]:
            with suppress(Refused):
                came += [one.me] if (await one.pop(1))[0].leases else []
        assert len(set(came)) == 1
        assert len(kept) == 8

    with_group(job)


def test_results_of_settlements_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settlements, "RESULTS_MAX", 10)
    log = Counter()
    log.send(40)
    for consumer in range(1, 11):
        handed = [one for _ in range(4) for one in log.pop(consumer, 1)]
        log.settle(consumer, *[step(Action.ACK, one) for one in handed])
    machine = PartitionMachine.restore(log.machine.snapshot())
    for one in (log.machine.pop_groups._settlements, machine.pop_groups._settlements):
        assert [key[1] for key in one._last] == [9, 10]
        assert one._weight == 8
    # A repeat of a remembered settlement gets its results.
    assert log.call(Settle(GROUP, 10, 1, [])) == [[1, 1, 1, 1]]


def test_consumers_that_settle_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settlements, "CONSUMERS_MAX", 3)
    log = Counter()
    log.send(40)
    for consumer in range(1, 11):
        log.settle(consumer, step(Action.ACK, log.pop(consumer, 1)[0]))
    machine = PartitionMachine.restore(log.machine.snapshot())
    for one in (log.machine.pop_groups._settlements, machine.pop_groups._settlements):
        assert [key[1] for key in one._last] == [8, 9, 10]


def test_consumer_that_ends_frees_its_place_on_the_leader_without_a_record() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 20)
        kept = cluster.nodes[cluster.leader_of(QUEUE)]._popping._consumers
        for _ in range(10):
            async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
                (message,) = await consumer.pop(1, wait=5.0)
                await message.ack()
                assert len(kept) == 1
            await cluster.wait_until(lambda: not kept)
        # Messages that a consumer leaves in hand stay its own.
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            (message,) = await consumer.pop(1, wait=5.0)
        await cluster.wait_until(lambda: not kept)
        (backlog,) = await mq.admin.backlogs(group="g")
        assert (backlog.acked, backlog.leased) == (10, 1)

    with_client(job)


def test_groups_that_begin_at_one_moment_have_a_bound_and_all_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Queues of topics of one queue each: the third group passes it.
    monkeypatch.setattr("raftmq.broker.deliver.popping.OPENING_QUEUES_MAX", 2)
    group_count = 10

    async def job(cluster: Cluster, client: RawClient, consumer: Consumer) -> None:
        async with cluster.client(cluster.leader(0)) as admin:
            attached = [
                await admin.admin("attach", "orders", f"g{n}", "pop", False)
                for n in range(group_count)
            ]
        numbers = [number for number, _ in attached]
        catalog = cluster.nodes[cluster.leader_of(QUEUE)].catalog
        await cluster.wait_until(lambda: numbers[-1] in catalog.consumer_groups.attachments)
        await client.produce(QUEUE, [b"x"], 0)
        rounds = 0
        while numbers:
            pops = [pack(Pop(1, number, number, 1, 0, 10_000, 1 << 20)) for number in numbers]
            frames = await client.request_all(*[(FrameKind.POP, pop, ()) for pop in pops])
            refused = [each for each in frames if each.kind == FrameKind.ERROR]
            assert {unpack(ErrorReply, each.header).code for each in refused} <= {"busy"}
            # Those that were refused come again, and no other request is.
            answers = zip(numbers, frames, strict=True)
            numbers = [number for number, each in answers if each.kind == FrameKind.ERROR]
            rounds += 1
            await trio.sleep(0.1)
        assert rounds == 4

    with_group(job)


def test_new_consumer_has_few_others_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "PRUNE_MIN", 4)
    looked = 0

    def is_idle(_: consumers.Key) -> bool:
        nonlocal looked
        looked += 1
        return False

    known, connection = consumers.Consumers(is_idle), cast("Connection", object())
    for n in range(100):
        key, before = consumers.Key(1, 1, n), looked
        assert known.has_place(key, connection)
        known.meet(key, connection)
        assert looked - before <= 4
    assert looked > 50


def test_answer_that_lists_leases_has_a_bound_on_their_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The bits of a lease of 16 messages have two bytes.
    monkeypatch.setattr(hand_out, "LEASE_BYTES_MAX", 4)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        tokens = []
        for n in range(5):
            await client.produce(QUEUE, [b"x"] * 16, 16 * n)
            popped, _ = await alice.pop(16, invisible_ms=600_000)
            tokens += [lease.token for lease in popped.leases]
        alice.is_new = True
        answers = [(await alice.pop(0))[0] for _ in range(3)]
        assert [len(each.leases) for each in answers] == [2, 2, 1]
        assert [each.is_more for each in answers] == [True, True, False]
        assert [lease.token for each in answers for lease in each.leases] == tokens

    with_group(job)
