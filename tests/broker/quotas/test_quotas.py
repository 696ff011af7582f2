"""Quotas on simulated nodes: rates hold, order and order alone is kept, and others pass."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from raftmq.batch import MESSAGES_MAX, Compression, encode
from raftmq.broker.quotas import throttle_times
from raftmq.broker.quotas.quotas import HOLD_SECONDS_MAX, RETRY_SECONDS_MAX
from raftmq.broker.serve.requests import LARGE_BYTES
from raftmq.broker.settings import Limits
from raftmq.client import Client
from raftmq.errors import Reason
from raftmq.machine.catalog.quotas import Subject, SubjectKind
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.popping import Leave
from tests.broker.harness import Cluster, Refused
from tests.broker.popping import ALICE as CONSUMER
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE, bodies, in_cluster

from .throttled import (
    ALICE,
    BOB,
    TOPIC,
    Producing,
    alice_attaches,
    as_client,
    leader,
    put_quota,
    spread,
    with_users,
)

COUNT_AT = 40
"""Where a batch states the number of its messages."""
SIZE = 100_000
"""About the bytes of a batch here; the head takes some."""


@asynccontextmanager
async def alice_producing(cluster: Cluster, **amounts: int) -> AsyncIterator[Producing]:
    """Alice under a quota, who sends batches and waits for no answer."""
    await put_quota(cluster, "user", ALICE, **amounts)
    async with (
        cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice,
        trio.open_nursery() as nursery,
    ):
        yield Producing(alice, nursery)


# Rates


def test_a_subject_that_is_held_longest_is_remembered_though_many_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttle_times, "SUBJECTS_MAX", 3)
    counts = throttle_times.ThrottleTimes()
    for number in range(3):
        counts.note(Subject(SubjectKind.USER, f"old-{number}"), 5.0)
    for number in range(100):
        counts.note(Subject(SubjectKind.USER, "worst"), 3.0)
        counts.note(Subject(SubjectKind.USER, f"new-{number}"), 0.1)
    assert counts.most(1)[0][0] == ("user", "worst")


def test_batches_of_a_user_take_their_turns_at_the_rate() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=SIZE) as producing:
            await producing.send(*[SIZE - 200] * 5)
            # Two at once: an empty bucket, and a burst. Then one a second.
            times = await producing.answered(5)
            assert spread(times) == [0.0, 0.0, 1.0, 2.0, 3.0]
            assert producing.order == [0, 1, 2, 3, 4]
            assert [producing.told_ms(n) // 100 for n in range(5)] == [0, 0, 9, 19, 29]
        assert len(await bodies(cluster, QUEUE)) == 5

    with_users(scenario)


def test_a_request_that_would_be_held_too_long_is_told_when_to_come_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_messages=2)
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            await alice.produce(QUEUE, [b"x"] * 10, 0)
            # 10 are in the bucket, and 2 of them are a burst.
            for _ in range(2):
                with pytest.raises(Refused) as refused:
                    await alice.produce(QUEUE, [b"y"], 10)
                reply = refused.value.reply
                assert reply.code == "busy"
                # What is refused is not poured in.
                assert 3_500 < reply.retry_ms <= 4_000
                assert "user 'alice' has a quota of 2 messages a second to write" in reply.message
                assert "raftmq quota set user alice` and all amounts of the" in reply.message
            await trio.sleep(reply.retry_ms / 1000)
            assert not (await alice.produce(QUEUE, [b"y"], 10)).throttle_ms
        assert len(await bodies(cluster, QUEUE)) == 11

    with_users(scenario)


def test_small_batches_that_claim_many_messages_use_up_no_quota() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found(TOPIC, 1)
        await put_quota(cluster, "topic", TOPIC, write_messages=100)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            claims = bytearray(encode([b""]).to_bytes(queue=QUEUE))
            struct.pack_into("<I", claims, COUNT_AT, MESSAGES_MAX)
            for _ in range(3):
                with pytest.raises(Refused) as refused:
                    await client.request(FrameKind.PRODUCE, b"", [bytes(claims)])
                assert refused.value.reply.code == Reason.CORRUPT_BATCH.value
            assert not (await client.produce(QUEUE, [b"x"], 0)).throttle_ms

    in_cluster(scenario)


def test_requests_of_other_users_are_not_held_and_have_buckets_of_their_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", "*", write_messages=10)
        node = cluster.leader_of(QUEUE)
        async with cluster.client(node, user=ALICE) as alice, cluster.client(node, user=BOB) as bob:
            await alice.produce(QUEUE, [b"a"] * 1000, 0)
            with pytest.raises(Refused, match="user 'alice' has a quota of 10"):
                await alice.produce(QUEUE, [b"a"], 1000)
            assert not (await bob.produce(QUEUE, [b"b"], 0, producer=2)).throttle_ms
            await put_quota(cluster, "user", BOB)
            # A quota of its own takes the place of the one for all, also without a bound.
            await bob.produce(QUEUE, [b"b"] * 1000, 1, producer=2)
            assert not (await bob.produce(QUEUE, [b"b"], 1001, producer=2)).throttle_ms

    with_users(scenario)


def test_a_topic_has_a_quota_without_users_and_other_topics_pass() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found(TOPIC, 1)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("create_topic", "free", 1, TOPIC)
            with pytest.raises(Refused, match=r"access\.is_on"):
                await client.admin("put_quota", ["user", ALICE], [1])
        await put_quota(cluster, "topic", TOPIC, write_messages=10)
        free = QUEUE + (1 << 16)
        async with (
            cluster.client(cluster.leader_of(QUEUE)) as client,
            trio.open_nursery() as nursery,
        ):
            await client.produce(QUEUE, [b"x"] * 30, 0, producer=3)
            held, passing = Producing(client, nursery), Producing(client, nursery)
            await held.send(10)
            await passing.send(10, queue=free)
            assert await passing.answered(1) < [0.2]
            assert not passing.told_ms(0)
            assert await held.answered(1) > [1.9]
            assert held.told_ms(0) > 1900

    in_cluster(scenario)


def test_an_answer_to_a_fetch_is_cut_and_the_next_one_is_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.leader_of(QUEUE)
        async with cluster.client(node, user=ALICE) as alice:
            for n in range(10):
                await alice.produce(QUEUE, [bytes(SIZE)], n)
            await put_quota(cluster, "user", ALICE, read_bytes=2 * SIZE)
            began, offset, seconds = trio.current_time(), 0, []
            while offset < 10:
                fetched, body = await alice.fetch(QUEUE, offset)
                offset += len(memoryview(fetched.queues[0].sizes).cast("I"))
                seconds.append(trio.current_time() - began)
                assert len(body) <= 3 * (SIZE + 200)
            # 10 batches at 2 a second, of which a burst and one batch come at once.
            assert 3 <= seconds[-1] <= 4.5
            assert fetched.throttle_ms > 0

    with_users(scenario)


def test_a_fetch_brings_as_many_messages_as_the_quota_has_room_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            for n in range(100):
                await alice.produce(QUEUE, [b"x"] * 10, 10 * n)
            await put_quota(cluster, "topic", TOPIC, read_messages=100)
            fetched, _ = await alice.fetch(QUEUE, 0)
            assert len(memoryview(fetched.queues[0].sizes).cast("I")) == 10

    with_users(scenario)


# What passes, and what ends


async def hold_batches(producing: Producing, *sizes: int) -> None:
    """Fill a bucket with a large batch, then send batches that are held."""
    await producing.send(350_000)
    await producing.answered(1)
    await producing.send(*sizes)
    await trio.sleep(0.1)
    assert len(producing.answers) == 1


def test_other_requests_of_the_connection_pass_while_batches_are_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_bytes=100_000)
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            number, _ = await alice_attaches(cluster, alice)
            async with trio.open_nursery() as nursery:
                consumer = Consumer(alice, number)
                producing = Producing(alice, nursery)
                await hold_batches(producing, 10, 10)
                began = trio.current_time()
                popped, _ = await consumer.pop(1)
                assert await consumer.ack(popped.leases[0]) == [1]
                await alice.view()
                assert trio.current_time() - began < 0.2
                assert len(producing.answers) == 1
                await producing.answered(3)

    with_users(scenario)


def test_another_quota_holds_at_once_for_batches_that_wait_and_keeps_their_order() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await hold_batches(producing, 10, 10, 10)
            await put_quota(cluster, "user", ALICE, write_bytes=10_000_000)
            await producing.send(10)
            times = await producing.answered(5)
            assert times[-1] < 1.0
            assert producing.order == [0, 1, 2, 3, 4]

    with_users(scenario)


def test_a_batch_that_is_checked_for_long_is_not_overtaken_by_one_that_was_held_behind_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_messages=10)
        async with (
            cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice,
            trio.open_nursery() as nursery,
        ):
            await alice.produce(QUEUE, [b"x"] * 30, 0, producer=2)
            producing = Producing(alice, nursery)
            # The large one is decompressed on the reading thread.
            await producing.send(4 * LARGE_BYTES, compression=Compression.ZSTD)
            await producing.send(10)
            await trio.sleep(0.1)
            await put_quota(cluster, "user", ALICE)
            await producing.answered(2)
            assert producing.order == [0, 1]

    with_users(scenario)


def test_without_a_quota_batches_that_wait_go_on_before_later_ones() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await hold_batches(producing, 10, 10)
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("drop_quota", ["user", ALICE])
            await producing.send(10)
            await producing.answered(4)
            assert producing.order == [0, 1, 2, 3]
            await trio.sleep(0.1)
            assert not leader(cluster).quotas.is_on

    with_users(scenario)


def test_a_lower_quota_holds_no_request_for_longer_than_it_may() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await hold_batches(producing, 10, 10)
            began = trio.current_time()
            await put_quota(cluster, "user", ALICE, write_bytes=100)
            await producing.answered(3)
            assert trio.current_time() - began < HOLD_SECONDS_MAX + 0.5

    with_users(scenario)


def test_a_client_that_was_told_a_long_wait_goes_on_soon_after_the_quota_was_dropped() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_bytes=1000)

        async def produce(mq: Client) -> None:
            async with mq.producer(TOPIC) as producer:
                await producer.send(bytes(600_000))
                began = trio.current_time()
                # For this one the quota would be used up for ten minutes.
                pending = producer.send_nowait(b"x", timeout=1000.0)
                await trio.sleep(1)
                async with cluster.client(cluster.leader(0)) as admin:
                    await admin.admin("drop_quota", ["user", ALICE])
                await pending.wait()
                assert trio.current_time() - began < 2 * RETRY_SECONDS_MAX

        await as_client(cluster, ALICE, produce)

    with_users(scenario)


def test_a_connection_that_closes_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_bytes=100_000)
        node = leader(cluster)
        async with (
            cluster.client(node.id, user=ALICE) as alice,
            trio.open_nursery() as nursery,
        ):
            producing = Producing(alice, nursery)
            await hold_batches(producing, 10, 10)
            assert node.quotas.status()["held"] == 2
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert (node.quotas.status()["held"], node.quotas.status()["held_bytes"]) == (0, 0)
        await trio.sleep(HOLD_SECONDS_MAX)
        assert len(await bodies(cluster, QUEUE)) == 1

    with_users(scenario)


def test_a_batch_that_is_held_when_its_connection_closes_costs_the_quota_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, write_bytes=100_000)
        node = leader(cluster)
        async with (
            cluster.client(node.id, user=ALICE) as other,
            trio.open_nursery() as nursery,
        ):
            behind, later = Producing(other, nursery, 2), Producing(other, nursery, 3)
            async with cluster.client(node.id, user=ALICE) as alice, trio.open_nursery() as inner:
                await hold_batches(Producing(alice, inner), 40_000)
                await behind.send(10)
                await trio.sleep(0.1)
                assert node.quotas.status()["held"] == 2
                inner.cancel_scope.cancel()
            await trio.sleep(0.1)
            assert node.quotas.status()["held"] == 1
            await later.send(10)
            # After the 350,000 of the first batch, and not after 390,000.
            assert spread(await behind.answered(1)) == [2.5]
            assert spread(await later.answered(1)) == [2.5]

    with_users(scenario)


def test_requests_that_are_held_take_a_part_of_the_node_s_bytes_at_the_most() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await producing.send(250_000)
            await producing.answered(1)
            await producing.send(60_000, 60_000)
            await trio.sleep(0.1)
            # The second one would be held for less than it may, and there is no room for it.
            answer = producing.answers[2][1]
            assert isinstance(answer, ErrorReply)
            assert answer.code == "busy"
            assert 0 < answer.retry_ms < HOLD_SECONDS_MAX * 1000
            assert leader(cluster).quotas.status()["held_bytes"] < 100_000

    with_users(scenario, limits=Limits(requests_bytes_max=400_000))


def test_batches_that_wait_go_to_the_next_leader_when_this_one_is_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await hold_batches(producing, 10)
            group = leader(cluster).groups[1]
            follower = next(n for n in cluster.nodes if n != cluster.leader(1))
            group.transfer(group.voter_of(follower))
            await producing.answered(2)
            answer = producing.answers[1][1]
            assert isinstance(answer, ErrorReply)
            assert answer.code == "not_leader"

    with_users(scenario)


def test_batches_that_go_to_the_next_leader_cost_the_quota_at_this_one_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with alice_producing(cluster, write_bytes=100_000) as producing:
            await hold_batches(producing, 40_000, 10)
            group = leader(cluster).groups[1]
            follower = next(n for n in cluster.nodes if n != cluster.leader(1))
            group.transfer(group.voter_of(follower))
            # The second one does not wait for the bytes of the first one.
            assert spread(await producing.answered(3)) == [0.0, 2.5, 2.5]

    with_users(scenario)


def test_a_fetch_that_is_held_and_recalled_ends_at_its_turn() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            await alice.produce(QUEUE, [b"x"] * 30, 0)
            await put_quota(cluster, "user", ALICE, read_messages=10)
            await alice.fetch(QUEUE, 0)
            began = trio.current_time()
            wait = pack(Fetch([FetchFrom(QUEUE, 30)], 60_000, 1 << 20))
            async with trio.open_nursery() as nursery:
                answers: list[Fetched] = []

                async def fetch() -> None:
                    frame = await alice.request(FrameKind.FETCH, wait)
                    answers.append(unpack(Fetched, frame.header))

                nursery.start_soon(fetch)
                await trio.sleep(0.1)
                correlation = next(alice._correlation) - 1
                forget = encode_frame(FrameKind.FORGET, correlation, b"")
                await alice._stream.send_all(b"".join(forget))
            assert 1.8 < trio.current_time() - began < 2.3
            assert not answers[0].queues
            assert answers[0].throttle_ms > 1800

    with_users(scenario)


def test_a_pop_that_is_held_ends_with_its_consumer() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            await alice.produce(QUEUE, [b"x"] * 30, 0)
            number, _ = await alice_attaches(cluster, alice)
            await put_quota(cluster, "user", ALICE, read_messages=15)
            consumer = Consumer(alice, number)
            # It is handed what the quota has room for.
            popped, got = await consumer.pop(30)
            assert len(got) == 15
            for lease in popped.leases:
                await consumer.ack(lease)
            async with trio.open_nursery() as nursery:
                refused: list[ErrorReply] = []

                async def pop() -> None:
                    try:
                        await consumer.pop(1, wait_ms=60_000)
                    except Refused as error:
                        refused.append(error.reply)

                await alice.fetch(QUEUE, 0)
                nursery.start_soon(pop)
                await trio.sleep(0.1)
                await alice.request(FrameKind.LEAVE, pack(Leave(1, number, CONSUMER)))
                await trio.sleep(0.1)
                assert refused[0].code == "unavailable"
            # Its turn would have come by now.
            await trio.sleep(3)
            assert (await consumer.backlog()).leased == 0

    with_users(scenario)
