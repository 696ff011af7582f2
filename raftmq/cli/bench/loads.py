"""The loads of `raftmq bench`, and their timing.

| load | what is timed |
|---|---|
| produce | from the hand-over of a batch to its receipt, `window` batches under way a client |
| consume | a `fetch`, on queues that were filled before |
| e2e | from the hand-over of a message at its producer to its arrival at a consumer |
| raft | from the hand-over of one message to its receipt, one under way in each of `window` tasks |

With a rate, a batch has a time at which it is due, and its latency counts from then: a stall adds
to the latency of all batches that had to wait (leaving that out is "coordinated omission").

All clients run in this process, on one event loop: beyond some hundred thousand messages a second
the figures measure the load itself. Start several `raftmq bench` on one topic then.
"""

import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio

import raftmq
from raftmq.cli.output import Meter
from raftmq.errors import RaftmqError
from raftmq.words import counted

from .report import Record

if TYPE_CHECKING:
    from raftmq.client import Client, Consumer, Producer

BEAT_SECONDS = 0.1
"""Seconds between two updates of the progress bar."""

FETCH_MESSAGES = 10_000
CLEANUP_SECONDS_MAX = 3.0
ARRIVAL_SECONDS_MAX = 5.0
"""The longest that `e2e` waits for the last messages."""

Task = Callable[[], Coroutine[Any, Any, None]]

_STAMP = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Load:
    """The options of a benchmark."""

    url: str
    timeout: float
    """Seconds for one call."""
    size: int
    """Bytes of a message."""
    batch: int
    """Messages of a batch."""
    window: int
    """Batches under way, for each client."""
    clients: int
    """Connections, each with a producer or consumer."""
    rate: float | None
    """Messages a second over all clients; None: without limit."""
    duration: float
    """Seconds."""
    topic: str | None
    """An existing topic; None: one is made and deleted."""
    queues: int
    """Queues of the topic that is made."""

    def settings(self) -> dict[str, Any]:
        """All options but the address."""
        return {name: value for name, value in asdict(self).items() if name != "url"}


async def produce(load: Load) -> tuple[Record, float]:
    """Run the load; returns the answers, and the seconds that it took."""
    async with _topic(load) as (mq, topic):
        return await _produce(load, mq, topic, "produce")


async def consume(load: Load) -> tuple[Record, float]:
    """Fill a topic for `duration`, or take an existing one, and read all of it."""
    async with _topic(load) as (mq, topic):
        if load.topic is None:
            await _produce(load, mq, topic, "filling")
        ends = await mq.admin.find_offsets(topic, "latest")
        starts = await mq.admin.find_offsets(topic, "earliest")
        record = Record()

        async def read(client: "Client", share: int) -> None:
            queues = sorted(ends)[share :: load.clients]
            left = sum(ends[queue] - starts[queue] for queue in queues)
            if not queues:
                return
            async with client.consumer(topic, queues=queues) as consumer:
                while left > 0:
                    began = anyio.current_time()
                    messages = await consumer.fetch(FETCH_MESSAGES)
                    left -= len(messages.bodies)
                    now = anyio.current_time()
                    if messages:
                        record.add(now, now - began, len(messages))

        async with _clients(load) as clients:
            tasks = [_bound(read, client, share) for share, client in enumerate(clients)]
            seconds = await _timed(record, tasks, what="consume")
        return record, seconds


async def e2e(load: Load) -> tuple[Record, float]:
    """Send at the rate, and time each message until its arrival."""
    async with _topic(load) as (mq, topic), AsyncExitStack() as stack:
        record, sent = Record(), Record()
        consumer = await stack.enter_async_context(mq.consumer(topic, start="latest"))
        clients = await stack.enter_async_context(_clients(load))
        producers = [await stack.enter_async_context(c.producer(topic)) for c in clients]
        pace = _Pace(load)

        def stamped() -> list[bytes]:
            stamp = _STAMP.pack(anyio.current_time())
            return [stamp.ljust(load.size, b".")] * load.batch

        tasks = [
            _bound(_send_on, load, producer, sent, pace, stamped)
            for producer in producers
            for _ in range(load.window)
        ]
        total: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(_receive, consumer, record, total)
            seconds = await _timed(sent, tasks, what="e2e", seconds=load.duration, shown=record)
            total.append(sent.messages)
            group.cancel_scope.deadline = anyio.current_time() + ARRIVAL_SECONDS_MAX
        record.errors = sent.errors + max(0, sent.messages - record.messages)
        return record, seconds


async def raft(load: Load) -> tuple[Record, float, dict[str, Any]]:
    """Send single awaited messages; also returns the nodes' rates of entries and disk passes."""
    async with _topic(load) as (mq, topic):
        before = await _counters(mq)
        record, seconds = await _produce(load, mq, topic, "raft")
        after = await _counters(mq)
    entries = after["entries"] - before["entries"]
    passes = after["disk_passes"] - before["disk_passes"]
    return (
        record,
        seconds,
        {
            "log entries/s": round(entries / seconds, 1),
            "disk passes/s, all nodes": round(passes / seconds, 1),
            "log entries a disk pass": round(entries * after["replicas"] / max(1, passes), 2),
        },
    )


async def _produce(load: Load, mq: "Client", topic: str, what: str) -> tuple[Record, float]:
    record, pace = Record(), _Pace(load)
    bodies = [(b"%d" % n).ljust(load.size, b".")[: load.size] for n in range(load.batch)]
    async with _clients(load) as clients, AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(c.producer(topic)) for c in clients]
        tasks = [
            _bound(_send_on, load, producer, record, pace, lambda: bodies)
            for producer in producers
            for _ in range(load.window)
        ]
        return record, await _timed(record, tasks, what=what, seconds=load.duration)


async def _send_on(
    load: Load,
    producer: "Producer",
    record: Record,
    pace: "_Pace",
    bodies: Callable[[], list[bytes]],
) -> None:
    """Send batch after batch until the time is over."""
    while True:
        began = await pace.wait_next()
        if began is None:
            return
        sent = await producer.send_many(bodies=bodies(), check=False)
        failed = 0 if sent.is_complete else len(sent.failed)
        now = anyio.current_time()
        record.errors += failed
        record.add(now, now - began, len(sent) - failed)


async def _receive(consumer: "Consumer", record: Record, total: list[int]) -> None:
    """Time the messages that arrive, until `total` holds a number and that number has arrived."""
    while not total or record.messages < total[0]:
        messages = await consumer.fetch(FETCH_MESSAGES, wait=BEAT_SECONDS)
        now = anyio.current_time()
        for body in messages.bodies:
            record.add(now, now - _STAMP.unpack_from(body)[0], 1)


class _Pace:
    """Hands out the times at which batches are due, over all clients."""

    def __init__(self, load: Load) -> None:
        self._interval = load.batch / load.rate if load.rate else 0.0
        self._started = anyio.current_time()
        self._until = self._started + load.duration
        self._numbers = count()

    async def wait_next(self) -> float | None:
        """Wait for the next batch's turn; returns its due time, or None when the time is over."""
        now = anyio.current_time()
        due = self._started + next(self._numbers) * self._interval if self._interval else now
        if max(due, now) >= self._until:
            return None
        if due > now:
            await anyio.sleep_until(due)
        return due


async def _timed(
    record: Record,
    tasks: list[Task],
    *,
    what: str,
    seconds: float | None = None,
    shown: Record | None = None,
) -> float:
    """Run all tasks to their end, with progress; returns the seconds that they took."""
    record.started = anyio.current_time()
    shown = shown or record
    shown.started = record.started
    with Meter(what, total=seconds, unit="s") as meter:
        async with anyio.create_task_group() as outer:
            outer.start_soon(_beat, meter, shown, what)
            async with anyio.create_task_group() as group:
                for task in tasks:
                    group.start_soon(task)
            outer.cancel_scope.cancel()
    return anyio.current_time() - record.started


async def _beat(meter: Meter, record: Record, what: str) -> None:
    last = anyio.current_time()
    while True:
        await anyio.sleep(BEAT_SECONDS)
        now = anyio.current_time()
        rate = record.messages / (now - record.started)
        meter.advance(now - last, f"{what}: {counted(record.messages, 'message')}, {rate:,.0f}/s")
        last = now


@asynccontextmanager
async def _clients(load: Load) -> AsyncIterator[list["Client"]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(raftmq.connect(load.url, timeout=load.timeout))
            for _ in range(load.clients)
        ]


@asynccontextmanager
async def _topic(load: Load) -> AsyncIterator[tuple["Client", str]]:
    """A connection for administration, and the topic; a topic made here is deleted at the end."""
    async with raftmq.connect(load.url, timeout=load.timeout) as mq:
        if load.topic is not None:
            yield mq, load.topic
            return
        topic = f"bench-{id(mq) & 0xFFFF_FFFF:x}-{int(anyio.current_time() * 1000) & 0xFFFF:x}"
        await mq.admin.create_topic(topic, load.queues)
        try:
            yield mq, topic
        finally:
            with anyio.move_on_after(CLEANUP_SECONDS_MAX, shield=True):
                await mq.admin.delete_topic(topic)


async def _counters(mq: "Client") -> dict[str, int]:
    """Committed entries over all groups, disk passes over all nodes, copies of a group."""
    view = await mq.admin.cluster()
    commits: dict[int, int] = {}
    passes = 0
    for node in view.nodes:
        try:
            status = await mq.admin.status(node.id)
        except RaftmqError:
            continue
        passes += status["disk_passes"]
        for group in status["groups"]:
            commits[group["group"]] = max(commits.get(group["group"], 0), group["commit"])
    replicas = max((len(group.voters) for group in view.groups), default=1)
    return {"entries": sum(commits.values()), "disk_passes": passes, "replicas": replicas}


def _bound(function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Task:
    return lambda: function(*arguments)
