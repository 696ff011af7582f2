"""Handles: texts that name messages under a lease, and settling by them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client import connect
from raftmq.client.pop.handles import Handle, format_handle, handle_of, parse_handle
from raftmq.errors import OutcomeUnknown, Rejected
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

FIELD = st.integers(0, 2**64 - 1)
HANDLES = st.builds(Handle, FIELD, FIELD, FIELD, FIELD, FIELD)


@given(HANDLES)
def test_handle_is_read_as_it_was_written(handle: Handle) -> None:
    text = format_handle(handle)
    assert parse_handle(text) == handle
    assert text.isalnum()
    assert text.isascii()


def test_usual_handle_is_short() -> None:
    handle = Handle(12, 4, 3_000_000 << 20, 2**63 - 1, 123_456_789)
    assert len(format_handle(handle)) <= 36


@given(HANDLES, st.data())
def test_handle_with_another_character_is_refused_or_another(
    handle: Handle, data: st.DataObject
) -> None:
    text = format_handle(handle)
    at = data.draw(st.integers(0, len(text) - 1))
    digit = data.draw(st.sampled_from("0AZaz9"))
    changed = text[:at] + digit + text[at + 1 :]
    if changed == text:
        return
    with suppress(Rejected):
        # Two check bytes let one of 65,536 pass: then it reads as something else.
        assert parse_handle(changed) != handle


@pytest.mark.parametrize("text", ["", "0", "abc", "-", "ü" * 30, "z" * 101, "0" * 30, " 8sdj"])
def test_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is no handle"):
        parse_handle(text)


def test_handle_with_a_zero_before_it_is_refused() -> None:
    text = format_handle(Handle(1, 2, 3, 4, 5))
    with pytest.raises(Rejected, match="is no handle"):
        parse_handle("0" + text)


def test_almost_every_cut_handle_is_refused() -> None:
    text = format_handle(Handle(12, 4, 3_000_000 << 20, 2**62 + 99, 123_456_789))
    for length in range(len(text)):
        with pytest.raises(Rejected, match="is no handle"):
            parse_handle(text[:length])


# Settling


async def popped(cluster: FakeCluster, count: int, bodies: int | None = None) -> list[str]:
    """The handles of messages that a consumer popped and left; `bodies` of them were sent."""
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(bodies or count)])
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            found: list[str] = []
            while len(found) < count:
                messages = await consumer.pop(count - len(found), wait=5.0)
                found += [handle_of(message) for message in messages]
            return found


async def left(cluster: FakeCluster) -> int:
    """Number of messages that another consumer is handed."""
    async with (
        connect(URL, world=cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer,
    ):
        return len(await consumer.pop(1000, wait=0.5))


@pytest.mark.anyio
async def test_message_is_settled_from_another_client_by_its_handle(cluster: FakeCluster) -> None:
    cluster.create_topic()
    handles = await popped(cluster, 5)
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle(handles[:3]) == [True] * 3
        assert await mq.settle(handles[:4]) == [False, False, False, True]
        assert await mq.settle([handles[4]] * 2, "nack", delay=0.0) == [True, True]
    assert await left(cluster) == 1


@pytest.mark.anyio
async def test_rejected_and_given_back_by_handle(cluster: FakeCluster) -> None:
    cluster.create_topic()
    handles = await popped(cluster, 4)
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle(handles[:1], "reject", reason="bad") == [True]
        assert await mq.settle(handles[1:3], "give_back") == [True, True]
        assert await mq.settle(handles[3:], "extend", delay=60.0) == [True]
        assert await mq.settle(handles[:1], "extend", delay=60.0) == [True], "the lease runs"
    assert await left(cluster) == 2


@pytest.mark.anyio
async def test_wrong_handle_or_delay_settles_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    handles = await popped(cluster, 2)
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(Rejected, match="is no handle"):
            await mq.settle([handles[0], "nonsense"])
        with pytest.raises(Rejected, match="there is no action 'eat'"):
            await mq.settle(handles, "eat")  # type: ignore[arg-type]
        with pytest.raises(Rejected, match="for nack and extend, not for ack"):
            await mq.settle(handles, "ack", delay=5.0)
        with pytest.raises(Rejected, match="for how many seconds"):
            await mq.settle(handles, "extend")
        with pytest.raises(Rejected, match="out of range"):
            await mq.settle(handles, "extend", delay=13 * 3600)
        with pytest.raises(Rejected, match="delay is 0 or more seconds, not -1"):
            await mq.settle(handles, "nack", delay=-1)
        assert await mq.settle(handles) == [True, True]


@pytest.mark.anyio
async def test_answer_that_was_lost_is_told_once_more(cluster: FakeCluster) -> None:
    cluster.create_topic()
    handles = await popped(cluster, 3)
    fates = [Fate.APPLIED_AND_CUT]

    def fate(_: FakeNode, frame: Frame) -> Fate:
        return fates.pop() if frame.kind == FrameKind.SETTLE and fates else Fate.DONE

    async with connect(URL, world=cluster) as mq:
        cluster.fate = fate
        assert await mq.settle(handles) == [True] * 3
    assert fates == []


@pytest.mark.anyio
async def test_timeout_of_settling_holds_for_all_requests_of_a_consumer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.client.pop.handles.SETTLE_ITEMS_MAX", 1)
    cluster.create_topic(queues=1)
    asked: dict[bytes, float] = {}

    def fate(_: FakeNode, frame: Frame) -> Fate:
        # Each request is answered two seconds after it was first sent.
        if frame.kind != FrameKind.SETTLE:
            return Fate.DONE
        now = anyio.current_time()
        began = asked.setdefault(bytes(frame.header), now)
        return Fate.DONE if now > began + 2 else Fate.UNAVAILABLE

    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(3)])
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            leases = [await consumer.pop(1, wait=5.0) for _ in range(3)]
            handles = [handle_of(message) for lease in leases for message in lease]
            assert len(handles) == 3
            cluster.fate = fate
            began = anyio.current_time()
            with pytest.raises(OutcomeUnknown):
                await mq.settle(handles, timeout=3.0)
            assert anyio.current_time() - began < 4.0
            cluster.fate = lambda *_: Fate.DONE
    assert len(asked) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [60, 8 * 86_400])
async def test_clock_that_went_back_is_overcome(cluster: FakeCluster, seconds: int) -> None:
    cluster.create_topic()
    handles = await popped(cluster, 2)
    now_ms: Callable[[], int] = cluster.now_ms
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle(handles[:1]) == [True]
        cluster.now_ms = lambda: now_ms() - seconds * 1000  # type: ignore[method-assign]
        assert await mq.settle(handles[1:]) == [True]


@pytest.mark.anyio
async def test_consumer_that_is_open_settles_on_after_a_settlement_by_handle(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"a", b"b", b"c"])
        async with mq.consumer("orders", group="g", mode="pop") as consumer:
            a, b, c = await consumer.pop(3, wait=5.0)
            assert await mq.settle([handle_of(a)]) == [True]
            await b.ack()
            assert await mq.settle([handle_of(b), handle_of(c)]) == [
                False,
                True,
            ]
            with pytest.raises(Rejected):
                await c.ack()


@pytest.mark.anyio
@pytest.mark.parametrize("action", ["ack", "nack", "reject", "give_back"])
async def test_consumer_names_those_that_others_settled_by_handle(
    cluster: FakeCluster, action: str
) -> None:
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"%d" % n for n in range(20)])
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            batch = await consumer.pop(20, wait=5.0)
            by_others = [batch[n] for n in (3, 11, 19)]
            assert await mq.settle([handle_of(each) for each in by_others]) == [True] * 3
            fates = [Fate.APPLIED_AND_CUT]

            def fate(_: FakeNode, frame: Frame) -> Fate:
                return fates.pop() if frame.kind == FrameKind.SETTLE and fates else Fate.DONE

            cluster.fate = fate
            settled = await getattr(batch, action)()
            assert settled.settled == 17
            assert [each.id for each in settled.fenced] == [each.id for each in by_others]
            # The consumer knows them: to say the same of the others is to say it once.
            again = await getattr(batch, action)()
            assert [each.id for each in again.fenced] == [each.id for each in by_others]
            assert (again.settled, fates) == (17, [])


@pytest.mark.anyio
async def test_handles_that_are_rejected_together_are_one_dead_letter(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    handles = await popped(cluster, 10)
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle(handles[4:5]) == [True]
        settled = await mq.settle(handles, "reject", reason="no")
        assert settled == [n != 4 for n in range(10)]
    (attached,) = [
        each for log in cluster.logs.values() for each in log.machine.pop_groups.attached.values()
    ]
    (letter,) = attached.group.dead.values()
    assert (letter.messages.size, letter.reason) == (9, "no")


@pytest.mark.anyio
async def test_handles_that_name_what_no_lease_spans_settle_the_others(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=1)
    handles = await popped(cluster, 3)
    far = format_handle(parse_handle(handles[0])._replace(offset=1 << 60))
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle([far, *handles]) == [False, True, True, True]


@pytest.mark.anyio
@pytest.mark.parametrize("action", ["ack", "nack", "reject", "give_back"])
async def test_answer_names_the_messages_that_were_settled_before(
    cluster: FakeCluster, action: Any
) -> None:
    cluster.create_topic(queues=1)
    handles = await popped(cluster, 10)
    async with connect(URL, world=cluster) as mq:
        assert await mq.settle([handles[9], handles[4]], "nack", delay=60) == [True, True]
        assert await mq.settle(handles, action) == [n not in (4, 9) for n in range(10)]
