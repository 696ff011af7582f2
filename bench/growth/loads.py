"""Loads in windows: some seconds of work after a short warm-up, on one cluster at a time.

| load | counts | in flight |
|---|---|---|
| `produce` | acknowledged messages | a window of batches |
| `tail` | messages that a reader at the end has received | sent and not yet received |
| `read` | messages received | what the consumer fetches ahead |

`alternate` lets two sides take turns, A B B A A B ..., so that a slow drift of the machine affects
both alike, and neither side is always first.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Self

import trio

import raftmq

from .nodes import COUNT, Nodes
from .outcome import Window

TOPIC = "growth"
SIZE = 100
BATCH = 100
IN_FLIGHT = 128
"""Batches under way: enough to keep three nodes busy."""
WARM_UP_SECONDS = 0.4
CONNECT_SECONDS_MAX = 60.0
_BODIES = [b"x" * SIZE] * BATCH
_BUFFER_BYTES = 1 << 30
_BUFFER_MESSAGES = 1 << 20
_FETCH_MESSAGES = 10_000
_FETCH_WAIT_SECONDS = 0.2


class Load:
    """A client of one cluster, with a producer; each method is a kind of work."""

    def __init__(self, nodes: Nodes, client: raftmq.Client, producer: raftmq.Producer) -> None:
        self.nodes = nodes
        """The cluster."""
        self.client = client
        """A client that is connected to the cluster."""
        self.producer = producer
        """A producer of `TOPIC`."""

    @classmethod
    @asynccontextmanager
    async def on(cls, nodes: Nodes) -> AsyncIterator[Self]:
        """A load on a cluster that has the topic."""
        async with (
            raftmq.connect(nodes.url, timeout=CONNECT_SECONDS_MAX) as client,
            client.producer(
                TOPIC,
                batch_messages=BATCH,
                buffer_bytes=_BUFFER_BYTES,
                buffer_messages=_BUFFER_MESSAGES,
            ) as producer,
        ):
            yield cls(nodes, client, producer)

    async def fill(self, messages: int, *, tell: Callable[[str], None]) -> None:
        """Store `messages` messages, in batches to all queues in turn."""
        under_way: deque[raftmq.client.PendingMany] = deque()
        step = max(1, messages // BATCH // 10)
        for number in range(messages // BATCH):
            if number % step == 0:
                tell(f"storing {number * BATCH:,} of {messages:,}")
            if len(under_way) >= IN_FLIGHT:
                await under_way.popleft().wait()
            under_way.append(self.producer.send_many_nowait(bodies=_BODIES))
        for pending in under_way:
            await pending.wait()

    async def produce(self, seconds: float, queues: Sequence[int] | None = None) -> Window:
        """Publish batches to these queues in turn; None: to all, as the producer chooses."""
        meter = _Meter(self.nodes, seconds)
        turns = cycle(queues or [None])
        under_way: deque[tuple[float, raftmq.client.PendingMany]] = deque()
        while not meter.is_over():
            while len(under_way) < IN_FLIGHT:
                pending = self.producer.send_many_nowait(bodies=_BODIES, queue=next(turns))
                under_way.append((time.perf_counter(), pending))
            sent_at, pending = under_way.popleft()
            await pending.wait()
            meter.count(BATCH, sent_at)
        window = meter.window()
        for _, pending in under_way:
            await pending.wait()
        return window

    async def tail(self, seconds: float, queues: Sequence[int] | None = None) -> Window:
        """Publish, and read the messages at the end; a window bounds the messages under way."""
        async with self.client.consumer(TOPIC, start="latest", queues=queues) as consumer:
            meter = _Meter(self.nodes, seconds)
            on_way = _OnWay()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_follow, consumer, meter, on_way)
                turns = cycle(queues or [None])
                while not meter.is_over():
                    with trio.move_on_after(0.1):
                        await on_way.wait_below(IN_FLIGHT * BATCH)
                        on_way.add(BATCH)
                        self.producer.send_many_nowait(bodies=_BODIES, queue=next(turns))
                window = meter.window()
                await self.producer.flush()
                nursery.cancel_scope.cancel()
        return window

    async def read(self, seconds: float, consumer: raftmq.Consumer) -> Window:
        """Read with a consumer from its position on, until the window ends."""
        meter = _Meter(self.nodes, seconds)
        while not meter.is_over():
            messages = await consumer.fetch(_FETCH_MESSAGES, wait=_FETCH_WAIT_SECONDS)
            meter.count(len(messages))
        return meter.window()


async def create_topic(nodes: Nodes, queues: int) -> None:
    """Create the topic; return when each data group has a leader on a node of its own."""
    async with raftmq.connect(nodes.url, timeout=CONNECT_SECONDS_MAX) as client:
        await client.admin.create_topic(TOPIC, queues=queues)
        with trio.fail_after(CONNECT_SECONDS_MAX):
            while True:
                view = await client.admin.cluster()
                leaders = {group.leader for group in view.groups if group.id}
                if len(leaders) == COUNT and 0 not in leaders:
                    return
                await trio.sleep(0.1)


async def alternate(
    plain: Callable[[], Awaitable[Window]],
    grown: Callable[[], Awaitable[Window]],
    *,
    rounds: int,
    is_reversed: bool = False,
) -> tuple[list[Window], list[Window]]:
    """Windows of both sides, which take turns; the n-th windows of both are neighbours."""
    plain_windows, grown_windows = [], []
    for number in range(rounds):
        if (number % 2 == 1) is is_reversed:
            plain_windows.append(await plain())
            grown_windows.append(await grown())
        else:
            grown_windows.append(await grown())
            plain_windows.append(await plain())
    return plain_windows, grown_windows


class _Meter:
    """Counts between the end of the warm-up and the deadline."""

    def __init__(self, nodes: Nodes, seconds: float) -> None:
        self._nodes = nodes
        self._begin = time.perf_counter() + WARM_UP_SECONDS
        self._end = self._begin + seconds
        self._last = 0.0
        self._messages = 0
        self._latencies: list[float] = []
        self._server_seconds: float | None = None

    def is_over(self) -> bool:
        """The deadline has passed."""
        return time.perf_counter() >= self._end

    def count(self, messages: int, sent_at: float | None = None) -> None:
        """Count messages that arrived now and were sent at `sent_at`; None: no latency."""
        now = time.perf_counter()
        if now < self._begin:
            return
        # The first arrival after the warm-up begins the window: time and cost start together.
        if self._server_seconds is None:
            self._begin, self._server_seconds = now, self._nodes.cpu_seconds()
            return
        self._messages += messages
        self._last = now
        if sent_at is not None:
            self._latencies.append(now - sent_at)

    def window(self) -> Window:
        """The counted window. Call it at the deadline, before anything is drained."""
        server_seconds = self._nodes.cpu_seconds() - (self._server_seconds or 0.0)
        seconds = time.perf_counter() - self._begin
        return Window(self._messages, seconds, server_seconds, tuple(sorted(self._latencies)))


class _OnWay:
    """Messages that were sent and not yet received."""

    def __init__(self) -> None:
        self._count = 0
        self._news = trio.Event()

    def add(self, count: int) -> None:
        self._count += count

    def take(self, count: int) -> None:
        self._count -= count
        self._news.set()
        self._news = trio.Event()

    async def wait_below(self, limit: int) -> None:
        while self._count >= limit:
            await self._news.wait()


async def _follow(consumer: raftmq.Consumer, meter: _Meter, on_way: _OnWay) -> None:
    while True:
        messages = await consumer.fetch(_FETCH_MESSAGES, wait=_FETCH_WAIT_SECONDS)
        if messages:
            meter.count(len(messages))
            on_way.take(len(messages))
