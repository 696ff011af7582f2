"""The pull consumer: order, positions, commits, seeking, trimming, corruption."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from raftmq.batch import encode
from raftmq.batch.columns import U32, vector
from raftmq.client import Client, Consumer, connect
from raftmq.client.consume import read_ahead
from raftmq.client.consume.positions import Cursor
from raftmq.client.routing import router
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable, UnreadableBatch
from raftmq.log.record import Kind
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.batch.test_corrupt import made, resealed
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

QUEUE = 0x10000


def fill(cluster: FakeCluster, queues: int, messages: int, *, batch: int = 3) -> None:
    """Messages `b"queue:offset"`, in batches of `batch`."""
    cluster.create_topic(queues=queues)
    for queue in cluster.catalog.topics["orders"].queues:
        add(cluster, queue, messages, batch=batch)


def add(cluster: FakeCluster, queue: int, messages: int, *, batch: int = 3) -> None:
    log = cluster.log_of(queue)
    start = log.machine.ends.get(queue, 0)
    for base in range(start, start + messages, batch):
        offsets = range(base, min(base + batch, start + messages))
        bodies = [b"%d:%d" % (queue & 0xFFFF, offset) for offset in offsets]
        payload = encode(bodies).to_bytes(queue=queue, producer=7, first_sequence=base)
        log.add(Kind.BATCH, payload, cluster.clock_ms)
        cluster.clock_ms += 1
    cluster.tell()


@asynccontextmanager
async def opened(cluster: FakeCluster) -> AsyncIterator[Client]:
    async with connect(URL, world=cluster) as mq:
        yield mq


async def read_all(c: Consumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        batch = await c.fetch(7, wait=60.0)
        assert batch, f"nothing after {len(got)}"
        got += batch.bodies
    return got


def of_queue(got: list[bytes], queue: int) -> list[bytes]:
    return [body for body in got if body.startswith(b"%d:" % queue)]


async def test_consumer_sees_each_queue_in_order_and_each_message_once(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=5, messages=20)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        got = await read_all(c, 100)
        assert len(await c.fetch(wait=0.05)) == 0
        assert c.position == dict.fromkeys(range(5), 20)
    for queue in range(5):
        assert of_queue(got, queue) == [b"%d:%d" % (queue, n) for n in range(20)]


async def test_message_tells_all_that_is_known_of_it(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with opened(cluster) as mq, mq.producer("orders") as p:
        await p.send(b"zero")
        receipt = await p.send(b"one", key="k", tag="t", props={"n": 1, "x": None})
        async with mq.consumer("orders") as c:
            async for m in c:
                if m.offset == 1:
                    break
        assert (m.body, m.key, m.tag, m.props) == (b"one", "k", "t", {"n": 1})
        assert (m.queue, m.offset, m.timestamp) == (0, 1, receipt.timestamp)
        assert (m.id, m.topic) == (receipt.id, "orders")


async def test_message_tells_its_producer_and_its_number_on_the_queue(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    async with opened(cluster) as mq:
        for _ in range(2):
            async with mq.producer("orders") as p:
                await p.send_many([b"a", b"b", b"c"], queue=0)
                await p.send(b"d", queue=0)
                await p.send(b"e", queue=1)
        async with mq.consumer("orders", queues=[0]) as c:
            got = [await anext(c) for _ in range(8)]
    assert [m.sequence for m in got] == [0, 1, 2, 3] * 2
    assert [m.epoch for m in got] == [0] * 8
    first, second = got[0].producer, got[4].producer
    assert [m.producer for m in got] == [first] * 4 + [second] * 4
    assert first
    assert first != second


async def test_fetch_gives_columns_that_agree_with_the_messages(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await anyio.sleep(0.05)
        batch = await c.fetch(8)
    messages = list(batch)
    assert len(batch) == len(messages) == 8
    assert batch.bodies == [m.body for m in messages]
    assert batch.offsets == [m.offset for m in messages]
    assert batch.queues == [m.queue for m in messages]
    assert batch.timestamps == [m.timestamp for m in messages]
    assert batch.keys == [m.key for m in messages]
    assert batch.tags == [m.tag for m in messages]
    assert [batch[n].id for n in range(8)] == [m.id for m in messages]
    assert batch[-1].id == messages[-1].id
    assert [m.id for m in batch[2:4]] == [m.id for m in messages[2:4]]
    with pytest.raises(IndexError):
        batch[8]


async def test_fetch_waits_for_the_first_message_and_no_longer(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=0)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders") as c,
        anyio.create_task_group() as tasks,
    ):

        async def later() -> None:
            await anyio.sleep(0.1)
            add(cluster, QUEUE, 2)

        tasks.start_soon(later)
        before = anyio.current_time()
        assert len(await c.fetch(100, wait=30.0)) == 2
        assert anyio.current_time() - before < 1.0


async def test_consumer_commits_what_was_handed_and_not_what_was_fetched(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=30)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g") as c:
            await c.fetch(5)
            await c.commit()
            await c.fetch(5)
        async with mq.consumer("orders", group="g") as c:
            assert c.position == {0: 5}
            assert await c.committed() == {0: 5}
            assert (await c.fetch(1))[0].offset == 5
        async with mq.consumer("orders", group="h") as c:
            assert c.position == {0: 0}


async def test_commit_inside_the_loop_includes_the_present_message(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g") as c:
            async for m in c:
                if m.offset == 3:
                    await c.commit()
                    break
        async with mq.consumer("orders", group="g") as c:
            assert c.position == {0: 4}


async def test_auto_commit_leaves_out_the_message_that_is_being_worked_on(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", auto_commit=0.02) as c:
        await c.fetch(4)
        await c.fetch(2)
        await anyio.sleep(0.1)
        assert await c.committed() == {0: 4}


async def test_auto_commit_at_the_end_depends_on_how_it_ended(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with opened(cluster) as mq:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with mq.consumer("orders", group="bad", auto_commit=1e6) as c:
                await c.fetch(4)
                await c.fetch(2)
                raise ValueError("mine")
        async with mq.consumer("orders", group="good", auto_commit=1e6) as c:
            await c.fetch(4)
            await c.fetch(2)
        groups = {g.name: g.offsets[0].committed for g in await mq.admin.list_groups()}
    assert groups == {"bad": 4, "good": 6}


async def test_commit_of_named_offsets(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders", group="g") as c:
        await c.commit({1: 7})
        assert await c.committed() == {1: 7}
        with pytest.raises(Rejected) as caught:
            await c.commit({1: 700})
        assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE


async def test_commit_without_a_group_is_rejected(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await c.fetch(1)
        with pytest.raises(Rejected, match="no group"):
            await c.commit()


async def test_commit_survives_a_change_of_leader(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g") as c:
        await read_all(c, 12)
        for group in cluster.logs:
            cluster.move(group, cluster.leaders[group] % 3 + 1)
        await c.commit()
        assert await c.committed() == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_commit_of_an_earlier_place_is_sent_after_a_commit_without_an_answer(
    cluster: FakeCluster, is_cancelled: bool
) -> None:
    fill(cluster, queues=1, messages=30)

    def lose_commits(_: FakeNode, frame: Frame) -> Fate:
        return Fate.APPLIED_AND_IGNORED if frame.kind == FrameKind.COMMIT else Fate.DONE

    async with opened(cluster) as mq, mq.consumer("orders", group="g") as c:
        assert len(await c.fetch(10)) == 10
        await c.commit()
        assert len(await c.fetch(10)) == 10
        cluster.fate = lose_commits
        if is_cancelled:
            with anyio.move_on_after(0.1):
                await c.commit()
        else:
            with pytest.raises(OutcomeUnknown):
                await c.commit(timeout=0.1)
        cluster.fate = lambda _, __: Fate.DONE
        assert await c.committed() == {0: 20}
        await c.seek(queue=0, offset=10)
        await c.commit({0: 10})
        assert await c.committed() == {0: 10}


async def test_answer_to_an_overtaken_commit_does_not_say_what_is_committed() -> None:
    cursor = Cursor(queue_number=QUEUE, group=1, offset=0)
    cursor.commit_sent(1)
    cursor.commit_sent(2)
    cursor.commit_answered(2, 20)
    cursor.commit_answered(1, 10)
    assert cursor.committed == 20


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("latest", None), (4, 4), ("time", 6)]
)
async def test_start_decides_where_a_queue_without_commits_begins(
    cluster: FakeCluster, start: str | int, first: int | None
) -> None:
    fill(cluster, queues=1, messages=9)
    at: str | int | datetime = start
    if start == "time":
        # The third batch was stamped 2 ms after the first.
        at = datetime.fromtimestamp(1_000_002 / 1000, UTC)
    async with opened(cluster) as mq, mq.consumer("orders", start=at) as c:  # type: ignore[arg-type]
        got = await c.fetch(1, wait=0.1)
    assert [m.offset for m in got] == ([] if first is None else [first])


async def test_seek_by_offset_time_and_end(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=9)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 18)
        await c.seek(queue=1, offset=5)
        assert [(m.queue, m.offset) for m in await c.fetch(2)] == [(1, 5), (1, 6)]
        await c.seek(time=datetime.fromtimestamp(0, UTC))
        assert c.position == {0: 0, 1: 0}
        await c.seek(to="latest")
        assert c.position == {0: 9, 1: 9}
        assert len(await c.fetch(wait=0.05)) == 0
        await c.seek(queue=0, to="earliest")
        assert [(m.queue, m.offset) for m in await c.fetch(1)] == [(0, 0)]


async def test_seek_is_quick_though_a_poll_is_under_way(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 9)
        await anyio.sleep(0.05)
        before = anyio.current_time()
        await c.seek(offset=0)
        await read_all(c, 9)
        assert anyio.current_time() - before < read_ahead.POLL_MS / 1000 / 2


async def test_seek_needs_exactly_one_place(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        with pytest.raises(Rejected, match="exactly one"):
            await c.seek()
        with pytest.raises(Rejected, match="exactly one"):
            await c.seek(offset=1, to="latest")
        with pytest.raises(Rejected, match="no time zone"):
            await c.seek(time=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(Rejected, match="queue 5 is not read"):
            await c.seek(queue=5, offset=0)


async def test_named_queues_are_read_and_no_others(cluster: FakeCluster) -> None:
    fill(cluster, queues=4, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", queues=[1, 3]) as c:
        got = await read_all(c, 6)
        assert len(await c.fetch(wait=0.05)) == 0
        assert {body[:1] for body in got} == {b"1", b"3"}
        with pytest.raises(Rejected, match="queues 0 to 3, no 4"):
            async with mq.consumer("orders", queues=[4]):
                pass


async def test_change_of_leader_neither_repeats_nor_skips(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=300, batch=1)
    count = 0

    def fate(_: FakeNode, frame: Frame) -> Fate:
        nonlocal count
        if frame.kind == FrameKind.FETCH:
            count += 1
            if count % 3 == 0:
                for group in cluster.logs:
                    cluster.move(group, cluster.leaders[group] % 3 + 1)
            if count % 5 == 0:
                return Fate.NOT_APPLIED
        return Fate.DONE

    cluster.fate = fate
    async with opened(cluster) as mq, mq.consumer("orders", prefetch_bytes=6_000) as c:
        got = await read_all(c, 600)
    for queue in range(2):
        assert of_queue(got, queue) == [b"%d:%d" % (queue, n) for n in range(300)]


@pytest.mark.parametrize(("policy", "first"), [("earliest", 6), ("latest", 9)])
async def test_trimmed_queue_goes_on_where_the_policy_says(
    cluster: FakeCluster, policy: str, first: int
) -> None:
    fill(cluster, queues=1, messages=9)
    cluster.trim(QUEUE, 6)
    async with opened(cluster) as mq:
        settings = {"start": 0, "on_trimmed": policy}
        async with mq.consumer("orders", **settings) as c:  # type: ignore[call-overload]
            await anyio.sleep(0.05)
            add(cluster, QUEUE, 1)
            assert (await c.fetch(1, wait=5.0))[0].offset == first


async def test_trimmed_queue_is_an_error_that_names_queue_and_range(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    cluster.trim(QUEUE, 6)
    async with opened(cluster) as mq, mq.consumer("orders", start=2) as c:
        for _ in range(2):
            with pytest.raises(
                Rejected, match="queue 0 of topic 'orders' begins at offset 6 and ends at offset 9"
            ):
                await c.fetch()
        await c.seek(offset=6)
        assert await read_all(c, 3) == [b"0:6", b"0:7", b"0:8"]


async def test_new_leader_that_is_behind_is_waited_for(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    log = cluster.log_of(QUEUE)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 9)
        log.machine.ends[QUEUE] = 6
        await c.seek(offset=9)
        assert len(await c.fetch(wait=0.1)) == 0
        log.machine.ends[QUEUE] = 9
        add(cluster, QUEUE, 1)
        assert (await c.fetch(1, wait=5.0))[0].offset == 9


async def test_damaged_batch_is_reported_and_never_handed_out(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    batches = cluster.log_of(QUEUE).batches[QUEUE]
    base, record = batches[1]
    damaged = bytearray(record.encoded)
    damaged[-1] ^= 1
    batches[1] = (base, record._replace(encoded=bytes(damaged)))
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await anyio.sleep(0.05)
        # Messages before it are handed out first, or a seek past it would lose them.
        assert (await c.fetch()).offsets == [0, 1, 2]
        with pytest.raises(UnreadableBatch, match="queue 0 of topic 'orders', batch at offset 3"):
            await c.fetch()
        with pytest.raises(UnreadableBatch) as caught:
            await c.fetch()
        error = caught.value
        assert (error.topic, error.queue, error.offset) == ("orders", 0, 3)
        await c.seek(queue=error.queue, offset=error.next_offset)
        assert (await c.fetch()).offsets == [6, 7, 8]


async def test_batch_of_an_old_broker_that_cannot_be_read_is_named_and_passed_over(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3)
    # The checksum fits, but the body lengths do not: brokers no longer admit that.
    broken = made([vector(U32, [1, 0])], body=b"two")
    stamp = struct.pack("<QQQ", QUEUE, 7, 3)
    broken = resealed(broken[:8] + stamp + broken[32:])
    cluster.log_of(QUEUE).add(Kind.BATCH, broken, cluster.clock_ms)
    add(cluster, QUEUE, 3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        got: list[bytes] = []
        errors: list[UnreadableBatch] = []
        while c.position[0] < 8:
            try:
                async for message in c:
                    got.append(message.body)
                    if c.position[0] == 8:
                        break
            except UnreadableBatch as error:
                errors.append(error)
                await c.seek(queue=error.queue, offset=error.next_offset)
        assert got == [b"0:0", b"0:1", b"0:2", b"0:5", b"0:6", b"0:7"]
        assert [(e.offset, e.next_offset) for e in errors] == [(3, 5)]
        with pytest.raises(UnreadableBatch, match=r"seek\(queue=0, offset=5\)"):
            _ = (await mq.get("10000-4")).body


async def test_answer_with_a_gap_closes_the_connection(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    batches = cluster.log_of(QUEUE).batches[QUEUE]
    lost = batches.pop(0)
    connects = cluster.connects
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        assert len(await c.fetch(wait=0.2)) == 0
        assert cluster.connects > connects + 1
        batches.insert(0, lost)
        assert await read_all(c, 9)


async def test_prefetch_is_bounded(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=2000, batch=10)
    one = len(cluster.log_of(QUEUE).batches[QUEUE][-1][1].payload)
    async with opened(cluster) as mq, mq.consumer("orders", prefetch_bytes=3 * one) as c:
        await anyio.sleep(0.1)
        fetcher = c._fetcher
        assert fetcher is not None
        assert fetcher._buffered_bytes <= 2 * 3 * one
        fetches = sum(node.requests.count(FrameKind.FETCH) for node in cluster.nodes.values())
        assert fetches <= 2
        assert await read_all(c, 2000)


async def test_queue_that_cannot_be_reached_is_unavailable_in_time(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with connect(URL, world=cluster, timeout=0.3) as mq, mq.consumer("orders") as c:
        await read_all(c, 3)
        for node in (1, 2, 3):
            cluster.kill(node)
        before = anyio.current_time()
        with pytest.raises(Unavailable, match="has not been found"):
            await c.fetch(wait=60.0)
        assert anyio.current_time() - before < 2.0
        cluster.unreachable.clear()
        # Longer than nodes that could not be reached are left alone.
        await anyio.sleep(2 * router.SUSPECT_SECONDS)
        add(cluster, QUEUE, 1)
        assert (await c.fetch(1, wait=5.0))[0].offset == 3


async def test_queues_that_are_added_are_read_from_their_start(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders", start="latest") as c:
        await mq.admin.alter_topic("orders", 2)
        add(cluster, QUEUE + 1, 2)
        assert await read_all(c, 2) == [b"1:0", b"1:1"]


async def test_deleted_topic_is_told_to_its_consumer(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 1)
        await mq.admin.delete_topic("orders")
        cluster.tell()
        with pytest.raises(Rejected) as caught:  # noqa: PT012
            for _ in range(10):
                await c.fetch(wait=0.2)
        assert caught.value.reason is Reason.UNKNOWN_TOPIC


async def test_cancelled_fetch_loses_nothing(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=50)
    got: list[bytes] = []
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        while len(got) < 50:
            with anyio.move_on_after(0.003):
                got += (await c.fetch(3)).bodies
                await anyio.sleep(1)
    assert got == [b"0:%d" % n for n in range(50)]


async def test_mode_that_does_not_exist_is_named(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq:
        with pytest.raises(
            Rejected, match="mode 'push' does not exist: it is 'pull', 'broadcast', 'pop' or "
        ):
            mq.consumer("orders", mode="push")  # type: ignore[call-overload]
        mistakes: list[dict[str, Any]] = [
            {"start": "yesterday"},
            {"start": -1},
            {"on_trimmed": "ignore"},
            {"auto_commit": 1.0},
            {"prefetch_bytes": 0},
            {"queues": []},
            {"group": ""},
        ]
        for wrong in mistakes:
            with pytest.raises(Rejected):
                mq.consumer("orders", **wrong)


async def test_fetch_that_a_seek_made_useless_is_withdrawn(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=9)
    node = cluster.nodes[cluster.leaders[1]]
    async with opened(cluster) as mq, mq.consumer("orders", start="latest") as c:
        for _ in range(5):
            assert len(await c.fetch(wait=0.02)) == 0
            await c.seek(to="latest")
        await c.seek(offset=3)
        assert (await c.fetch(1, wait=1.0))[0].offset == 3
    assert node.requests.count(FrameKind.FORGET) >= 5
