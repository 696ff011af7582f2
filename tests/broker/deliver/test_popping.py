"""Consumers that pop from whole simulated clusters, frame by frame."""

import pytest
import trio

from raftmq.batch import Batch, Compression, encode
from raftmq.broker.serve.connection import Connection
from raftmq.broker.settings import Log
from raftmq.errors import CorruptRecord, Reason
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.actions import FENCED, Action
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import REPLY, Done, FrameKind
from raftmq.wire.popping import (
    SETTLE_ITEMS_MAX,
    ChangeDead,
    Claim,
    Claimed,
    DeadChanged,
    FindDead,
    FoundDead,
    Lease,
    Leave,
    Pop,
    Popped,
    SettleItem,
)
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import ALICE, BOB, Consumer, offsets, with_group
from tests.broker.scenario import QUEUE


def test_message_is_popped_acked_and_gone() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b", b"c"], 0)
        popped, bodies = await alice.pop(2)
        assert bodies == [b"a", b"b"]
        (lease,) = popped.leases
        assert (lease.attempt, lease.base, offsets(lease)) == (1, 0, [0, 1])
        assert lease.remaining_ms > 9_000
        assert await alice.ack(lease) == [2]
        assert (await alice.pop(9))[1] == [b"c"]
        assert (await alice.pop(9))[1] == []
        backlog = await alice.backlog()
        assert (backlog.end, backlog.next, backlog.acked, backlog.leased) == (3, 3, 2, 1)

    with_group(job)


def test_waiting_pop_is_answered_by_the_record_that_brings_something() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await alice.pop(0)
        group = cluster.nodes[cluster.leader_of(QUEUE)].groups[1]
        async with trio.open_nursery() as nursery:
            before = 0

            async def wait() -> None:
                assert (await alice.pop(5, wait_ms=60_000))[1] == [b"x"]

            nursery.start_soon(wait)
            await trio.sleep(1)
            before = group.machine.applied
            await client.produce(QUEUE, [b"x"], 0)
        assert group.machine.applied == before + 1

    with_group(job)


def test_wait_that_is_over_is_answered_empty() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        start = trio.current_time()
        assert await alice.pop(5, wait_ms=500) == (Popped([], []), [])
        assert 0.5 <= trio.current_time() - start < 0.6
        await client.produce(QUEUE, [b"x"], 0)
        assert (await alice.backlog()).leased == 0

    with_group(job)


def test_lease_runs_out_without_traffic_and_goes_to_who_waits() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        bob = Consumer(client, alice.number, me=BOB)
        await client.produce(QUEUE, [b"x"], 0)
        node = cluster.nodes[cluster.leader_of(QUEUE)]
        asked_ms = node.now_ms()
        popped, _ = await alice.pop(1, invisible_ms=2000)
        granted_ms = node.now_ms()
        again, bodies = await bob.pop(1, wait_ms=30_000)
        ended_ms = node.now_ms()
        # By the leader's clock: the lease begins between the request and the answer, and the first
        # level of the schedule, ten seconds, follows.
        assert asked_ms + 12_000 <= ended_ms < granted_ms + 12_100
        assert bodies == [b"x"]
        assert again.leases[0].attempt == 2
        assert await alice.ack(popped.leases[0]) == [FENCED]
        assert await bob.ack(again.leases[0]) == [1]

    with_group(job)


def test_consumer_that_comes_back_gets_what_it_has_in_hand_under_the_same_tokens() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b"], 0)
        first, _ = await alice.pop(1)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            back = Consumer(other, alice.number)
            again, bodies = await back.pop(5, wait_ms=1000)
            assert bodies == [b"a", b"b"]
            old, new = again.leases
            assert (old.token, old.attempt) == (first.leases[0].token, 1)
            assert new.token > old.token

    with_group(job)


def test_leases_survive_a_change_of_leader_and_acked_messages_do_not_come_back() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b", b"c"], 0)
        (first,) = (await alice.pop(1))[0].leases
        (second,) = (await alice.pop(1))[0].leases
        assert await alice.ack(first) == [1]
        old = cluster.leader_of(QUEUE)
        cluster.kill(old)
        await cluster.wait_led(1)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            back = Consumer(other, alice.number)
            back.sequence = alice.sequence
            popped, bodies = await back.pop(9)
            assert bodies[0] == b"b"
            assert popped.leases[0].token == second.token
            assert await back.ack(popped.leases[0]) == [1]
            rest = bodies[1:] or (await back.pop(9))[1]
            assert rest == [b"c"]

    with_group(job)


def test_repeated_settlement_gets_the_first_answer_from_another_leader_too() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a"], 0)
        (lease,) = (await alice.pop(1))[0].leases
        assert await alice.ack(lease) == [1]
        old = cluster.leader_of(QUEUE)
        cluster.kill(old)
        await cluster.wait_led(1)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            assert await Consumer(other, alice.number).ack(lease) == [1]

    with_group(job)


def test_answer_that_would_be_too_long_comes_in_parts_under_one_token() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        for n in range(6):
            await client.produce(QUEUE, [bytes([n]) * 1000] * 3, 3 * n)
        popped, bodies = await alice.pop(100, bytes_max=5000)
        token = popped.leases[0].token
        answers = 1
        while popped.is_more:
            popped, more = await alice.pop(100, bytes_max=5000)
            bodies += more
            answers += 1
            assert [x.token for x in popped.leases] == [token]
        assert answers > 2
        assert bodies == [bytes([n]) * 1000 for n in range(6) for _ in range(3)]

    with_group(job)


def numbered(count: int) -> list[bytes]:
    """Bodies of 128 bytes that differ."""
    return [b"%8d" % n * 16 for n in range(count)]


def body_bytes(popped: Popped) -> int:
    return sum(sum(memoryview(item.sizes).cast("I")) for item in popped.queues)


@pytest.mark.parametrize("is_in_memory", [True, False])
@pytest.mark.parametrize("compression", list(Compression))
def test_of_a_large_batch_only_the_messages_that_are_meant_are_sent(
    compression: Compression, is_in_memory: bool
) -> None:
    sent = numbered(8000)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        # 1 MiB each, as the log keeps them.
        await client.produce(QUEUE, sent, 0, keys=["key"] * 8000, compression=compression)
        await client.produce(QUEUE, sent, 8000, tags=["tag"] * 8000, compression=compression)
        # This pushes them out of a cache of 1 MiB.
        await client.produce(QUEUE, [bytes(100_000)] * 11, 16_000)
        group = cluster.nodes[cluster.leader_of(QUEUE)].groups[1]
        records = [group.cache.get(each.index) for each in group.index.lookup(QUEUE, 0, 2)]
        assert [record is not None for record in records] == [is_in_memory] * 2
        for start in (0, 1):
            popped, bodies = await alice.pop(1)
            assert bodies == sent[start : start + 1]
            assert body_bytes(popped) < 1024
        (lease,) = popped.leases
        popped, bodies = await alice.pop(98)
        assert bodies == sent[2:100]
        assert body_bytes(popped) < 16 * 1024
        # Messages of two batches; of the first one more than half, which is sent as it stands.
        popped, bodies = await alice.pop(7905)
        while popped.is_more:
            popped, more = await alice.pop(1)
            bodies += more
        assert bodies == sent[100:] + sent[:5]
        await alice.settle(SettleItem(Action.NACK, lease.token, 1, b"\1", 0))
        popped, bodies = await alice.pop(1)
        assert bodies == sent[1:2]
        assert [x.attempt for x in popped.leases] == [2]
        assert body_bytes(popped) < 1024

    with_group(job, log=Log(cache_bytes=1 << 26 if is_in_memory else 1 << 20))


def test_retries_of_single_messages_out_of_many_large_batches_come_in_one_answer() -> None:
    sent = numbered(1000)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        for n in range(10):
            await client.produce(QUEUE, sent, 1000 * n)
        bodies: list[bytes] = []
        leases: list[Lease] = []
        while len(bodies) < 10_000:
            popped, more = await alice.pop(10_000)
            leases += popped.leases
            bodies += more
        one_each = [
            SettleItem(Action.NACK if n % 1000 == 999 else Action.ACK, lease.token, n, b"\1", 0)
            for lease in leases
            for n in offsets(lease)
        ]
        for start in range(0, len(one_each), SETTLE_ITEMS_MAX):
            await alice.settle(*one_each[start : start + SETTLE_ITEMS_MAX])
        # Ten batches of 130 kB: they would not fit into an answer that takes 10,000 bytes.
        popped, bodies = await alice.pop(10, bytes_max=10_000)
        assert bodies == sent[-1:] * 10
        assert not popped.is_more
        assert body_bytes(popped) < 3000

    with_group(job)


def test_leases_of_one_batch_in_one_answer_share_one_cut() -> None:
    sent = numbered(4000)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, sent, 0)
        for count in (3, 4, 5):
            await alice.pop(count)
        # A consumer that comes back is sent all its messages in hand.
        alice.is_new = True
        popped, bodies = await alice.pop(1)
        assert len(popped.leases) >= 3
        assert bodies[:12] == sent[:12]
        (item,) = popped.queues
        assert list(memoryview(item.bases).cast("Q")) == [0]
        assert body_bytes(popped) < 4096

    with_group(job)


def test_batch_that_cannot_be_cut_is_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(payload: memoryview, start: int, stop: int) -> bytes:
        raise CorruptRecord("it cannot be read", position=0)

    monkeypatch.setattr("raftmq.broker.deliver.hand_out.cut", fail)
    sent = numbered(1000)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, sent, 0)
        popped, bodies = await alice.pop(1)
        assert bodies == sent[:1]
        assert body_bytes(popped) > 128_000

    with_group(job)


def test_rejected_message_is_found_among_the_dead_and_can_be_redriven() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b"], 0)
        (lease,) = (await alice.pop(2))[0].leases
        reject = SettleItem(Action.REJECT, lease.token, 1, b"\1", reason="no such account")
        assert await alice.settle(reject) == [1]
        find = FindDead(1, alice.number)
        (letter,) = (await client.ask(FrameKind.DEAD, find, FoundDead)).letters
        assert (letter.queue, letter.base, letter.reason) == (QUEUE, 1, "no such account")
        change = ChangeDead(1, alice.number, [letter.letter])
        assert await client.ask(FrameKind.CHANGE_DEAD, change, DeadChanged) == DeadChanged(1)
        popped, bodies = await alice.pop(2)
        assert bodies == [b"b"]
        assert popped.leases[0].attempt == 1

    with_group(job)


def test_group_that_begins_at_the_end_gets_what_comes_after_it_was_opened() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"old"], 0)
        await alice.pop(0)
        await client.produce(QUEUE, [b"new"], 1)
        assert (await alice.pop(9))[1] == [b"new"]

    with_group(job, is_latest=True)


def test_consumer_that_left_is_handed_nothing() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert (await alice.pop(5, wait_ms=60_000))[1] == []

            nursery.start_soon(wait)
            await trio.sleep(0.5)
            leave = Leave(1, alice.number, ALICE)
            assert await client.ask(FrameKind.LEAVE, leave, Done) == Done()
        await client.produce(QUEUE, [b"x"], 0)
        assert (await alice.backlog()).leased == 0

    with_group(job)


@pytest.mark.parametrize("in_a_turn", [1, 1024])
def test_closed_connection_ends_the_credits_of_its_consumers(
    in_a_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.broker.deliver.popping.CLOSED_MAX", in_a_turn)

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        node = cluster.nodes[cluster.leader_of(QUEUE)]
        async with cluster.client(node.id) as other, trio.open_nursery() as nursery:
            for me in range(BOB, BOB + 5):
                nursery.start_soon(Consumer(other, alice.number, me=me).pop, 5)
            await trio.sleep(0.5)
            assert len(node._popping._consumers) == 5
            nursery.cancel_scope.cancel()
        await trio.sleep(0.5)
        assert len(node._popping._consumers) == 0
        await client.produce(QUEUE, [b"x"], 0)
        assert (await alice.backlog()).leased == 0

    with_group(job)


def test_deleted_group_is_refused_and_forgotten_by_the_data_groups() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"x"], 0)
        await alice.pop(1)
        async with cluster.client(cluster.leader(0)) as system:
            await system.admin("delete_consumer_group", "billing")
        await trio.sleep(3)
        with pytest.raises(Refused) as refused:
            await alice.pop(1)
        assert refused.value.reply.code == Reason.UNKNOWN_GROUP.value
        machine = cluster.nodes[cluster.leader_of(QUEUE)].groups[1].machine
        assert isinstance(machine, PartitionMachine)
        assert machine.pop_groups.attached == {}

    with_group(job)


def test_attachment_that_never_was_is_said_to_be_unknown_yet() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        alice.number += 1
        with pytest.raises(Refused) as refused:
            await alice.pop(1)
        assert refused.value.reply.code == "unavailable"

    with_group(job)


def test_ordered_group_gets_messages_of_one_key_one_after_the_other() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        # The leader gives the keys of stored messages; later batches give their own.
        await client.produce(QUEUE, [b"a1", b"a2", b"b1"], 0, keys=["a", "a", "b"])
        popped, bodies = await alice.pop(9, wait_ms=1000)
        assert bodies == [b"a1", b"b1"]
        await client.produce(QUEUE, [b"a3", b"c1"], 3, keys=["a", "c"])
        assert (await alice.pop(9, wait_ms=1000))[1] == [b"c1"]
        for expected in (b"a2", b"a3"):
            (lease,) = [x for x in popped.leases if x.queue == QUEUE]
            ack = SettleItem(Action.ACK, lease.token, lease.base, b"\1")
            assert await alice.settle(ack) == [1]
            popped, bodies = await alice.pop(9, wait_ms=1000)
            assert bodies == [expected]

    with_group(job, mode="ordered")


def test_group_with_a_filter_gets_what_matches_and_the_rest_is_counted() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        tags = ["paid", "sent"] * 50
        await client.produce(QUEUE, [b"%d" % n for n in range(100)], 0, tags=tags)
        async with cluster.client(cluster.leader(0)) as system:
            alice.subscribed = await system.admin("subscribe", "orders", "billing", "paid")
        _, bodies = await alice.pop(200, wait_ms=5000)
        assert bodies == [b"%d" % n for n in range(0, 100, 2)]
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert (await alice.pop(200, wait_ms=5000))[1] == [b"y"]

            nursery.start_soon(wait)
            await trio.sleep(0.5)
            await client.produce(QUEUE, [b"x"], 100, tags=["sent"])
            await client.produce(QUEUE, [b"y"], 101, tags=["paid"])
        backlog = await alice.backlog()
        assert (backlog.next, backlog.leased, backlog.passed) == (102, 51, 51)

    with_group(job)


def test_feeding_goes_on_under_another_leader() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        for n in range(40):
            keys = [f"{n % 7}-{k}" for k in range(1000)]
            await client.produce(QUEUE, [b"x"] * 1000, 1000 * n, keys=keys)
        _, bodies = await alice.pop(1000, wait_ms=5000)
        assert len(bodies) == 1000
        cluster.kill(cluster.leader_of(QUEUE))
        await cluster.wait_led(1)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            back = Consumer(other, alice.number)
            got = 0
            while got < 7000:
                popped, bodies = await back.pop(9000, wait_ms=1000)
                got += len(bodies)
                assert popped.leases

    with_group(job, mode="ordered")


def test_claim_survives_its_leader_and_tells_the_second_claimant() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        claim = Claim(1, alice.number, b"payment-17", 5, 60_000)
        assert (await client.ask(FrameKind.CLAIM, claim, Claimed)).is_ours
        cluster.kill(cluster.leader_of(QUEUE))
        await cluster.wait_led(1)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            assert (await other.ask(FrameKind.CLAIM, claim, Claimed)).is_ours
            second = Claim(1, alice.number, b"payment-17", 6, 60_000)
            answer = await other.ask(FrameKind.CLAIM, second, Claimed)
            assert not answer.is_ours
            assert 0 < answer.remaining_ms < 60_000

    with_group(job)


def test_batch_that_is_applied_together_with_a_resumed_credit_is_not_lost() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await alice.pop(0)
        batch = encode([b"x"]).to_bytes(queue=QUEUE, producer=1, first_sequence=0)
        pop = Pop(1, alice.number, ALICE, 5, 0, 60_000, 1 << 20, True)
        # Both arrive in one step of the leader, and are applied in one.
        produced, popped = await client.request_all(
            (FrameKind.PRODUCE, b"", [batch]), (FrameKind.POP, pack(pop), [])
        )
        assert produced.kind == FrameKind.PRODUCE | REPLY
        (lease,) = unpack(Popped, popped.header).leases
        assert offsets(lease) == [0]
        assert Batch.decode(popped.body, base_offset=0, timestamp=0).bodies == [b"x"]

    with_group(job)


def test_full_connection_does_not_end_the_list_of_what_a_consumer_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resuming consumer would take an empty answer for the whole list, and lose all."""

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"x"], 0)
        assert (await alice.pop(1))[1] == [b"x"]
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            resumed = Consumer(other, alice.number)
            with monkeypatch.context() as patch:
                patch.setattr(Connection, "is_clogged", property(lambda connection: True))
                popped, bodies = await resumed.pop(0)
            assert (popped.leases, bodies, popped.is_more) == ([], [], True)
            popped, bodies = await resumed.pop(0)
            assert (bodies, popped.is_more) == ([b"x"], False)

    with_group(job)


def test_lease_that_would_run_out_on_its_way_is_refused() -> None:
    async def job(_: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"x"], 0)
        with pytest.raises(Refused, match="1000 ms at least"):
            await alice.pop(1, invisible_ms=999)
        assert (await alice.pop(1, invisible_ms=1000))[1] == [b"x"]

    with_group(job)


@pytest.mark.parametrize("wait_ms", [0, 50])
def test_resumed_consumer_hears_of_its_leases_however_slow_the_disks_are(wait_ms: int) -> None:
    """Its wait is over before its request is in the log: an empty answer would be a whole list."""

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a", b"b"], 0)
        (lease,) = (await alice.pop(2))[0].leases
        for machine in cluster.machines.values():
            machine.slowness = 1000.0
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            resumed = Consumer(other, alice.number)
            popped, bodies = await resumed.pop(0, wait_ms=wait_ms)
            assert [each.token for each in popped.leases] == [lease.token]
            assert bodies == [b"a", b"b"]
            # Without leases in hand the answer is empty, and late as well.
            for machine in cluster.machines.values():
                machine.slowness = 1.0
            await resumed.ack(lease)
            again = Consumer(client, alice.number)
            popped, bodies = await again.pop(0, wait_ms=wait_ms)
            assert not popped.leases
            assert not popped.is_more

    with_group(job)


@pytest.mark.parametrize("late", [FrameKind.POP, FrameKind.LEAVE])
def test_request_that_comes_late_ends_no_list_of_what_a_consumer_has(late: FrameKind) -> None:
    """The request is of a connection that the consumer has given up."""

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"x"], 0)
        assert (await alice.pop(1, invisible_ms=60_000))[1] == [b"x"]
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            back = Consumer(other, alice.number)
            async with trio.open_nursery() as nursery:

                async def resume() -> None:
                    popped, bodies = await back.pop(5, wait_ms=1000)
                    # An empty answer says that the list goes on.
                    assert bodies == [b"x"] or popped.is_more
                    assert bodies or (await back.pop(5, wait_ms=1000))[1] == [b"x"]

                nursery.start_soon(resume)
                # Not yet in the log.
                await trio.sleep(0.00005)
                pop = Pop(1, alice.number, ALICE, 1, 0, 60_000, 1 << 20)
                leave = Leave(1, alice.number, ALICE)
                await client.request(late, pack(pop if late is FrameKind.POP else leave))

    with_group(job)


def test_late_word_that_a_consumer_leaves_does_not_end_the_wait_of_the_one_that_is_back() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await alice.pop(0)
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            back = Consumer(other, alice.number)
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    assert (await back.pop(5, wait_ms=60_000))[1] == [b"x"]

                nursery.start_soon(wait)
                await trio.sleep(1)
                assert await client.ask(FrameKind.LEAVE, Leave(1, alice.number, ALICE), Done)
                await client.produce(QUEUE, [b"x"], 0)

    with_group(job)


def test_pop_that_waits_behind_one_that_does_not_in_one_step_is_served() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await alice.pop(0)
        first = Pop(1, alice.number, ALICE, 10, 0, 10_000, 1 << 20)
        second = Pop(1, alice.number, ALICE, 10, 5000, 10_000, 1 << 20, is_kept=True)
        parts = encode_frame(FrameKind.POP, 500, pack(first))
        parts += encode_frame(FrameKind.POP, 501, pack(second))
        await client._stream.send_all(b"".join(parts))
        await trio.sleep(0.2)
        await client.produce(QUEUE, [b"x"], 0)
        with trio.fail_after(1):
            while 501 not in client._answers:
                await client._came.wait()
        assert unpack(Popped, client._answers.pop(501).header).leases

    with_group(job)
