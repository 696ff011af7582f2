"""`connect(check=True)`: it finds what was broken on purpose, and nothing that others did."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import raftmq
from raftmq.batch import Batch, encode
from raftmq.checkers.witness import queues as tables
from raftmq.client import Client, connect
from raftmq.client.consume.read_ahead import Fetcher
from raftmq.client.produce.queue_sender import QueueSender
from raftmq.client.slices import Slice
from raftmq.errors import CorruptRecord, Inconsistent, OutcomeUnknown, Reason, Rejected
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import QUEUE, add
from tests.client.fake_cluster import URL, FakeCluster, Fate

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def checked(cluster: FakeCluster) -> AsyncIterator[Client]:
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster, check=True) as mq:
        yield mq


async def send(mq: Client, *bodies: bytes, **more: Any) -> None:
    async with mq.producer("orders") as producer:
        for body in bodies:
            await producer.send(body, **more)


async def test_client_that_was_not_recorded_cannot_be_checked(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(Rejected, match="check=True") as caught:
            await mq.check()
    assert caught.value.reason is Reason.BAD_ARGUMENT


async def test_nothing_done_is_unknown_and_not_valid(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        assert (await mq.check()).verdict == "unknown"


async def test_unread_messages_are_read_back(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", key="k", tag="t", props={"n": 1, "none": None, "x": float("nan")})
        add(cluster, QUEUE, 40)
        async with mq.producer("orders") as producer:
            await producer.send_many([b"b", raftmq.Outgoing(b"c", props={"m": True}), b"d"])
            await producer.send_many(bodies=[b"e"] * 5, keys=["k", None] * 2 + ["l"])
        result = await mq.check()
    assert result.verdict == "valid", str(result)
    assert result.counts["found as sent"] == 9
    assert not any(count for name, count in result.counts.items() if name.startswith("not judged"))


async def test_long_stretches_of_others_are_not_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.client.checked.checking.FETCH_MESSAGES", 10)
    async with checked(cluster) as mq:
        await send(mq, b"a")
        add(cluster, QUEUE, 1000)
        await send(mq, b"b")
        result = await mq.check()
    assert result.counts["found as sent"] == 2
    assert result.counts["delivered"] < 100


async def test_messages_that_a_consumer_read_are_not_read_again(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", b"b")
        async with mq.consumer("orders") as consumer:
            for _ in range(2):
                await anext(consumer)
        assert (await mq.check()).counts["delivered"] == 2


async def test_messages_that_retention_took_are_told_and_no_loss(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", b"b", b"c")
        cluster.trim(QUEUE, 2)
        result = await mq.check()
    assert result.verdict == "valid"
    assert result.counts["not judged: trimmed before they were read"] == 2


async def test_messages_of_a_deleted_topic_are_told_and_no_loss(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a")
        await mq.admin.delete_topic("orders")
        await mq.admin.create_topic("orders", queues=1)
        result = await mq.check()
    assert result.counts["not judged: their topic was deleted"] == 1


async def test_send_with_an_unknown_outcome_is_told_and_no_breach(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a")
        cluster.fate = lambda _, f: (
            Fate.APPLIED_AND_IGNORED if f.kind == FrameKind.PRODUCE else Fate.DONE
        )
        async with mq.producer("orders") as producer:
            with pytest.raises(OutcomeUnknown):
                await producer.send(b"b", timeout=0.1)
            cluster.fate = lambda _node, _frame: Fate.DONE
        result = await mq.check()
    assert result.verdict == "valid"
    assert result.counts["not judged: sends with an unknown outcome"] == 1


async def test_filter_that_another_client_gave_the_group_is_no_breach(
    cluster: FakeCluster,
) -> None:
    async with checked(cluster) as mq, connect(URL, world=cluster) as other:
        await other.admin.subscribe("orders", "g", "t")
        await send(mq, b"a", tag="t")
        await send(mq, b"b")
        await send(mq, b"c", tag="t")
        async with mq.consumer("orders", group="g") as consumer:
            assert (await anext(consumer)).body == b"a"
            await anext(consumer)
        assert (await mq.check()).verdict == "valid"


async def test_queue_that_is_moved_to_and_fro_is_no_breach(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", b"b", b"c")
        async with mq.consumer("orders") as consumer:
            await consumer.fetch(2)
            await consumer.seek(to="earliest")
            await consumer.fetch(1)
            await consumer.seek(queue=0, offset=2)
            assert [m.body for m in await consumer.fetch(5)] == [b"c"]
        assert (await mq.check()).verdict == "valid"


async def test_column_that_cannot_be_decoded_is_told_and_fails_no_call(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise CorruptRecord("planted", position=0)

    async with checked(cluster) as mq:
        await send(mq, b"a", b"b", props={"n": 1})
        async with mq.consumer("orders") as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(Batch, "props", broken)
                assert (await anext(consumer)).body == b"a"
            assert (await anext(consumer)).body == b"b"
        result = await mq.check()
    assert result.verdict == "valid"
    assert result.counts["not judged: messages that cannot be decoded"] == 1


def test_blocking_connect_passes_the_option_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        "raftmq.client.blocking.client.connect_async", lambda _url, **options: given.update(options)
    )
    raftmq.blocking.connect("raftmq://node1:1", check=True)
    assert given["check"]


# -- planted faults ------------------------------------------------------------------------------


async def breach(mq: Client) -> tuple[str, ...]:
    with pytest.raises(Inconsistent) as caught:
        await mq.check()
    return caught.value.anomalies


def rewrite(cluster: FakeCluster, at: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a message that a leader holds, in the batch of one message at an offset."""
    log = cluster.log_of(QUEUE)
    n = next(n for n, (base, _) in enumerate(log.batches[QUEUE]) if base == at)
    base, record = log.batches[QUEUE][n]
    batch = Batch.decode(record.payload, base_offset=base)
    columns: dict[str, Any] = {
        "bodies": batch.bodies,
        "keys": batch.keys,
        "props": [batch.props(0)],
    }
    change(columns)
    payload = encode(**columns).to_bytes(
        queue=QUEUE, producer=batch.head.producer, first_sequence=batch.head.first_sequence
    )
    log.batches[QUEUE][n] = base, stored(payload, record)


def stored(payload: bytes, like: Record) -> Record:
    return encode_record(
        payload, index=like.index, term=1, kind=Kind.BATCH, timestamp=like.timestamp, chain=0
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns.update(bodies=[b"other"]),
        lambda columns: columns.update(keys=["l"]),
        lambda columns: columns.update(props=[{"amount": 6}]),
        lambda columns: columns.update(props=[{"amount": 5.0}]),
        lambda columns: columns.update(props=None),
    ],
    ids=["body", "key", "property", "kind", "no property"],
)
async def test_changed_message_is_found(
    cluster: FakeCluster, change: Callable[[dict[str, Any]], None]
) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", b"b", key="k", props={"amount": 5})
        rewrite(cluster, 1, change)
        assert await breach(mq) == ("inconsistent-offset",)
        assert await breach(mq) == ("inconsistent-offset",), "a breach stays one"


async def test_rewriting_a_message_as_it_was_is_no_breach(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a", b"b", key="k", props={"amount": 5})
        rewrite(cluster, 1, lambda _: None)
        assert (await mq.check()).verdict == "valid"


async def test_message_acknowledged_and_not_stored_is_found(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_nothing(lane: QueueSender, parcel: Any, _: Any) -> None:
        lane._settle(parcel, 1, 0, False)

    async with checked(cluster) as mq:
        await send(mq, b"stored")
        with monkeypatch.context() as patch:
            patch.setattr(QueueSender, "_write", write_nothing)
            await send(mq, b"lost")
        assert await breach(mq) == ("unseen",)


async def test_message_acknowledged_whose_place_another_one_takes_is_found(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_nothing(lane: QueueSender, parcel: Any, _: Any) -> None:
        lane._settle(parcel, 0, 0, False)

    async with checked(cluster) as mq:
        with monkeypatch.context() as patch:
            patch.setattr(QueueSender, "_write", write_nothing)
            await send(mq, b"lost")
        add(cluster, QUEUE, 3)
        with pytest.raises(Inconsistent, match="b'lost' was acknowledged at orders/0/0"):
            await mq.check()


async def test_batch_that_is_stored_twice_is_found(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send(b"a")
            await producer.send(b"b")
            log = cluster.log_of(QUEUE)
            _, record = log.batches[QUEUE][1]
            log.batches[QUEUE].append((2, record))
            log.counts[2, QUEUE] = 1
            log.machine.ends[QUEUE] = 3
            await producer.send(b"c")
        assert await breach(mq) == ("duplicate",)


async def test_offsets_of_receipts_that_go_back_are_found(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = QueueSender._settle

    def back(lane: QueueSender, batch: Any, offset: int, *more: Any) -> None:
        settle(lane, batch, offset - 2, *more)

    async with checked(cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send(b"a")
            await producer.send(b"b")
            with monkeypatch.context() as patch:
                patch.setattr(QueueSender, "_settle", back)
                await producer.send(b"c")
        assert "realtime-send" in await breach(mq)


@pytest.mark.parametrize(("by", "expected"), [(1, "poll-skip"), (-1, "nonmonotonic-poll")])
async def test_reader_that_skips_or_goes_back_is_found(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, by: int, expected: str
) -> None:
    healthy = Fetcher.take

    def shift(fetcher: Fetcher, count: int) -> list[Slice]:
        return [part._replace(start=part.start + by) for part in healthy(fetcher, count)]

    async with checked(cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(10)])
        async with mq.consumer("orders") as consumer:
            await consumer.fetch(3)
            with monkeypatch.context() as patch:
                patch.setattr(Fetcher, "take", shift)
                await consumer.fetch(3)
        assert expected in await breach(mq)


async def test_leaving_the_block_raises_a_breach_that_no_check_has_raised(
    cluster: FakeCluster,
) -> None:
    async def work(mq: Client) -> None:
        await send(mq, b"a")
        rewrite(cluster, 0, lambda columns: columns.update(bodies=[b"other"]))
        async with mq.consumer("orders") as consumer:
            await anext(consumer)

    with pytest.raises(Inconsistent):
        async with checked(cluster) as mq:
            await work(mq)


async def test_error_of_the_body_is_raised_and_no_breach(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012
        async with connect(URL, world=cluster, check=True) as mq:
            await send(mq, b"a")
            rewrite(cluster, 0, lambda columns: columns.update(bodies=[b"other"]))
            async with mq.consumer("orders") as consumer:
                await anext(consumer)
            raise ValueError("mine")


# -- memory --------------------------------------------------------------------------------------


async def test_memory_does_not_grow_with_the_calls(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PLACES_MAX", 50)
    async with checked(cluster) as mq:
        judge: Any = mq._judge
        record, queues = judge.record, judge.record.witness.queues
        async with mq.producer("orders") as producer, mq.consumer("orders") as consumer:
            for n in range(300):
                await producer.send(b"%d" % n)
                if n >= 100:
                    await anext(consumer)
                assert record.open_count <= 1
                assert len(queues.unread) <= 50
                assert len(queues.seen) <= 50
        result = await mq.check()
    assert result.verdict == "valid"
    assert result.counts["acknowledged"] == 300
    assert result.counts["not judged: forgotten before they were read"] == 250


async def test_check_leaves_what_it_could_not_read_to_the_next_one(cluster: FakeCluster) -> None:
    async with checked(cluster) as mq:
        await send(mq, b"a")
        cluster.fate = lambda _, f: Fate.IGNORED if f.kind == FrameKind.FETCH else Fate.DONE
        with anyio.move_on_after(0.2):
            await mq.check()
        cluster.fate = lambda _node, _frame: Fate.DONE
        result = await mq.check()
    assert result.counts["found as sent"] == 1
