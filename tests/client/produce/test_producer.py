"""The producer when all goes well: receipts, batches, queues, bounds."""

from typing import Any

import anyio
import pytest

from raftmq.batch import queue_of
from raftmq.client import Outgoing, SomeUnsent, connect
from raftmq.client.routing import weights
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.catalog.topics import AlterTopic
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, Fate

pytestmark = pytest.mark.anyio


async def test_send_answers_with_the_place_of_the_message(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        first = await p.send(b"one", key="k", tag="t", props={"n": 1})
        second = await p.send(b"two")
    assert (first.queue, first.offset, first.timestamp) == (0, 0, cluster.clock_ms)
    assert (second.id, second.is_duplicate) == ("10000-1", False)
    assert cluster.stored() == [[b"one", b"two"]]


async def test_key_picks_the_queue_by_the_documented_hash(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=7)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        for key in ("a", "order-1", "é"):
            assert (await p.send(b"x", key=key)).queue == queue_of(key, 7)
            assert (await p.send(b"x", key=key.encode())).queue == queue_of(key, 7)


async def test_send_many_picks_the_same_queues_as_send(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=5)
    texts = [f"ключ-{n}" for n in range(50)]
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        sent = await p.send_many(bodies=[b"x"] * 50, keys=texts)
        assert [r.queue for r in sent.receipts()] == [queue_of(key, 5) for key in texts]
        mixed: list[str | bytes | None] = [*texts[:10], *[key.encode() for key in texts[10:]], None]
        sent = await p.send_many(bodies=[b"x"] * 51, keys=mixed)
        assert [r.queue for r in sent.receipts()][:50] == [queue_of(key, 5) for key in texts]


async def test_named_queue_overrides_the_key(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert [(await p.send(b"x", key="k", queue=n)).queue for n in (2, 0, 1)] == [2, 0, 1]
        with pytest.raises(Rejected, match="queues 0 to 2, no 3"):
            await p.send(b"x", queue=3)


async def test_messages_without_a_key_use_the_queues_in_turn(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine one of these round trips would be long, and its node would count as slow.
    monkeypatch.setattr(weights, "SECONDS_MIN", 60.0)
    cluster.create_topic(queues=4)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        queues = [(await p.send(b"x")).queue for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_messages_sent_while_an_answer_is_awaited_share_a_batch(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        pending = [p.send_nowait(b"%d" % n) for n in range(500)]
        await p.flush()
        receipts = [await one.wait() for one in pending]
    assert [receipt.offset for receipt in receipts] == list(range(500))
    batches = cluster.log_of(0x10000).batches[0x10000]
    assert len(batches) <= 3


async def test_calls_of_send_many_that_meet_in_a_queue_share_a_batch(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        pending = [
            p.send_many_nowait(bodies=[b"%d" % (10 * n + i) for i in range(10)], tags=["t"] * 10)
            for n in range(50)
        ]
        last = p.send_nowait(b"500")
        sent = [await one.wait() for one in pending]
        assert (await last.wait()).offset == 500
    assert [r.offset for one in sent for r in one.receipts()] == list(range(500))
    assert cluster.stored() == [[b"%d" % n for n in range(501)]]
    assert len(cluster.log_of(0x10000).batches[0x10000]) <= 3


async def test_calls_without_keys_gather_in_one_queue_until_its_batch_goes_out(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=4) as p:
        for queue in range(3):
            await p.send(b"first", queue=queue)
        for n in range(5):
            p.send_many_nowait(bodies=[b"%d" % n, b"and"])
        await p.flush()
        # More than a batch holds: the rest does not queue up behind the first.
        await p.send_many(bodies=[b"%d" % n for n in range(5, 15)])
    assert sorted(len(bodies) for bodies in cluster.stored()) == [5, 9, 9]
    queues = cluster.catalog.topics["orders"].queues
    assert [len(cluster.log_of(queue).batches[queue]) for queue in queues] == [3, 3, 3]


async def test_send_many_that_waits_in_a_shared_batch_can_be_cancelled(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders", linger=1000.0) as p,
    ):
        first = p.send_many_nowait(bodies=[b"1", b"2"], keys=["a", "b"], queue=0)
        with anyio.move_on_after(0.01):
            await p.send_many(bodies=[b"not", b"this"], queue=0)
        last = p.send_many_nowait(bodies=[b"3"], tags=["t"], queue=0)
        await p.flush()
        assert [(await one.wait()).receipts()[0].offset for one in (first, last)] == [0, 2]
    assert cluster.stored() == [[b"1", b"2", b"3"]]
    assert len(cluster.log_of(0x10000).batches[0x10000]) == 1


async def test_properties_keep_a_send_many_in_a_batch_of_its_own(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders", linger=0.01) as p:
        for n in range(3):
            p.send_many_nowait(bodies=[b"%d" % n], props=[{"n": n} if n == 1 else None])
        p.send_many_nowait(bodies=[b"3"])
        await p.flush()
    assert cluster.stored() == [[b"0", b"1", b"2", b"3"]]
    assert len(cluster.log_of(0x10000).batches[0x10000]) == 4


async def test_batch_that_is_full_goes_out_at_once(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders", batch_messages=10, linger=1000.0) as p,
    ):
        full = [p.send_nowait(b"x") for _ in range(10)]
        await full[-1].wait(timeout=5.0)
        late = p.send_nowait(b"y")
        with pytest.raises(RaftmqError, match="still under way"):
            await late.wait(timeout=0.05)
        await p.flush()
        assert (await late.wait()).offset == 10


async def test_lingering_gathers_messages_for_so_long(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders", linger=0.5) as p,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(5):
            tasks.start_soon(p.send, b"x")
            await anyio.sleep(0.001)
    assert len(cluster.log_of(0x10000).batches[0x10000]) == 1


async def test_send_many_keeps_order_and_answers_for_each_message(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=3)
    messages = [
        Outgoing(b"%d" % n, key=f"k{n % 5}", tag="even" if n % 2 else None) for n in range(99)
    ]
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        sent = await p.send_many(messages)
    assert len(sent) == 99
    for message, receipt in zip(messages, sent.receipts(), strict=True):
        assert message.key is not None
        assert receipt.queue == queue_of(message.key, 3)
        assert receipt.offset is not None
        assert cluster.stored()[receipt.queue][receipt.offset] == message.body
    for bodies in cluster.stored():
        assert bodies == sorted(bodies, key=int)


async def test_send_many_cuts_into_batches_by_bytes_and_count(cluster: FakeCluster) -> None:
    cluster.create_topic()
    bodies = [bytes(100)] * 1000
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders", batch_bytes=10_000, batch_messages=64) as p,
    ):
        sent = await p.send_many(bodies=bodies)
    assert [len(part.positions) for part in sent.ranges] == [64] * 15 + [40]
    assert [part.base_offset for part in sent.ranges] == list(range(0, 1000, 64))


@pytest.mark.parametrize("column", ["keys", "tags"])
@pytest.mark.parametrize("text", ["abc", b"abc"])
async def test_one_text_for_a_column_of_send_many_is_refused(
    cluster: FakeCluster, column: str, text: str | bytes
) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as producer:
        given: dict[str, Any] = {column: text}
        with pytest.raises(Rejected, match="an entry for each body") as caught:
            await producer.send_many(bodies=[b"1", b"2", b"3"], **given)
        assert f"[{text!r}] * 3 is one for all" in str(caught.value)


async def test_send_many_without_messages_does_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert len(await p.send_many([])) == 0


async def test_send_many_takes_what_a_consumer_was_handed(cluster: FakeCluster) -> None:
    cluster.create_topic("in")
    cluster.create_topic("out")
    async with connect(URL, world=cluster) as mq, mq.producer("in") as p, mq.producer("out") as out:
        await p.send_many([Outgoing(b"1", "k", "t", {"n": 5}), Outgoing(b"2")])
        async with mq.consumer("in") as c:
            await out.send_many(await c.fetch(10))
        async with mq.consumer("out") as c:
            got = await c.fetch(10)
    assert [(m.body, m.key, m.tag, m.props) for m in got] == [
        (b"1", "k", "t", {"n": 5}),
        (b"2", None, None, {}),
    ]


async def test_send_many_that_cannot_be_encoded_sends_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(Rejected):
            await p.send_many(bodies=[b"x"] * 3, tags=["ok", "t" * 1000, "ok"])
        with pytest.raises(Rejected, match="3 bodies and 2 keys"):
            await p.send_many(bodies=[b"x"] * 3, keys=["a", "b"])
        with pytest.raises(Rejected, match="a body is bytes"):
            await p.send_many(bodies=[b"x", None])  # type: ignore[list-item]
        with pytest.raises(Rejected, match="a key is text or bytes"):
            await p.send_many(bodies=[b"x"], keys=[7])  # type: ignore[list-item]
        with pytest.raises(Rejected, match="not both"):
            await p.send_many([b"x"], bodies=[b"x"])
        with pytest.raises(Rejected, match="send_many takes"):
            await p.send_many(["text"])  # type: ignore[list-item]
    assert cluster.stored() == [[]]


async def test_message_that_cannot_be_encoded_harms_no_other(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        before = p.send_nowait(b"before")
        with pytest.raises(Rejected):
            p.send_nowait(b"bad", props={"n": object()})  # type: ignore[dict-item]
        after = p.send_nowait(b"after")
        await p.flush()
        assert [(await one.wait()).offset for one in (before, after)] == [0, 1]
        assert p.statistics().buffer_bytes == 0


async def test_message_larger_than_a_batch_may_be_is_too_large(cluster: FakeCluster) -> None:
    cluster.create_topic()
    for node in cluster.nodes.values():
        node.batch_bytes_max = 1 << 20
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(Rejected) as caught:
            await p.send(bytes(1 << 20))
        assert caught.value.reason is Reason.TOO_LARGE
        # Larger than `batch_bytes`, smaller than a batch may be: it goes alone.
        assert (await p.send(bytes(700_000))).offset == 0


async def test_full_buffer_refuses_send_nowait_and_lets_send_wait(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders", buffer_messages=3) as p,
    ):
        for _ in range(3):
            p.send_nowait(b"x")
        with pytest.raises(Unavailable, match="await flush"):
            p.send_nowait(b"x")
        assert (await p.send(b"waits")).offset == 3
        await p.send_many(bodies=[b"many"] * 10)


async def test_send_that_finds_no_room_in_time_stores_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    stuck = {FrameKind.PRODUCE}
    cluster.fate = lambda _, frame: Fate.IGNORED if frame.kind in stuck else Fate.DONE
    async with connect(URL, world=cluster) as mq, mq.producer("orders", buffer_messages=1) as p:
        held = p.send_nowait(b"held", timeout=0.5)
        with pytest.raises(Unavailable, match="no room in time"):
            await p.send(b"late", timeout=0.1)
        with pytest.raises(SomeUnsent, match="1 of 1 message not stored"):
            await p.send_many(bodies=[b"late"], timeout=0.1)
        with pytest.raises(RaftmqError):
            await held.wait()
        stuck.clear()
        await p.send(b"next")
    assert cluster.stored() == [[b"next"]]


async def test_producer_for_a_topic_that_does_not_exist_is_rejected(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(Rejected, match="no topic 'nowhere'"):
            async with mq.producer("nowhere"):
                pass


async def test_closing_sends_what_waits(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders", linger=1000.0) as p:
        p.send_nowait(b"x")
    assert cluster.stored() == [[b"x"]]
    with pytest.raises(RaftmqError, match="closed"):
        await p.send(b"y")


async def test_new_queues_are_used_after_a_refresh(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await mq.admin.alter_topic("orders", 3)
        assert {(await p.send(b"x")).queue for _ in range(6)} == {0, 1, 2}


async def test_call_whose_producer_is_closed_under_it_ends(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=24)
    ends: list[RaftmqError] = []
    async with connect(URL, world=cluster) as mq:
        p = await mq.producer("orders", batch_messages=10).__aenter__()

        async def send_many() -> None:
            with pytest.raises(SomeUnsent) as unsent:
                # Encoding that many lets other tasks run.
                await p.send_many(bodies=[b"x"] * 600, timeout=3)
            ends.extend(run.error for run in unsent.value.sent.ranges if run.error is not None)

        async def send() -> None:
            with pytest.raises(RaftmqError, match="closed"):
                # The client asks whether there is such a queue.
                await p.send(b"x", queue=25, timeout=3)

        cluster.change_catalog(AlterTopic("orders", 26))
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_many)
                tasks.start_soon(send)
                await anyio.lowlevel.checkpoint()
                await p.aclose()
    assert len(ends) == 60
    assert all(isinstance(end, Unavailable) and "was closed" in str(end) for end in ends)
    assert cluster.stored() == [[]] * 26


async def test_call_that_waits_for_room_when_its_producer_is_closed_says_that_nothing_was_sent(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=1)
    cluster.fate = lambda _, frame: Fate.BUSY if frame.kind == FrameKind.PRODUCE else Fate.DONE
    async with connect(URL, world=cluster) as mq, anyio.create_task_group() as tasks:
        p = await mq.producer("orders", batch_messages=5, buffer_messages=10).__aenter__()

        async def send_many() -> None:
            with pytest.raises(SomeUnsent) as unsent:
                await p.send_many(bodies=[b"x"] * 200, timeout=3600)
            # The first ten were in the buffer: on a busy machine one batch is under way at the end.
            ends.extend(run.error for run in unsent.value.sent.ranges if run.positions[0] >= 10)

        ends: list[RaftmqError | None] = []
        tasks.start_soon(send_many)
        await anyio.sleep(0.05)
        with pytest.raises(RaftmqError):
            await p.aclose(timeout=0.1)
    assert ends
    assert {type(end) for end in ends} == {Unavailable}
