"""Fetch sessions: a node remembers what a consumer reads, and a wake costs what has changed."""

from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from raftmq.batch import Batch
from raftmq.broker.node import Node
from raftmq.broker.serve import fetch_sessions
from raftmq.broker.serve.answers import out_of_range
from raftmq.broker.serve.fetch_sessions import FetchSession
from raftmq.broker.serve.fetches import Fetches
from raftmq.broker.settings import Limits
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    FrameKind,
)
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import QUEUE, in_cluster


class Reader:
    """A session as a client has it: offsets that it keeps itself, and the bodies read."""

    def __init__(self, client: RawClient, *, wait_ms: int = 60_000, **more: Any) -> None:
        self.client = client
        self.wait_ms = wait_ms
        self.more = more
        self.session = 0
        self.epoch = 0
        self.offsets: dict[int, int] = {}
        self.bodies: dict[int, list[bytes]] = {}
        self.errors: dict[int, str] = {}
        self.bytes_max = 1 << 20

    async def ask(self, *queues: FetchFrom, forgotten: tuple[int, ...] = ()) -> Fetched:
        self.offsets.update({item.queue: item.offset for item in queues})
        for queue in forgotten:
            self.offsets.pop(queue, None)
        more = self.more if not self.epoch else {}
        request = Fetch(
            list(queues),
            self.wait_ms,
            self.bytes_max,
            session=self.session,
            epoch=self.epoch,
            forgotten=list(forgotten),
            **more,
        )
        frame = await self.client.request(FrameKind.FETCH, pack(request))
        fetched = unpack(Fetched, frame.header)
        self.session = fetched.session
        self.epoch = self.epoch + 1 if self.session else 0
        self.take(fetched, frame.body)
        return fetched

    def take(self, fetched: Fetched, body: bytes) -> None:
        position = 0
        for item in fetched.queues:
            if item.error is not None:
                self.errors[item.queue] = item.error.code
                del self.offsets[item.queue]
                continue
            sizes = memoryview(item.sizes).cast("I")
            masks = list(item.masks)
            for base, size in zip(memoryview(item.bases).cast("Q"), sizes, strict=True):
                batch = Batch.decode(body[position : position + size], base_offset=base)
                position += size
                at = self.offsets[item.queue]
                is_next = item.next >= 0 or base <= at
                assert is_next, "the node has skipped messages"
                assert at < base + len(batch), "the node repeats messages"
                got = self.bodies.setdefault(item.queue, [])
                mask = int.from_bytes(masks[: (len(batch) + 7) // 8], "little")
                del masks[: (len(batch) + 7) // 8]
                for n in range(max(0, at - base), len(batch)):
                    if item.next < 0 or mask >> n & 1:
                        got.append(batch.bodies[n])
                self.offsets[item.queue] = base + len(batch)
            if item.next >= 0:
                self.offsets[item.queue] = item.next


def led_by(cluster: Cluster, node: int, count: int) -> list[int]:
    return [QUEUE + n for n in range(count) if cluster.leader_of(QUEUE + n) == node]


def fetches_of(cluster: Cluster, node: int) -> Fetches:
    return cluster.nodes[node]._fetches


def assert_nothing_is_left(fetches: Fetches) -> None:
    assert len(fetches.sessions) == fetches.sessions.queues == 0
    assert not fetches._parked
    assert not fetches._filtered
    assert not fetches._needing
    assert not fetches._ahead
    assert not fetches.sessions._open
    assert not fetches.sessions._kept


async def opened(cluster: Cluster, client: RawClient, queues: list[int], **more: Any) -> Reader:
    """A session that reads these queues from the start and waits at their end."""
    reader = Reader(client, **more)
    wait_ms, reader.wait_ms = reader.wait_ms, 0
    await reader.ask(*[FetchFrom(queue, 0) for queue in queues])
    reader.wait_ms = wait_ms
    return reader


def test_wake_looks_at_the_queue_that_changed_and_at_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    real = Node.source

    def counted(node: Node, queue: int) -> Any:
        looks.append(queue)
        return real(node, queue)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3000)
        queues = led_by(cluster, 1, 3000)
        async with cluster.client(1) as client:
            reader = await opened(cluster, client, queues)
            await client.produce(queues[7], [b"0"], 0)
            await reader.ask()
            monkeypatch.setattr(Node, "source", counted)
            for n in range(1, 20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader.ask)
                    await trio.sleep(0.01)
                    looks.clear()
                    await client.produce(queues[7], [b"%d" % n], n)
                assert len(looks) < 10, looks
        assert len(queues) >= 900
        assert reader.bodies[queues[7]] == [b"%d" % n for n in range(20)]

    in_cluster(scenario)


def test_fetches_that_wait_for_one_message_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_in_step, in_steps = False, 0
    settle, answer = Node.settle, FetchSession.answer

    def settled(node: Node) -> None:
        nonlocal is_in_step
        is_in_step = True
        settle(node)
        is_in_step = False

    def answered(*arguments: Any) -> None:
        nonlocal in_steps
        in_steps += is_in_step
        answer(*arguments)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        node = cluster.leader(1)
        async with cluster.client(node) as client, cluster.client(node) as other:
            readers = [await opened(cluster, client, [QUEUE]) for _ in range(50)]
            monkeypatch.setattr("raftmq.broker.loop_budget.TURN_SECONDS", 0.0)
            monkeypatch.setattr(Node, "settle", settled)
            monkeypatch.setattr(FetchSession, "answer", answered)
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(reader.ask)
                await trio.sleep(0.1)
                await other.produce(QUEUE, [b"0"], 0)
        assert [reader.bodies for reader in readers] == [{QUEUE: [b"0"]}] * 50
        assert in_steps == 0

    in_cluster(scenario)


def test_session_goes_on_from_what_it_was_sent() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        queues = led_by(cluster, 1, 9)
        async with cluster.client(1) as client:
            for queue in queues:
                await client.produce(queue, [b"a", b"b"], 0, producer=queue)
            reader = await opened(cluster, client, queues)
            # From the middle of a batch, and one queue more often than others.
            await reader.ask(FetchFrom(queues[0], 1))
            for n in range(2, 9):
                await client.produce(queues[0], [b"c"], n, producer=queues[0])
                await reader.ask()
        assert reader.bodies == {
            queues[0]: [b"a", b"b", b"b", *[b"c"] * 7],
            queues[1]: [b"a", b"b"],
            queues[2]: [b"a", b"b"],
        }

    in_cluster(scenario)


def test_queue_that_always_has_something_starves_no_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        queues = led_by(cluster, 1, 9)
        async with cluster.client(1) as client:
            for queue in queues:
                for n in range(4):
                    await client.produce(queue, [b"%d" % n], n, producer=queue)
            reader = Reader(client)
            reader.bytes_max = 1
            await reader.ask(*[FetchFrom(queue, 0) for queue in queues])
            for _ in range(2):
                await reader.ask()
            assert [len(reader.bodies[queue]) for queue in queues] == [1, 1, 1]

    in_cluster(scenario)


@pytest.mark.parametrize("is_cold_first", [True, False])
def test_queue_on_disk_does_not_starve_while_another_always_has_something_in_memory(
    is_cold_first: bool,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        cold, hot = led_by(cluster, 1, 9)[:2]
        caches = [group.cache for group in cluster.nodes[1].groups.values()]
        async with cluster.client(1) as client:
            for n in range(3):
                await client.produce(cold, [b"%d" % n], n, producer=cold)
            reader = Reader(client)
            queues = [cold, hot] if is_cold_first else [hot, cold]
            asked = [FetchFrom(queue, 0) for queue in queues]
            for n in range(8):
                for cache in caches:
                    cache.resize(1)
                    cache.resize(1 << 20)
                await client.produce(hot, [b"%d" % n], n, producer=hot)
                await reader.ask(*asked)
                asked = []
            # Each queue has its turn.
            assert len(reader.bodies[cold]) == 3
            assert len(reader.bodies[hot]) >= 7

    in_cluster(scenario)


@pytest.mark.parametrize("is_known", [False, True])
def test_unknown_session_or_epoch_is_refused_and_nothing_is_left_of_it(is_known: bool) -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            reader = await opened(cluster, client, [QUEUE])
            if is_known:
                reader.epoch += 1
            else:
                reader.session += 1
            with pytest.raises(Refused) as refused:
                await reader.ask()
            if is_known:
                assert_nothing_is_left(fetches_of(cluster, leader))
            # All is sent again, and the session goes on.
            again = await opened(cluster, client, [QUEUE])
            await client.produce(QUEUE, [b"x"], 0)
            await again.ask()
            assert again.bodies == {QUEUE: [b"x"]}
        return refused.value.reply.code

    assert in_cluster(scenario) == "unknown_session"


def test_second_request_of_a_session_while_one_is_open_ends_the_connection() -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            reader = await opened(cluster, client, [QUEUE])
            request = pack(Fetch([], 60_000, 1, session=reader.session, epoch=1))
            frames = [
                *encode_frame(FrameKind.FETCH, 777, request),
                *encode_frame(FrameKind.FETCH, 778, request),
            ]
            error = await client.last_words(b"".join(frames))
        await trio.sleep(1)
        assert_nothing_is_left(fetches_of(cluster, leader))
        return error.message

    assert "open request" in in_cluster(scenario)


def test_session_ends_when_its_client_says_so_and_with_its_connection() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 30)
        queues = led_by(cluster, 1, 30)
        fetches = fetches_of(cluster, 1)
        async with cluster.client(1) as client:
            readers = [await opened(cluster, client, queues) for _ in range(3)]
            assert len(fetches.sessions) == 3
            assert fetches.sessions.queues == 3 * len(queues)
            last = Fetch([], 0, 0, session=readers[0].session, epoch=-1)
            assert (await client.ask(FrameKind.FETCH, last, Fetched)).session == 0
            assert len(fetches.sessions) == 2
            with pytest.raises(Refused):
                await readers[0].ask()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(readers[1].ask)
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert_nothing_is_left(fetches)

    in_cluster(scenario)


def test_recalled_request_is_answered_at_once_and_its_session_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            reader = await opened(cluster, client, [QUEUE])
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.ask)
                await trio.sleep(0.1)
                # The raw client counts its correlations from 1: Hello, the first, and this one.
                await client._stream.send_all(b"".join(encode_frame(FrameKind.FORGET, 3, b"")))
            assert trio.current_time() - begun < 1
            await client.produce(QUEUE, [b"x"], 0)
            await reader.ask()
            assert reader.bodies == {QUEUE: [b"x"]}

    in_cluster(scenario)


def test_forgotten_queue_is_silent_and_comes_back_where_it_is_asked_for() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        one, other = led_by(cluster, 1, 9)[:2]
        async with cluster.client(1) as client:
            reader = await opened(cluster, client, [one, other], wait_ms=500)
            assert (await reader.ask(forgotten=(one,))).queues == []
            await client.produce(one, [b"x", b"y"], 0)
            assert (await reader.ask()).queues == []
            await client.produce(other, [b"z"], 0)
            await reader.ask()
            await reader.ask(FetchFrom(one, 1))
        assert reader.bodies == {other: [b"z"], one: [b"y"]}

    in_cluster(scenario)


def test_queue_with_an_error_leaves_the_session_and_the_others_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        one, other = led_by(cluster, 1, 9)[:2]
        async with cluster.client(1) as client:
            reader = await opened(cluster, client, [one, other])
            await reader.ask(FetchFrom(one, 99))
            assert reader.errors == {one: "offset_out_of_range"}
            await client.produce(one, [b"x"], 0)
            await client.produce(other, [b"y"], 0)
            await reader.ask()
            assert reader.bodies == {other: [b"y"]}
            await reader.ask(FetchFrom(one, 0))
            assert reader.bodies == {other: [b"y"], one: [b"x"]}

    in_cluster(scenario)


def test_resting_queues_are_told_when_the_leader_changes_also_between_requests() -> None:
    async def scenario(cluster: Cluster) -> list[dict[int, str]]:
        await cluster.found("t", 3)
        leader = cluster.leader_of(QUEUE)
        group = cluster.nodes[leader].groups[cluster.nodes[leader].catalog.group_of(QUEUE) or 0]
        async with cluster.client(leader) as client:
            waiting = await opened(cluster, client, [QUEUE])
            between = await opened(cluster, client, [QUEUE])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waiting.ask)
                await trio.sleep(0.1)
                group.transfer(0)
            await between.ask()
            return [waiting.errors, between.errors]

    assert in_cluster(scenario) == [{QUEUE: "not_leader"}, {QUEUE: "not_leader"}]


def test_resting_queue_of_a_topic_that_is_dropped_is_told() -> None:
    async def scenario(cluster: Cluster) -> dict[int, str]:
        await cluster.found("t", 1)
        async with (
            cluster.client(cluster.leader_of(QUEUE)) as client,
            cluster.client(cluster.leader(0)) as admin,
        ):
            reader = await opened(cluster, client, [QUEUE])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.ask)
                await trio.sleep(0.1)
                await admin.admin("delete_topic", "t")
            return reader.errors

    assert in_cluster(scenario) == {QUEUE: "unknown_topic"}


@pytest.mark.parametrize("bound", ["sessions", "connection", "node"])
def test_session_beyond_a_bound_lasts_for_one_request(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "sessions":
        monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 3)
    elif bound == "connection":
        monkeypatch.setattr(fetch_sessions, "CONNECTION_QUEUES_MAX", 9)

    async def scenario(cluster: Cluster) -> None:
        if bound == "node":
            cluster.limits = Limits(fetch_session_queues_max=9)
        await cluster.found("t", 9)
        queues = led_by(cluster, 1, 9)
        assert len(queues) == 3
        fetches = fetches_of(cluster, 1)
        async with cluster.client(1) as client:
            readers = [await opened(cluster, client, queues) for _ in range(3)]
            assert all(reader.session for reader in readers)
            beyond = await opened(cluster, client, queues)
            assert beyond.session == 0
            assert len(fetches.sessions) == 3
            assert fetches.sessions.queues == 9
            # A reader beyond the bound is served without a session: it names all queues each time.
            await client.produce(queues[1], [b"x"], 0)
            await beyond.ask(*[FetchFrom(queue, 0) for queue in queues])
            assert beyond.bodies == {queues[1]: [b"x"]}
            for reader in readers:
                await reader.ask()
                assert reader.bodies == {queues[1]: [b"x"]}
            # A session that grows beyond the bound is answered, and not kept.
            if bound != "sessions":
                await client.admin("create_topic", "more", 9)
                await cluster.wait_known("more")
                more = [q for q in range(2 * QUEUE, 2 * QUEUE + 9) if cluster.leader_of(q) == 1]
                await readers[0].ask(FetchFrom(queues[1], 0), *[FetchFrom(q, 0) for q in more])
                assert readers[0].session == 0
            # The end of one session makes room for another.
            last = Fetch([], 0, 0, session=readers[1].session, epoch=-1)
            await client.ask(FrameKind.FETCH, last, Fetched)
            assert (await opened(cluster, client, queues)).session
        await trio.sleep(1)
        assert_nothing_is_left(fetches)

    in_cluster(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_random_readers_see_each_message_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: with seeks, forgetting, errors, cold reads and parts, a session reads what one reads
    who names all offsets each time."""
    random = Random(seed)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 12)
        queues = led_by(cluster, 1, 12)
        if seed % 2:
            for group in cluster.nodes[1].groups.values():
                kept = group.cache.get
                monkeypatch.setattr(
                    group.cache,
                    "get",
                    lambda i, get=kept: get(i) if random.random() < 0.5 else None,
                )
        sent: dict[int, list[bytes]] = {queue: [] for queue in queues}
        async with cluster.client(1) as client:
            reader = Reader(client, wait_ms=50)
            await reader.ask(*[FetchFrom(queue, 0) for queue in queues])
            for step in range(300):
                reader.bytes_max = random.choice([1, 50, 1 << 20])
                async with trio.open_nursery() as nursery:
                    changed: list[FetchFrom] = []
                    forgotten: list[int] = []
                    for queue in random.sample(queues, random.choice([0, 0, 0, 1, 2])):
                        held = len(sent[queue])
                        reader.bodies.pop(queue, None)
                        match random.randrange(3):
                            case 0:
                                changed.append(FetchFrom(queue, 0))
                            case 1:
                                changed.append(FetchFrom(queue, held + 100))
                            case _:
                                forgotten.append(queue)
                    changed += [
                        FetchFrom(queue, 0)
                        for queue in queues
                        if queue not in reader.offsets
                        and queue not in [item.queue for item in changed]
                        and queue not in forgotten
                        and random.random() < 0.2
                    ]
                    for item in changed:
                        reader.bodies.pop(item.queue, None)
                    asking = partial(reader.ask, *changed, forgotten=tuple(forgotten))
                    nursery.start_soon(asking)
                    for queue in random.sample(queues, random.choice([0, 1, 3])):
                        bodies = [b"%d.%d" % (step, n) for n in range(random.randrange(1, 4))]
                        first = len(sent[queue])
                        sent[queue] += bodies
                        await client.produce(queue, bodies, first, producer=queue)
            reader.bytes_max = 1 << 20
            missing = [FetchFrom(q, 0) for q in queues if q not in reader.offsets]
            for item in missing:
                reader.bodies.pop(item.queue, None)
            await reader.ask(*missing)
            while (await reader.ask()).queues:
                pass
        assert {queue: reader.bodies.get(queue, []) for queue in queues} == sent

    in_cluster(scenario, seed=seed)


@pytest.mark.parametrize(
    ("earliest", "end", "words"), [(3, 9, "holds 3..8"), (9, 9, "is empty, and goes on at 9")]
)
def test_offset_that_a_queue_has_not_is_told_beside_those_it_has(
    earliest: int, end: int, words: str
) -> None:
    refusal = out_of_range(10, earliest, end)
    assert refusal is not None
    assert refusal.message == f"there is no offset 10: the queue {words}"
    assert out_of_range(end, earliest, end) is None
