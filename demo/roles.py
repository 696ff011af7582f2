"""The clients of the demo: one producer, and a reader for each consumer group.

Each has a connection of its own and knows the cluster by its URL only. The producer keeps a window
of batches under way and goes on through the failover: retries are the client library's business.
The readers commit offsets as they go.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import anyio

import raftmq
from raftmq.batch import queue_of
from raftmq.client import Outgoing, PendingMany
from raftmq.errors import OutcomeUnknown, RaftmqError

from .checker import Ledger, Witness
from .flights import Flight

TOPIC = "flights"
QUEUES = 8
SEND_SECONDS_MAX = 60.0
"""Longest wait for a message's receipt; after that the message counts as not acked."""
CHUNK_MESSAGES_MAX = 1_000
WINDOW_MESSAGES_MAX = 32_000
"""Messages cut into one call a queue, and under way at a time; fewer in a short run."""
FETCH_MESSAGES = 500
FETCH_SECONDS = 0.25
COMMIT_SECONDS = 0.5
QUIET_SECONDS_MAX = 30.0
"""A reader that gets no message for this time, while some are left, gives up."""

Moment = Callable[[], None]


@dataclass(slots=True)
class AckTimes:
    """Times of each partition group's acks: the longest pause around the fault."""

    last: dict[int, float] = field(default_factory=dict)
    """Partition group → time of its last ack."""
    counts: dict[int, int] = field(default_factory=dict)
    """Partition group → number of batches acked."""
    fault_group: int = 0
    """The partition group whose leader was killed."""
    fault_at: float = float("inf")
    """Time of the kill."""
    pause_seconds: float = 0.0
    """The longest time between two acks of that group of which the later is after the fault; the
    first ack of all starts no pause."""

    def note(self, group: int, now: float) -> None:
        """Note an ack of the group."""
        before = self.last.get(group)
        self.last[group] = now
        self.counts[group] = self.counts.get(group, 0) + 1
        if group == self.fault_group and before is not None and now > self.fault_at:
            self.pause_seconds = max(self.pause_seconds, now - before)


class Sender:
    """Sends the flights in order, and notes each receipt.

    Each call holds messages of one queue, by the documented hash of their keys, so that the time of
    its receipts is a fact about that queue alone.
    """

    def __init__(self, ledger: Ledger, groups: list[int], moment: Moment) -> None:
        """`groups`: the partition group of each queue; `moment` is called after each receipt."""
        self.times = AckTimes()
        """Times of the acks."""
        self.started = 0.0
        self.ended = 0.0
        """The first send and the last receipt, on the clock of anyio."""
        self.errors: list[str] = []
        """The first few reasons why messages were not acked."""
        self._ledger = ledger
        self._groups = groups
        self._moment = moment
        self._chunk = min(CHUNK_MESSAGES_MAX, max(1, ledger.rows // 50))
        window = min(WINDOW_MESSAGES_MAX, max(1, ledger.rows // 10))
        self._slots = anyio.Semaphore(max(1, window * len(groups) // self._chunk))

    async def run(
        self, mq: raftmq.Client, flights: Iterator[Flight], *, hold_at: int, hold: anyio.Event
    ) -> None:
        """Send all and wait for all receipts; before message `hold_at` wait for `hold`."""
        self.started = self.ended = anyio.current_time()
        async with mq.producer(TOPIC) as producer, anyio.create_task_group() as tasks:
            while chunk := list(islice(flights, self._chunk)):
                if chunk[0].row <= hold_at <= chunk[-1].row:
                    await hold.wait()
                for part in self._by_queue(chunk):
                    await self._slots.acquire()
                    for flight in part:
                        self._ledger.send(*flight)
                    # The non-waiting call: two waiting calls would have no order between them.
                    pending = producer.send_many_nowait(
                        [Outgoing(f.body, f.key, f.tag, f.props) for f in part],
                        timeout=SEND_SECONDS_MAX,
                    )
                    tasks.start_soon(self._take_receipts, pending, [f.row for f in part])

    def _by_queue(self, chunk: list[Flight]) -> Iterable[list[Flight]]:
        parts: dict[int, list[Flight]] = {}
        for flight in chunk:
            # Messages without a key go to any queue: a call of their own, -1.
            queue = -1 if flight.key is None else queue_of(flight.key, len(self._groups))
            parts.setdefault(queue, []).append(flight)
        return parts.values()

    async def _take_receipts(self, pending: PendingMany, rows: list[int]) -> None:
        sent = await pending.wait(check=False)
        now = self.ended = anyio.current_time()
        self._slots.release()
        for part in sent.ranges:
            if part.error is None:
                self.times.note(self._groups[part.queue], now)
                for nth, position in enumerate(part.positions):
                    self._ledger.ack(rows[position], part.queue, part.receipt(nth).offset)
            else:
                self._take_error(part.error, [rows[position] for position in part.positions])
        self._moment()

    def _take_error(self, error: RaftmqError, rows: list[int]) -> None:
        if len(self.errors) < 3:
            self.errors.append(f"{type(error).__name__}: {error}")
        if not isinstance(error, OutcomeUnknown):
            for row in rows:
                self._ledger.refuse(row)


class Reader:
    """One reader of all queues, in order, which commits as it goes: a whole pull group, or an
    instance of a broadcast group."""

    def __init__(self, witness: Witness, *, broadcast_group: str = "") -> None:
        """`broadcast_group`: the group that the reader is an instance of; empty: a pull group."""
        self.witness = witness
        """Takes in the messages read."""
        self._broadcast_group = broadcast_group
        self.seconds = 0.0
        """Time from the first message to the last."""
        self.trouble = ""
        """Why the reader ended before the end of the queues; empty: it reached the end."""
        self._ends: dict[int, int] | None = None

    def finish_at(self, ends: dict[int, int]) -> None:
        """Tell the ends, as no more is sent: queue → the offset after its last message."""
        self._ends = ends

    async def run(self, mq: raftmq.Client) -> None:
        """Read until the ends are reached."""
        first = None
        last = anyio.current_time()
        async with self._consumer(mq) as consumer:
            while self._ends is None or any(
                consumer.position[queue] < end for queue, end in self._ends.items()
            ):
                batch = await consumer.fetch(FETCH_MESSAGES, wait=FETCH_SECONDS)
                now = anyio.current_time()
                if not batch:
                    if self._ends is not None and now - last > QUIET_SECONDS_MAX:
                        self.trouble = f"nothing came for {QUIET_SECONDS_MAX:g} s"
                        return
                    continue
                first, last = first or now, now
                for m in batch:
                    self.witness.see(m.body, m.key, m.tag, m.props, queue=m.queue, offset=m.offset)
                self.seconds = last - first

    def _consumer(self, mq: raftmq.Client) -> raftmq.Consumer:
        name = self.witness.name
        if not self._broadcast_group:
            return mq.consumer(TOPIC, group=name, mode="pull", auto_commit=COMMIT_SECONDS)
        return mq.consumer(
            TOPIC,
            group=self._broadcast_group,
            mode="broadcast",
            instance=name,
            start="earliest",
            auto_commit=COMMIT_SECONDS,
        )
