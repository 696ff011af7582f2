"""Quotas of reads on simulated nodes: what is under way, or held, counts for all others."""

from functools import partial

import trio

from raftmq.broker.quotas.quotas import HOLD_SECONDS_MAX
from raftmq.broker.settings import Limits
from raftmq.machine.catalog.quotas import SubjectKind
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, FetchFrom
from raftmq.wire.frame import Frame, encode_frame
from raftmq.wire.messages import PROTOCOL, ErrorReply, FindKey, FoundKey, FrameKind, Hello
from tests.broker.harness import Cluster
from tests.broker.popping import ALICE as CONSUMER
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE

from .throttled import ALICE, BOB, TOPIC, alice_attaches, leader, put_quota, with_users

SIZE = 100_000
"""About the bytes of a batch here; the head takes some."""


def test_a_pop_that_only_has_messages_in_hand_sent_again_is_held() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.leader_of(QUEUE)
        async with cluster.client(node, user=ALICE) as alice:
            await alice.produce(QUEUE, [bytes(SIZE)], 0)
            number, _ = await alice_attaches(cluster, alice)
            await put_quota(cluster, "user", ALICE, read_bytes=SIZE)
            consumer, idle = Consumer(alice, number), Consumer(alice, number, me=CONSUMER + 1)
            assert len((await consumer.pop(1, invisible_ms=60_000))[1]) == 1
            began = trio.current_time()
            for n in range(4):
                consumer.is_new = True
                popped, got = await consumer.pop(0)
                assert len(got) == 1
                # The messages that the first POP brought are a burst.
                assert (popped.throttle_ms > 900) == (n > 0)
                # One that brings nothing need not wait: a consumer that ends.
                idle.is_new = True
                assert not (await idle.pop(0))[0].throttle_ms
            assert 2.5 < trio.current_time() - began < 4

    with_users(scenario)


def test_a_search_by_key_brings_no_more_messages_than_the_quota_has_room_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client(cluster.leader_of(QUEUE), user=ALICE) as alice:
            for n in range(6):
                await alice.produce(QUEUE, [b"x"] * 100, 100 * n, keys=[b"k"] * 100)
            await put_quota(cluster, "topic", TOPIC, read_messages=150)
            request = FindKey(1, QUEUE >> QUEUE_BITS, b"k", 0, 1000)
            found = await alice.ask(FrameKind.KEY, request, FoundKey)
            # The batch that passes the quota is whole.
            assert [batch.base_offset for batch in found.batches] == [500, 400]

    with_users(scenario)


def test_reads_that_are_held_together_see_each_other_in_the_quota() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = leader(cluster)
        async with (
            cluster.client(node.id, user=ALICE) as alice,
            cluster.client(node.id, user=BOB) as bob,
        ):
            await alice.produce(QUEUE, [bytes(SIZE - 200)], 0)
            await put_quota(cluster, "topic", TOPIC, read_bytes=SIZE)
            fetch = (FrameKind.FETCH, pack(Fetch([FetchFrom(QUEUE, 0)], 0, 1 << 20)), ())
            began = trio.current_time()
            frames = await alice.request_all(*[fetch] * 20)
            # A burst of a second and one more, then one a second.
            sizes = [len(frame.body) for frame in frames if frame.kind != FrameKind.ERROR]
            assert [size // (SIZE - 200) for size in sizes] == [1] * 5
            refused = [unpack(ErrorReply, frame.header) for frame in frames[5:]]
            assert {reply.code for reply in refused} == {"busy"}
            assert all(0 < reply.retry_ms < 2000 for reply in refused)
            assert HOLD_SECONDS_MAX - 0.1 < trio.current_time() - began < HOLD_SECONDS_MAX + 0.2
            assert node.quotas.status()["held"] == 0
            # Another user of the topic waits for a turn, and not for a debt of those.
            fetched, body = await bob.fetch(QUEUE, 0)
            assert len(body) > SIZE - 200
            assert fetched.throttle_ms < 1500

    with_users(scenario)


def test_a_read_whose_connection_closes_lets_the_next_of_its_line_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = leader(cluster)
        async with cluster.client(node.id, user=BOB) as bob:
            await bob.produce(QUEUE, [bytes(SIZE - 200)], 0)
            await put_quota(cluster, "topic", TOPIC, read_bytes=SIZE)
            await put_quota(cluster, "user", BOB, read_bytes=SIZE // 2)
            fetch = pack(Fetch([FetchFrom(QUEUE, 0)], 0, 1 << 20))
            began = trio.current_time()
            async with (
                trio.open_nursery() as nursery,
                cluster.client(node.id, user=ALICE) as alice,
            ):
                await alice.request_all(*[(FrameKind.FETCH, fetch, ())] * 2)
                parts = encode_frame(FrameKind.FETCH, 1000, fetch)
                await alice._stream.send_all(b"".join(parts))
                await trio.sleep(0.1)
                nursery.start_soon(bob.fetch, QUEUE, 0)
                await trio.sleep(0.1)
                assert node.quotas.status()["held"] == 2
            # A burst and one more, then one a second: the turn of the one that left.
            assert 0.9 < trio.current_time() - began < 1.3
            # By the quota of this user it waits in another line.
            fetched, _ = await bob.fetch(QUEUE, 0)
            assert 900 < fetched.throttle_ms < 1300
            assert not node.quotas._lanes._lines

    with_users(scenario)


def test_reads_from_disk_count_in_the_quota_before_they_are_done() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = leader(cluster)
        async with cluster.client(node.id, user=ALICE) as alice:
            for n in range(30):
                await alice.produce(QUEUE, [bytes(SIZE)], n, keys=[b"k"])
            await put_quota(cluster, "topic", TOPIC, read_bytes=2 * SIZE)
            group = node.groups[1]
            assert group.cache.get(group.index.lookup(QUEUE, 0, 1)[0].index) is None
            kinds = {
                FrameKind.FETCH: pack(Fetch([FetchFrom(QUEUE, 0)], 0, 1)),
                FrameKind.KEY: pack(FindKey(1, QUEUE >> QUEUE_BITS, b"k", 0, 1)),
            }
            for kind, request in kinds.items():
                began = trio.current_time()
                frames = await alice.request_all(*[(kind, request, ())] * 20)
                seconds = trio.current_time() - began
                size = sum(len(frame.body) for frame in frames)
                # The rate and a burst, and the reads that are under way together.
                assert size < 2 * SIZE * (seconds + 1) + 5 * SIZE
                assert size >= 5 * SIZE
                await trio.sleep(5)
                for bucket in node.quotas._meters[SubjectKind.TOPIC][TOPIC].reads:
                    assert bucket.level(trio.current_time()) == 0
                assert not node.quotas._lanes._lines

    with_users(scenario)


def test_fetches_that_wait_for_one_message_have_it_one_by_one_as_the_quota_allows() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = leader(cluster)
        async with (
            cluster.client(node.id, user=ALICE) as alice,
            cluster.client(node.id, user=BOB) as bob,
        ):
            await put_quota(cluster, "topic", TOPIC, read_bytes=SIZE)
            fetch = (FrameKind.FETCH, pack(Fetch([FetchFrom(QUEUE, 0)], 30_000, 1 << 20)), ())
            frames: list[Frame] = []

            async def wait() -> None:
                frames.extend(await alice.request_all(*[fetch] * 50))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(1)
                began = trio.current_time()
                await bob.produce(QUEUE, [bytes(SIZE - 200)], 0)
            # None waits on: its next request is held until it may have the message.
            assert trio.current_time() - began < 0.5
            # A burst of a second and one more; the others got nothing.
            assert sorted(len(frame.body) // (SIZE - 200) for frame in frames) == [0] * 48 + [1] * 2
            # Another user of the topic waits for a turn, and not for a debt of those.
            fetched, body = await bob.fetch(QUEUE, 0)
            assert len(body) > SIZE - 200
            assert fetched.throttle_ms < 1500

    with_users(scenario)


def test_fetches_that_are_held_bring_no_more_than_the_connection_may_hold() -> None:
    limit = 2 * SIZE

    async def scenario(cluster: Cluster) -> None:
        node = leader(cluster)
        async with (
            cluster.client(node.id, user=ALICE) as alice,
            cluster.connection(node.id, user=ALICE, is_lockstep=True) as reader,
            trio.open_nursery() as nursery,
        ):
            await alice.produce(QUEUE, [bytes(SIZE - 200)], 0)
            await put_quota(cluster, "user", ALICE, read_bytes=10 * SIZE)
            fetch = pack(Fetch([FetchFrom(QUEUE, 0)], 0, 1 << 20))
            await alice.request_all(*[(FrameKind.FETCH, fetch, ())] * 11)
            hello = Hello(PROTOCOL, "", 0, "", "x")
            nursery.start_soon(partial(reader.flood, hello, QUEUE, requests=40))
            most = 0
            with trio.move_on_after(HOLD_SECONDS_MAX + 1):
                while True:
                    most = max(most, node.load.request_bytes)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
            # The answer that passes the limit, and bytes of the requests.
            assert limit < most < limit + 2 * SIZE

    with_users(scenario, limits=Limits(connection_bytes_max=limit))
