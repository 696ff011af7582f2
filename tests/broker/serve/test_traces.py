"""A message's trace as clients see it: each way through a group, and how long rows are kept."""

from typing import Any

import pytest

from raftmq.broker.serve import traces
from raftmq.broker.settings import Log
from raftmq.client import Client, Trace
from raftmq.errors import Reason, Rejected
from raftmq.log.segment import INDEX_SUFFIX
from raftmq.pop.actions import REASON_CHARACTERS_MAX
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client


async def send(mq: Client, count: int) -> list[str]:
    """The ids of new messages, sent as one batch."""
    async with mq.producer("orders") as producer:
        sent = await producer.send_many(bodies=[b"x"] * count, queue=0)
        return [str(receipt.id) for receipt in sent.receipts()]


async def all_traces(mq: Client, ids: list[str]) -> list[Trace]:
    return [await mq.trace(each) for each in ids]


def words(trace: Trace, group: str = "g") -> list[str]:
    (journey,) = [each for each in trace.journeys if each.group == group]
    return [event.what for event in journey.events]


def test_each_deed_of_a_consumer_is_told_of_the_messages_that_it_concerns() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", schedule=[0.05], attempts_max=2)
        ids = await send(mq, 6)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            batch = list(await consumer.pop(6, wait=5.0))
            tokens = {each.token for each in batch}
            await batch[0].ack()
            await batch[1].nack(delay=60.0)
            await batch[2].reject("poison")
            await batch[3].give_back()
            await batch[4].nack()
            again: list[Any] = []
            while len(again) < 2:
                again += await consumer.pop(2, wait=5.0)
            for each in again:
                await each.nack(delay=0.0)
            return ids, tokens, await all_traces(mq, ids)

    ids, tokens, traces = with_client(job)
    assert [trace.id for trace in traces] == ids
    assert all(trace.is_whole and trace.stored is not None for trace in traces)
    assert [words(trace) for trace in traces] == [
        ["handed out", "acked"],
        ["handed out", "nacked"],
        ["handed out", "dead letter"],
        ["handed out", "given back", "handed out", "nacked"],
        ["handed out", "nacked", "ready", "handed out", "dead letter"],
        ["handed out"],
    ]
    states = [trace.journeys[0].state for trace in traces]
    assert states == ["acked", "waiting", "dead", "ready", "dead", "leased"]
    reasons = [trace.events[-1].reason for trace in traces]
    assert reasons == ["", "", "poison", "", "failed", ""]
    events = [event for trace in traces for event in trace.events]
    assert {event.token for event in events if event.attempt == 1 and event.token} >= tokens
    assert len({event.consumer for event in events} - {0}) == 1
    assert len({event.node for event in events}) == 1
    assert {event.node for event in events} <= {1, 2, 3}
    assert traces[1].events[-1].until == traces[1].events[-1].timestamp + 60_000
    for trace in traces:
        stamps = [(event.index, event.timestamp) for event in trace.events]
        assert stamps == sorted(stamps)


def test_lease_that_ran_out_is_told_with_its_token() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", schedule=[0.0])
        (message_id,) = await send(mq, 1)
        async with mq.consumer(
            "orders", group="g", mode="pop", prefetch=0, invisible=1.0
        ) as consumer:
            (first,) = await consumer.pop(1, wait=5.0)
            (second,) = await consumer.pop(1, wait=5.0)
            await second.ack()
            return first.token, second.token, await mq.why(message_id)

    first, second, events = with_client(job)
    assert [(event.what, event.token, event.attempt) for event in events] == [
        ("stored", 0, 0),
        ("handed out", first, 1),
        ("expired", first, 1),
        ("handed out", second, 2),
        ("acked", second, 2),
    ]
    assert events[1].until == events[1].timestamp + 1000


def test_groups_are_told_apart_and_what_was_not_handed_out_is_only_stored() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        ids = await send(mq, 2)
        for group in ("a", "b"):
            async with mq.consumer("orders", group=group, mode="pop", prefetch=0) as consumer:
                (message,) = await consumer.pop(1, wait=5.0)
                await message.ack()
        await mq.admin.detach("orders", "b")
        return await all_traces(mq, ids)

    first, second = with_client(job)
    assert [journey.group for journey in first.journeys] == ["a", "#2"]
    assert words(first, "a") == ["handed out", "acked"]
    assert [event.what for event in second.events] == ["stored"]


def test_what_a_filter_passes_over_is_told() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as producer:
            receipts = [await producer.send(b"x", tag=tag, queue=0) for tag in ("no", "yes")]
            ids = [str(receipt.id) for receipt in receipts]
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0, tags="yes") as consumer:
            (message,) = await consumer.pop(1, wait=5.0)
            await message.ack()
        return await all_traces(mq, ids)

    first, second = with_client(job)
    assert (words(first), first.journeys[0].state) == (["passed over"], "passed")
    assert words(second) == ["handed out", "acked"]


def test_message_that_never_was_is_refused() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        (message_id,) = await send(mq, 1)
        reasons = []
        for wrong in (message_id + "ff", "nonsense", "990000-0"):
            with pytest.raises(Rejected) as caught:
                await mq.why(wrong)
            reasons.append(caught.value.reason)
        with pytest.raises(Rejected, match="no message at offset 1 yet: it ends at 1"):
            await mq.why(f"{message_id.split('-')[0]}-1")
        return reasons

    expected = [Reason.OFFSET_OUT_OF_RANGE, Reason.BAD_ARGUMENT, Reason.UNKNOWN_TOPIC]
    assert with_client(job) == expected


def test_long_story_is_told_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.broker.serve.traces.EVENTS_MAX", 3)

    async def job(_: Cluster, mq: Client) -> Any:
        (message_id,) = await send(mq, 1)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            for _round in range(8):
                (message,) = await consumer.pop(1, wait=5.0)
                await message.nack(delay=0.0)
        return await mq.why(message_id)

    events = with_client(job)
    assert [event.what for event in events] == ["stored"] + ["handed out", "nacked"] * 8


def index_files(cluster: Cluster) -> dict[tuple[int, str], bytes]:
    """The index files of all disks."""
    return {
        (number, path): disk.bytes_of(path)
        for number, disk in cluster.files.items()
        for path in disk.paths()
        if path.endswith(INDEX_SUFFIX)
    }


async def begin_again(cluster: Cluster, *numbers: int) -> None:
    await cluster.start(*numbers)
    await cluster.wait_led(0, 1, 2, 3)
    await cluster.wait_known("orders")


def test_trace_outlives_leaders_and_the_loss_of_all_index_files() -> None:
    async def fail_once(cluster: Cluster, mq: Client) -> None:
        async with (
            mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer,
            mq.producer("orders") as producer,
        ):
            (message,) = await consumer.pop(1, wait=30.0)
            await message.nack(delay=10.0)
            for _ in range(12):
                await producer.send(b"." * 3000, queue=0)
                (other,) = await consumer.pop(1, wait=5.0)
                await other.ack()
        leader = cluster.leader_of(1 << 16)
        cluster.kill(leader)
        await begin_again(cluster, leader)

    async def job(cluster: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", attempts_max=3)
        (message_id,) = await send(mq, 1)
        for _ in range(3):
            await fail_once(cluster, mq)
        whole = await mq.trace(message_id)
        before = index_files(cluster)
        for number in (1, 2, 3):
            cluster.kill(number)
        for number, path in before:
            cluster.files[number].unlink(path)
        await begin_again(cluster)
        last = await mq.trace(message_id)
        await cluster.wait_until(lambda: index_files(cluster).keys() >= before.keys())
        after = index_files(cluster)
        return whole, last, before, {path: after[path] for path in before}

    whole, last, before, after = with_client(job, log=Log(segment_bytes=16 * 1024))
    assert words(whole) == ["handed out", "nacked", "ready"] * 2 + ["handed out", "dead letter"]
    assert (whole.journeys[0].state, whole.is_whole) == ("dead", True)
    assert len({event.term for event in whole.events}) >= 2
    # A node that was started again does not know who led before.
    assert [each._replace(node=0) for each in last.events] == [
        each._replace(node=0) for each in whole.events
    ]
    assert len(before) > 6
    assert after == before


def test_long_reason_of_a_dead_letter_is_cut_in_the_trace_and_whole_in_the_letter() -> None:
    reason = "\U0001f600" * REASON_CHARACTERS_MAX

    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g")
        ids = await send(mq, 1)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            (message,) = await consumer.pop(1, wait=5.0)
            await message.reject(reason)
        letters = await mq.admin.dead_letters("orders", "g")
        return await mq.trace(ids[0]), letters

    trace, (letter,) = with_client(job)
    (journey,) = [each for each in trace.journeys if each.group == "g"]
    assert journey.events[-1].reason == reason[: traces.REASON_CHARACTERS_MAX]
    assert letter.reason == reason
