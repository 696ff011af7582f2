"""Requests with long lists: bounded where they are decoded, and no turn of the loop does much.

Work is counted, not timed: these tests may run on a busy machine.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
import trio
import trio.lowlevel

from raftmq.broker.deliver import wide_topics
from raftmq.broker.node import Node
from raftmq.broker.serve import fetch_sessions, fetches
from raftmq.broker.serve.connection import HEADER_BYTES_MAX
from raftmq.broker.serve.dispatcher import Dispatcher
from raftmq.broker.serve.fetch_sessions import FetchSession
from raftmq.broker.serve.fetches import QUEUE_WORK, Fetches
from raftmq.client import Client
from raftmq.client.admin.dead_letters import CHANGED_BYTES
from raftmq.client.pop.settlement_sender import HEADER_BYTES, ITEM_BYTES
from raftmq.client.routing.metadata import NAMES_MAX
from raftmq.machine import pop_groups
from raftmq.machine.catalog.levels import LEVEL
from raftmq.machine.delays import ITEMS_MAX
from raftmq.pop.backlog import Backlog
from raftmq.pop.groups import PopGroup
from raftmq.pop.pieces import WIDTH_MAX
from raftmq.wire.assignment import CommitOffsets, OffsetsCommitted, QueueOffset
from raftmq.wire.codec import pack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    ClusterView,
    Done,
    FindOffset,
    FindOffsets,
    FoundOffsets,
    FrameKind,
    Hello,
    Metadata,
    Welcome,
)
from raftmq.wire.numbers import LIST_MAX
from raftmq.wire.popping import (
    RESET_QUEUES_MAX,
    SETTLE_ITEMS_MAX,
    ChangeDead,
    ResetGroup,
    Settle,
    SettleItem,
)
from raftmq.wire.producing import (
    BeginTransaction,
    CancelDelayed,
    ClaimSessions,
    SessionsClaimed,
    TransactionInput,
)
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE, in_cluster, with_client

from .test_fetch_sessions import Reader, assert_nothing_is_left, fetches_of, led_by, opened

HIGH = 2**63 - 1
"""As long on the wire as a number can be."""
LIMITED = {
    "Admin.command": "the fields of one command",
    "CancelDelayed.queues": "ITEMS_MAX of raftmq.machine.delays, in the handler",
    "CancelDelayed.dues": "the same",
    "CancelDelayed.numbers": "the same",
    "Settle.items": "SETTLE_ITEMS_MAX, in the handler",
    "ChangeDead.letters": "SETTLE_ITEMS_MAX, in the handler",
    "ChangeDead.bases": "one for each letter, in the machine",
    "ChangeDead.bits": "the same",
    "DirectoryMessage.boots": "nodes alone send it, with an entry for each member",
    "ResetGroup.queues": "RESET_QUEUES_MAX, in the handler",
    "ResetGroup.offsets": "the same",
}
"""Lists of requests that are not bounded by their type, and what bounds each."""


class PerTurn(trio.abc.Instrument):
    """Counts calls of a function by turns of the loop."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.turns: list[int] = [0]
        """Calls in each turn in which there were some."""
        function = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            self.turns[-1] += 1
            return function(*arguments, **named)

        patch.setattr(owner, name, counting)

    def begin(self) -> None:
        """Forget what was counted, and count in this run of trio."""
        self.turns = [0]
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.turns[-1]:
            self.turns.append(0)


def lists_of(message: type[msgspec.Struct]) -> Iterator[tuple[str, bool]]:
    """The lists of a message, and whether the type bounds each."""

    def bound(type_: Any) -> bool | None:
        if get_origin(type_) is Annotated:
            return get_origin(get_args(type_)[0]) is list or None
        if get_origin(type_) is list:
            return False
        return next((b for b in map(bound, get_args(type_)) if b is not None), None)

    for field in msgspec.structs.fields(message):
        is_bounded = bound(field.type)
        if is_bounded is not None:
            yield f"{message.__name__}.{field.name}", is_bounded


def test_every_list_in_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with a new list must be thought about: make it `Bounded`, or name its bound."""
    dispatchers: list[Dispatcher] = []
    answer = Dispatcher.answer

    def noting(self: Dispatcher, *arguments: Any) -> Any:
        dispatchers.append(self)
        return answer(self, *arguments)

    monkeypatch.setattr(Dispatcher, "answer", noting)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(1) as client:
            await client.view()

    in_cluster(scenario)
    requests = [each.message for each in dispatchers[-1]._routes.values() if each.message]
    found = dict(each for message in requests for each in lists_of(message))
    assert sum(found.values()) >= 7
    assert {name for name, is_bounded in found.items() if not is_bounded} == set(LIMITED)


MANY = LIST_MAX + 1
REQUESTS: list[tuple[int, msgspec.Struct, type[msgspec.Struct], str]] = [
    (FrameKind.FETCH, Fetch([FetchFrom(QUEUE, 0)] * MANY, 0, 1), Fetched, "Fetch.queues"),
    (FrameKind.FETCH, Fetch([], 0, 1, forgotten=[QUEUE] * MANY), Fetched, "Fetch.forgotten"),
    (FrameKind.METADATA, Metadata(["t"] * MANY), ClusterView, "Metadata.topics"),
    (
        FrameKind.COMMIT,
        CommitOffsets("g", [QueueOffset(QUEUE, 0)] * MANY),
        OffsetsCommitted,
        "CommitOffsets.offsets",
    ),
    (
        FrameKind.OFFSETS,
        FindOffsets([FindOffset(QUEUE, 0)] * MANY),
        FoundOffsets,
        "FindOffsets.queues",
    ),
    (
        FrameKind.SESSIONS,
        ClaimSessions(1, 1, [QUEUE] * MANY, 1),
        SessionsClaimed,
        "ClaimSessions.queues",
    ),
    (
        FrameKind.BEGIN,
        BeginTransaction(1, 1, "", "", [TransactionInput(1, 1, 1, 0, b"\x01")] * MANY),
        OffsetsCommitted,
        "BeginTransaction.inputs",
    ),
]


def test_a_list_beyond_its_bound_is_refused_with_the_bound_and_the_connection_goes_on() -> None:
    async def scenario(cluster: Cluster) -> list[str]:
        await cluster.found("t", 1)
        texts = []
        async with cluster.client(1) as client:
            for kind, request, answer, _ in REQUESTS:
                with pytest.raises(Refused) as refused:
                    await client.ask(kind, request, answer)
                assert refused.value.reply.code == "bad_argument"
                texts.append(refused.value.reply.message)
            names = [f"n{n}" for n in range(LIST_MAX - 1)] + ["t"]
            view = await client.ask(FrameKind.METADATA, Metadata(names), ClusterView)
            assert [topic.name for topic in view.topics] == ["t"]
        return texts

    texts = in_cluster(scenario)
    for (*_, field), text in zip(REQUESTS, texts, strict=True):
        assert text.startswith(f"{field}: ")
        assert f"<= {LIST_MAX}" in text


def test_the_longest_requests_of_our_client_fit_into_a_header() -> None:
    wide = bytes(WIDTH_MAX // 8)
    letters = [HIGH] * SETTLE_ITEMS_MAX
    many = [SettleItem(1, HIGH, HIGH, b"\x01", HIGH)] * min(
        HEADER_BYTES // (ITEM_BYTES + 1), SETTLE_ITEMS_MAX
    )
    large = [SettleItem(1, HIGH, HIGH, wide)] * (HEADER_BYTES // (ITEM_BYTES + len(wide)) + 1)
    bits = [bytes(CHANGED_BYTES // SETTLE_ITEMS_MAX)] * (SETTLE_ITEMS_MAX - 1) + [wide]
    handed = [TransactionInput(HIGH, HIGH, HIGH, HIGH, b"\x01")] * LIST_MAX
    queues, cancelled = [HIGH] * LIST_MAX, [HIGH] * ITEMS_MAX
    longest: list[msgspec.Struct] = [
        Fetch(
            [FetchFrom(HIGH, HIGH)] * LIST_MAX, 60_000, 1 << 24, "g" * 127, HIGH, HIGH, HIGH, queues
        ),
        Metadata(["n" * 127] * NAMES_MAX, True, HIGH),
        CommitOffsets("g" * 255, [QueueOffset(HIGH, HIGH, HIGH)] * LIST_MAX, HIGH, HIGH, True),
        FindOffsets([FindOffset(HIGH, HIGH)] * LIST_MAX),
        ClaimSessions(HIGH, HIGH, queues, HIGH, HIGH, HIGH),
        CancelDelayed(HIGH, cancelled, cancelled, cancelled, HIGH),
        ResetGroup(HIGH, HIGH, queues[:RESET_QUEUES_MAX], queues[:RESET_QUEUES_MAX], HIGH),
        BeginTransaction(HIGH, HIGH, "", "n" * 1000, handed),
        Settle(HIGH, HIGH, HIGH, HIGH, many),
        Settle(HIGH, HIGH, HIGH, HIGH, large),
        ChangeDead(HIGH, HIGH, letters, True, letters, bits, HIGH),
    ]
    for request in longest:
        assert len(pack(request)) <= HEADER_BYTES_MAX, type(request).__name__


def test_a_longer_header_is_refused_of_a_client_and_taken_of_a_node() -> None:
    request = Metadata(["n" * 100] * (HEADER_BYTES_MAX // 100))
    header = pack(request)
    assert len(header) > HEADER_BYTES_MAX

    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 1)
        async with cluster.client(1) as client:
            # Refused before it has come.
            frame = b"".join(encode_frame(FrameKind.METADATA, 7, header))
            words = await client.last_words(frame[:100])
        async with cluster.connection(1) as node:
            hello = Hello(PROTOCOL, "", 2, cluster.nodes[2].incarnation, "test", level=LEVEL)
            await node.ask(FrameKind.HELLO, hello, Welcome)
            await node.ask(FrameKind.METADATA, request, ClusterView)
        return words.message

    message = in_cluster(scenario)
    assert message == f"frame header of {len(header)} bytes; the limit is {HEADER_BYTES_MAX}"


# Fetches


def test_a_fetch_looks_at_some_queues_in_each_turn_and_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "BATCHES_MAX", 8 * QUEUE_WORK)
    looks = PerTurn(monkeypatch, Fetches, "_find")

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 300)
        queues = led_by(cluster, 1, 300)
        assert len(queues) > 90
        async with cluster.client(1) as client:
            reader = Reader(client)
            looks.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(reader.ask, *[FetchFrom(q, 0) for q in queues]))
                await trio.sleep(1)
                # All rest: the look went on in other turns until it had seen each of them once.
                assert max(looks.turns) == 8
                assert sum(looks.turns) == len(queues)
                assert set(fetches_of(cluster, 1)._parked) == set(queues)
                await client.produce(queues[-1], [b"x"], 0)
            assert reader.bodies == {queues[-1]: [b"x"]}
            # Those that have something at the beginning of a look do not hide the others.
            for number, queue in enumerate(queues):
                await client.produce(queue, [b"y"], 0, producer=number + 2)
            looks.begin()
            while sum(map(len, reader.bodies.values())) < len(queues) + 1:
                await reader.ask()
            assert max(looks.turns) <= 8
            assert all(reader.bodies[queue][-1] == b"y" for queue in queues)

    in_cluster(scenario)


def test_a_fetch_whose_connection_ends_between_two_turns_looks_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "BATCHES_MAX", QUEUE_WORK)
    looks = PerTurn(monkeypatch, Fetches, "_find")

    retry = Fetches._retry

    def ending(self: Fetches, session: FetchSession) -> None:
        if sum(looks.turns) == 3:
            session.connection.end()
        retry(self, session)

    monkeypatch.setattr(Fetches, "_retry", ending)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 300)
        queues = led_by(cluster, 1, 300)
        async with cluster.client(1) as client, trio.open_nursery() as nursery:
            looks.begin()
            nursery.start_soon(partial(Reader(client).ask, *[FetchFrom(q, 0) for q in queues]))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert 3 <= sum(looks.turns) < 30 < len(queues)
        assert_nothing_is_left(fetches_of(cluster, 1))

    in_cluster(scenario)


def test_a_look_goes_through_a_bounded_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "BATCHES_MAX", 20)

    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("t", 30)
        queues = led_by(cluster, 1, 30)[:6]
        async with cluster.client(1) as client:
            for queue in queues:
                for number in range(9):
                    await client.produce(queue, [b"x"], number, producer=queue)
            reader = Reader(client)
            answers = [len((await reader.ask(*[FetchFrom(q, 0) for q in queues])).queues)]
            while sum(map(len, reader.bodies.values())) < 54:
                answers.append(len((await reader.ask()).queues))
        return answers

    # A queue and its nine batches make 11: two of them are beyond 20.
    assert in_cluster(scenario) == [2, 2, 2]


def test_session_of_more_queues_than_one_request_has_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_sessions, "LIST_MAX", 4)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 30)
        queues = led_by(cluster, 1, 30)[:6]
        async with cluster.client(1) as client:
            reader = await opened(cluster, client, queues[:4])
            assert reader.session
            reader.wait_ms = 0
            await reader.ask(FetchFrom(queues[4], 0))
            assert not reader.session
        await trio.sleep(1)
        assert_nothing_is_left(fetches_of(cluster, 1))

    in_cluster(scenario)


def test_sessions_of_a_connection_that_closes_end_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "LIST_MAX", 5)
    ended = PerTurn(monkeypatch, Fetches, "_unregister")

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 30)
        queues = led_by(cluster, 1, 30)[:4]
        async with cluster.client(1) as client:
            for _ in range(10):
                await opened(cluster, client, queues)
            ended.begin()
        await trio.sleep(1)
        assert_nothing_is_left(fetches_of(cluster, 1))

    in_cluster(scenario)
    assert sum(ended.turns) == 40
    assert max(ended.turns) == 8


# Pops


def test_a_first_pop_makes_backlogs_for_what_it_hands_out_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_groups, "SHOWN_MAX", 10)
    made: list[int] = []
    make = PopGroup._backlog

    def counting(self: PopGroup, start: int) -> Backlog:
        made.append(start)
        return make(self, start)

    monkeypatch.setattr(PopGroup, "_backlog", counting)

    async def job(cluster: Cluster, mq: Client) -> list[bytes]:
        async with mq.producer("orders") as producer:
            for queue in range(300):
                await producer.send(b"%d" % queue, queue=queue)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            return (await consumer.pop(4, wait=5.0)).bodies

    assert len(with_client(job, queues=300)) > 0
    # At each of three replicas, of up to three data groups.
    assert 0 < len(made) <= 4 * 3 * 3


def test_a_pop_of_a_wide_topic_gets_no_more_leases_than_an_answer_has_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_topics, "WIDE_QUEUES", 5)

    async def scenario(cluster: Cluster) -> list[int]:
        await cluster.found("orders", 30)
        queues = led_by(cluster, 1, 30)
        async with cluster.client(cluster.leader(0)) as client:
            number, _ = await client.admin("attach", "orders", "billing", "pop", False)
        async with cluster.client(1) as client:
            for queue in queues:
                await client.produce(queue, [b"x", b"y"], 0, producer=queue)
            consumer = Consumer(client, number)
            got = []
            while bodies := (await consumer.pop(100))[1]:
                got.append(len(bodies))
        assert sum(got) == 2 * len(queues)
        return got

    assert max(in_cluster(scenario)) == 5


def test_a_change_of_the_catalog_looks_for_lost_topics_and_not_for_lost_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = PerTurn(monkeypatch, Node, "source")

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 90)
        queues = led_by(cluster, 1, 90)
        async with cluster.client(1) as client, trio.open_nursery() as nursery:
            reader = Reader(client)
            nursery.start_soon(partial(reader.ask, *[FetchFrom(q, 0) for q in queues]))
            await trio.sleep(1)
            sources.begin()
            async with cluster.client(cluster.leader(0)) as admin:
                await admin.admin("create_topic", "u", 1)
                await trio.sleep(1)
                assert sources.turns == [0]
                await admin.admin("delete_topic", "t")
            await trio.sleep(1)
            assert set(reader.errors) == set(queues)

    in_cluster(scenario)


def test_a_reset_names_each_queue_once() -> None:
    async def job(_: Cluster, client: RawClient, consumer: Consumer) -> None:
        twice = ResetGroup(1, consumer.number, [QUEUE, QUEUE], [0, 0])
        with pytest.raises(Refused, match="bad_argument: a reset names each queue once"):
            await client.ask(FrameKind.RESET, twice, Done)
        await client.ask(FrameKind.RESET, ResetGroup(1, consumer.number, [QUEUE], [0]), Done)

    with_group(job)
