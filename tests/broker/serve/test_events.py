"""The events of all messages, in bulk, equal those of each message alone."""

from random import Random
from typing import Any, NamedTuple

import pytest
import trio

from raftmq.broker.settings import Log
from raftmq.client import Client, Events, Trace
from raftmq.errors import Reason, Rejected
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client

GROUPS = ("audit", "billing")
SWEEPING = ("trimmed", "skipped", "reset", "filter gone")


class Said(NamedTuple):
    """One event of one message."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    timestamp: int
    what: str
    group: str
    attempt: int
    consumer: int
    token: int
    until: int


def of_message(rows: list[dict[str, Any]], queue: int, offset: int) -> list[Said]:
    """A message's events among these rows, without those that concern a whole stretch."""
    return [
        Said(
            row["index"],
            row["term"],
            int(row["timestamp"].timestamp() * 1000),
            row["what"],
            row["group"] or "",
            row["attempt"],
            row["consumer"] or 0,
            row["token"] or 0,
            0 if row["until"] is None else int(row["until"].timestamp() * 1000),
        )
        for row in rows
        if row["queue"] == queue
        and row["offset"] <= offset < row["offset"] + row["count"]
        and row["what"] not in SWEEPING
    ]


def of_trace(trace: Trace) -> list[Said]:
    """The same from the message's trace. Events of expired leases name no owner."""
    said = [
        Said(
            event.index,
            event.term,
            event.timestamp,
            event.what,
            event.group,
            event.attempt,
            event.consumer,
            event.token,
            event.until,
        )
        for event in trace.events
        if event.what not in SWEEPING
    ]
    return sorted(said)


def disowned(said: list[Said]) -> list[Said]:
    """Without consumer and token of ended leases: events have these in the hand-out's row only."""
    lost = ("expired", "dead letter", "given back")
    return sorted(
        each._replace(consumer=0, token=0) if each.what in lost else each for each in said
    )


async def all_pages(mq: Client, group: int, bytes_max: int) -> list[Events]:
    pages = [await mq.events(group, bytes_max=bytes_max)]
    while pages[-1].next < pages[-1].end:
        start = pages[-1].next
        pages.append(await mq.events(group, start, bytes_max=bytes_max))
        assert pages[-1].next > start
        assert (pages[-1].index < pages[-1].next).all()
    return pages


def rows_of(pages: list[Events]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page.to_arrow().to_pylist()]


async def settle_some(mq: Client, group: str, draw: Random) -> None:
    """Pop, and settle the messages in various ways; some leases are left to run out."""
    async with mq.consumer("orders", group=group, mode="pop", prefetch=0, invisible=1.0) as c:
        for _ in range(draw.randint(1, 3)):
            some = list(await c.pop(draw.randint(1, 30), wait=0.5))
            for message in some:
                match draw.choice(("ack", "ack", "ack", "nack", "later", "reject", "back", "")):
                    case "ack":
                        await message.ack()
                    case "nack":
                        await message.nack(delay=0.0)
                    case "later":
                        await message.nack(delay=draw.choice((0.2, 60.0)))
                    case "reject":
                        await message.reject("bad")
                    case "back":
                        await message.give_back()


async def live(cluster: Cluster, mq: Client, draw: Random) -> list[str]:
    """Random work while leaders die; returns the ids of all messages."""
    ids: list[str] = []
    for group in GROUPS:
        await mq.admin.create_consumer_group(group, schedule=[0.1, 0.5], attempts_max=3)
    for step in range(6):
        async with mq.producer("orders") as producer:
            for _ in range(draw.randint(1, 4)):
                bodies = [b"." * draw.choice((20, 400))] * draw.randint(1, 20)
                sent = await producer.send_many(bodies=bodies, queue=draw.randint(0, 2))
                ids += [str(receipt.id) for receipt in sent.receipts()]
        for group in GROUPS:
            await settle_some(mq, group, draw)
        if step in (2, 4):
            victim = cluster.leader_of(draw.choice((1 << 16, 1 << 16 | 1)))
            cluster.kill(victim)
            await trio.sleep(2)
            await cluster.start(victim)
            await cluster.wait_led(0, 1, 2, 3)
    return ids


@pytest.mark.parametrize("seed", range(4))
def test_events_equal_the_traces_of_all_messages(seed: int) -> None:
    draw = Random(seed)

    async def job(cluster: Cluster, mq: Client) -> Any:
        ids = await live(cluster, mq, draw)
        size = draw.choice((100, 1000, 1 << 22))
        pages = {group: await all_pages(mq, group, size) for group in (1, 2, 3)}
        traces = [await mq.trace(each) for each in ids]
        # Events of leases and delays that ended meanwhile are later than the pages read.
        ends = {group: pages[group][-1].end for group in pages}
        topic = (await mq.admin.describe_topic("orders")).queues
        homes = {queue.queue: queue.partition_group for queue in topic}
        return pages, traces, ends, homes

    pages, traces, ends, homes = with_client(
        job, queues=3, seed=seed + 1, log=Log(segment_bytes=16 * 1024)
    )
    rows = {group: rows_of(some) for group, some in pages.items()}
    assert len({row["term"] for some in rows.values() for row in some}) > 1
    kinds = {row["what"] for some in rows.values() for row in some}
    assert kinds >= {"stored", "handed out", "acked", "nacked", "dead letter", "ready"}
    for trace in traces:
        home = homes[trace.queue]
        expected = [each for each in of_trace(trace) if each.index < ends[home]]
        assert disowned(of_message(rows[home], trace.queue, trace.offset)) == disowned(expected)
    for some in rows.values():
        indexes = [row["index"] for row in some]
        assert indexes == sorted(indexes)
        stored = [row for row in some if row["what"] == "stored"]
        assert all(row["topic"] == "orders" and row["group"] is None for row in stored)


def test_leader_change_between_two_pages_neither_repeats_nor_skips() -> None:
    async def job(cluster: Cluster, mq: Client) -> Any:
        await live(cluster, mq, Random(9))
        group = (await mq.admin.describe_topic("orders")).queues[0].partition_group
        stop = (await mq.events(group, bytes_max=0)).end
        whole = await mq.events(group, stop=stop)
        start, parts = whole.start, []
        while start < stop:
            part = await mq.events(group, start, stop, bytes_max=800)
            parts.append(part)
            start = part.next
            if len(parts) == 3:
                victim = cluster.leader_of(1 << 16)
                cluster.kill(victim)
                await cluster.wait_led(0, 1, 2, 3)
        return whole, parts

    whole, parts = with_client(job, queues=3, log=Log(segment_bytes=16 * 1024))
    assert len(parts) > 6
    assert len(whole) > 50
    assert rows_of(parts) == rows_of([whole])


def test_what_was_stored_names_its_producer_on_all_queues() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        for size, count in ((10, 3), (200, 2)):
            async with mq.producer("orders") as producer:
                for queue in [*range(3)] * count:
                    await producer.send_many(bodies=[b"." * size] * 5, queue=queue)
        pages = [await all_pages(mq, group, 200) for group in (1, 2, 3)]
        return [row for some in pages for row in rows_of(some)]

    rows = with_client(job, queues=3, log=Log(segment_bytes=16 * 1024))
    batches: dict[int, list[int]] = {}
    for row in rows:
        assert row["what"] == "stored"
        assert row["consumer"] is None
        batches.setdefault(row["producer"], []).append(row["queue"])
    assert sorted(map(sorted, batches.values())) == [
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
        [0, 0, 1, 1, 2, 2],
    ]


def test_only_the_range_is_told_if_nothing_more_is_wanted() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"x"] * 10, queue=0)
        return await mq.events(1, bytes_max=0), await mq.events(1)

    alone, page = with_client(job)
    assert (len(alone), alone.first, alone.end) == (0, page.start, page.end)
    assert page.next == page.end
    (row,) = page.to_arrow().to_pylist()
    assert (row["what"], row["offset"], row["count"], row["topic"]) == ("stored", 0, 10, "orders")


def test_what_the_log_does_not_hold_is_refused_by_its_range() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        alone = await mq.events(1, bytes_max=0)
        first, end = alone.first, alone.end
        assert len(await mq.events(1, end)) == 0
        found = []
        for group, start in ((1, end + 1), (1, first - 1), (0, 1), (99, 1)):
            with pytest.raises(Rejected) as caught:
                await mq.events(group, start)
            found.append((caught.value.reason, str(caught.value)))
        return first, end, found

    first, end, found = with_client(job)
    reasons = [reason for reason, _ in found]
    assert reasons == [Reason.OFFSET_OUT_OF_RANGE] * 2 + [Reason.BAD_ARGUMENT] * 2
    assert f"holds records {first} to {end - 1}, and {end + 1} was asked for" in found[0][1]


def test_names_of_what_is_gone_are_its_numbers() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as producer:
            await producer.send(b"x", queue=0)
        for group in ("gone", "here"):
            async with mq.consumer("orders", group=group, mode="pop", prefetch=0) as consumer:
                (message,) = await consumer.pop(1, wait=5.0)
                await message.ack()
        await mq.admin.detach("orders", "gone")
        return await mq.events(1)

    rows = with_client(job).to_arrow().to_pylist()
    assert [(row["what"], row["group"]) for row in rows if row["what"] != "stored"] == [
        ("handed out", "#1"),
        ("acked", "#1"),
        ("handed out", "here"),
        ("acked", "here"),
    ]
