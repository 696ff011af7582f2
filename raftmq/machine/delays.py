"""Delayed messages: kept by reference until they fall due, then placed in their queue like any.

A batch with a delivery time after its record's time gets no offsets yet. Its messages stay where
they are in the log, and for each the machine keeps a row (`delay_queue`). When rows fall due, the
leader reads their messages and proposes them as a batch of their own, a *release* (`releases`).
Applying the release places them at the end of the queue and removes the rows, in the same entry.

    record 90   batch, due at t         rows (t, 90<<16), (t, 90<<16|1), … no offsets
    record 97   its time is t or later  the rows are due: no cancellation takes effect now
    record 98   release of 90<<16       offsets 40, 41, …; the rows are gone

A release names the number of the first message that it has; numbers are never used twice. Rows are
due once a record of their time or a later one was applied. Only a release, or the end of the queue,
removes a due row, and no row is put before a due one: a batch's past times count as its record's
own. So if the first row is still the named one, all rows that follow are those that the leader saw.
A second release of the same messages, by an old leader or a new one, finds another first row, and
is refused.

Retention must not take the only copy. The machine does not let the log be trimmed beyond the first
message that waits; before that, the leader writes those messages again at the end (`Carry`), and
the rows follow. A message keeps its number when it moves.

Invariants:
- Each message that was delayed is a row, or was placed once, cancelled once, or dropped with its
  queue: never two of these.
- No message is placed by a record whose time lies before its own.
- The answer to a cancellation holds: a cancelled message is never placed, one that fell due is.
- A queue's delayed messages are placed in the order of their times, and of their sending.
- Nothing before `floor` is the only copy of a message.

Left out: a batch is delayed as a whole. Its messages without a time are due at once, and reach
the queue some milliseconds later than they would alone.

Sources: RocketMQ's timer messages (issues #8006, #7927, #10668 are what one log rules out).
"""

from array import array
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np

from raftmq.batch import Batch, BatchHead, Flag
from raftmq.errors import CorruptRecord, Reason
from raftmq.results import Changed, Delayed, Refused

from .delay_queue import ROW_BYTES, DelayQueue, Key, Rows
from .producers import RESERVED

POSITION_BITS = 16
"""A place is `Raft index << POSITION_BITS | position in the batch`."""
RELEASER = RESERVED | 1
"""The producer of a release; its first sequence is the number of the first message."""
HORIZON_MS_MAX = 10 * 366 * 24 * 3600 * 1000
"""No message is delayed for longer: ten years, so that a wrong unit of time is found at once."""
ITEMS_MAX = 4096
"""Messages of one `Cancel`."""
CANCELLED_MAX = 65_536
"""Cancelled messages that are remembered, the latest ones: a client whose answer was lost asks
again, perhaps after the message's time. Each takes about 100 bytes of memory."""

NEVER = 2**62 - 1
"""The delivery time of a half message: it falls due when its transaction commits."""

CANCELLED = 1
"""In the result of a `Cancel`: the message was removed, and is never delivered."""
NOT_WAITING = 0
"""No such message waits: it never did, or was cancelled before; see `CANCELLED_MAX`."""
FELL_DUE = -1
"""The message's time has come: it is in its queue, or on its way there."""

_DELIVERY = Flag.DELIVERY.value
_REGION_BITS = POSITION_BITS + 6
"""Waiting messages are counted per 64 records: a count per record would take too much memory."""
_SPARE_TIMERS = 64
_REQUEST_MASK = (1 << 63) - 1


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel_delayed"):
    """Remove delayed messages whose time has not come."""

    queues: list[int]
    """For each message the number of its queue."""
    dues: list[int]
    """For each message when it falls due."""
    numbers: list[int]
    """For each message its number."""
    request: int = 0
    """A random number of the caller's own: a repeat with this number gets the first answer. 0, as
    older software wrote: no number."""


class Carry(msgspec.Struct, frozen=True, array_like=True, tag="carry_delayed"):
    """Delayed messages, written again before retention takes their first copy. Stands alone in its
    record."""

    numbers: bytes
    """The messages' numbers, one little-endian i64 each."""
    batch: bytes
    """The messages, each with the delivery time of its row."""


class Run(NamedTuple):
    """Neighbouring messages of a batch that fall due together."""

    due: int
    """When, milliseconds since 1970."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which is unused here
    """How many."""


class Half(NamedTuple):
    """Neighbouring messages of a transaction."""

    queue: int
    """The queue's number."""
    number: int
    """Number of the first message; the others have consecutive numbers."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which is unused here
    """How many."""


class Delays:
    """All delayed messages of a data group's machine."""

    def __init__(self, pending_max: int) -> None:
        self._pending_max = pending_max
        self._queues: dict[int, DelayQueue] = {}
        # (when a queue's first row falls due, queue); void once the first row is another one.
        self._timers: list[tuple[int, int]] = []
        # Region of the log → waiting messages that stand in it.
        self._held: dict[int, int] = {}
        # Numbers of cancelled messages → the request that did it, the latest last.
        self._cancelled: dict[int, int] = {}
        # Index of the record with the last `Carry`.
        self._carried = 0
        # Index of the record with the last commit, and how many numbers that record gave.
        self._committed = (0, 0)
        self.count = 0
        """Messages that wait."""
        self.dropped = 0
        """Messages that waited for a queue which is gone."""
        self.now = 0
        """The time of the last record."""

    # Calls of the machine

    def pass_time(self, now: int) -> None:
        """A record of this time is about to be applied."""
        self.now = max(self.now, now)

    def admit(self, payload: memoryview, head: BatchHead) -> list[Run] | Refused | None:
        """When the messages of a batch fall due; None: the batch is not delayed.

        No time is before the record's, so that the rows come after all due ones.
        """
        if not head.flags & _DELIVERY:
            return None
        try:
            times = _whole(payload).delivery_times
        except CorruptRecord as error:
            return Refused(Reason.CORRUPT_BATCH, str(error))
        now, last = self.now, max(times)
        if last <= now:
            return None
        if last > now + HORIZON_MS_MAX and min(times) < NEVER:
            message = (
                f"a message is to be delivered at {last} ms, more than ten years from now "
                f"({now} ms)"
            )
            return Refused(Reason.BAD_ARGUMENT, message)
        if times.count(last) == len(times):
            return [Run(last, len(times))]
        clamped = [max(time, now) for time in times]
        return [Run(due, len(list(equal))) for due, equal in groupby(clamped)]

    def has_room(self, count: int) -> bool:
        """Is there capacity for `count` more delayed messages?"""
        return self.count + count <= self._pending_max

    def put(self, queue: int, index: int, runs: list[Run]) -> Delayed:
        """Keep rows for the messages of the record at `index`, which fall due as `runs` say."""
        first = at = index << POSITION_BITS
        delayed = self._queues.get(queue)
        if delayed is None:
            delayed = self._queues[queue] = DelayQueue()
        before = delayed.first if delayed.count else None
        for due, count in runs:
            delayed.put(due=due, number=at, place=at, count=count)
            at += count
        count = at - first
        self._come(first, count)
        # `has_room` was asked before: the producer's session knows the batch by now.
        assert self.count <= self._pending_max, "more messages wait than there is room for"
        if delayed.first != before:
            self._watch(queue, delayed)
        return Delayed(queue, first, count, self.now, duplicate=False)

    def release(self, head: BatchHead) -> Refused | None:
        """Remove the rows that a release names; refused unless they are the first and due."""
        delayed = self._queues.get(head.queue)
        if (
            head.producer != RELEASER
            or delayed is None
            or delayed.first.number != head.first_sequence
        ):
            return Refused(Reason.OUT_OF_ORDER, "another release was faster")
        if not delayed.is_due(head.count, until=self.now):
            return Refused(Reason.OUT_OF_ORDER, f"not all {head.count} messages are due")
        assert delayed.first.due <= self.now, "a message is released before its time"
        self._leave(np.frombuffer(delayed.take(head.count), dtype=np.int64))
        self._tidy(head.queue, delayed)
        return None

    def cancel(self, command: Cancel) -> Changed | Refused:
        """Remove messages whose time has not come; one outcome for each."""
        count = len(command.queues)
        if not count == len(command.dues) == len(command.numbers) <= ITEMS_MAX:
            message = f"as many queues, times and numbers are needed, up to {ITEMS_MAX}"
            return Refused(Reason.BAD_ARGUMENT, message)
        items = zip(command.queues, command.dues, command.numbers, strict=True)
        request = command.request & _REQUEST_MASK
        return Changed([self._cancel(*item, request) for item in items])

    def _cancel(self, queue: int, due: int, number: int, request: int) -> int:
        # Before the time is checked: a repeat must not call a cancelled message delivered.
        if number in self._cancelled:
            is_repeat = request > 0 and self._cancelled[number] == request
            return CANCELLED if is_repeat else NOT_WAITING
        if due <= self.now:
            return FELL_DUE
        delayed = self._queues.get(queue)
        # A half message ends with its transaction only.
        place = delayed.remove(due, number) if delayed is not None and due < NEVER else None
        if delayed is None or place is None:
            return NOT_WAITING
        self._leave(np.array([place]))
        self._tidy(queue, delayed)
        self._cancelled[number] = request
        if len(self._cancelled) > CANCELLED_MAX:
            del self._cancelled[next(iter(self._cancelled))]
        return CANCELLED

    def commit(self, halves: list[Half], index: int) -> bool:
        """Let half messages fall due now, by the record at `index`; False: no numbers are left."""
        at, given = self._committed
        given = given if at == index else 0
        if given + sum(half.count for half in halves) > 1 << POSITION_BITS:
            return False
        for queue, first, count in halves:
            delayed = self._queues.get(queue)
            if delayed is None:
                # Its topic is gone.
                continue
            for number in range(first, first + count):
                place = delayed.remove(NEVER, number)
                if place is not None:
                    # A new number: a row that is put in must sort behind all that are due.
                    own = index << POSITION_BITS | given
                    delayed.put(due=self.now, number=own, place=place, count=1)
                    given += 1
            self._watch(queue, delayed)
        assert given <= 1 << POSITION_BITS, "one number would stand for two messages"
        self._committed = (index, given)
        return True

    def roll_back(self, halves: list[Half]) -> None:
        """Remove half messages."""
        for queue, first, count in halves:
            delayed = self._queues.get(queue)
            if delayed is not None:
                places = [delayed.remove(NEVER, number) for number in range(first, first + count)]
                self._leave(np.array([place for place in places if place is not None], np.int64))
                self._tidy(queue, delayed)

    def carry(self, command: Carry, index: int) -> Changed | Refused:
        """Let rows point to the copies in the record at `index`; the value is how many rows do."""
        first = index << POSITION_BITS
        try:
            batch = _whole(command.batch)
            dues = batch.deliver_at_ms
        except CorruptRecord as error:
            return Refused(Reason.CORRUPT_BATCH, str(error))
        if dues is None or len(command.numbers) != 8 * len(dues):
            return Refused(Reason.BAD_ARGUMENT, "each message needs a time and a number")
        if self._carried == index:
            return Refused(Reason.BAD_ARGUMENT, "a place would stand for two messages")
        self._carried = index
        delayed = self._queues.get(batch.head.queue)
        if delayed is None:
            return Changed(0)
        numbers = np.frombuffer(command.numbers, dtype="<i8").tolist()
        rows = enumerate(zip(dues.tolist(), numbers, strict=True), first)
        moved = [delayed.move(due, number, place) for place, (due, number) in rows]
        before = np.array([place for place in moved if place is not None], dtype=np.int64)
        self._come(first, len(before))
        self._leave(before)
        return Changed(len(before))

    def drop_queues(self, queues: set[int]) -> None:
        """The topic of these queues was deleted: drop the messages that wait for them."""
        for queue in sorted(queues & self._queues.keys()):
            delayed = self._queues.pop(queue)
            self.dropped += delayed.count
            for chunk in delayed.chunks():
                self._leave(np.frombuffer(chunk.places, dtype=np.int64))

    # Calls of a leader

    @property
    def queues(self) -> list[int]:
        """Queues for which messages wait."""
        return list(self._queues)

    @property
    def next_due(self) -> int | None:
        """When the next message falls due, perhaps in the past; None: none will by itself."""
        timers = self._timers
        while timers and self._is_void(*timers[0]):
            heappop(timers)
        return timers[0][0] if timers and timers[0][0] < NEVER else None

    @property
    def floor(self) -> int | None:
        """No message that waits stands before this index of the log; None: none waits."""
        if not self._held:
            return None
        return max(1, min(self._held) << _REGION_BITS - POSITION_BITS)

    def due_queues(self, limit: int) -> list[int]:
        """Up to `limit` queues with messages that are due."""
        found: dict[int, None] = {}
        # A heap's children are never smaller: those of a node that is not due need no look.
        nodes = [0]
        while nodes and len(found) < limit:
            node = nodes.pop()
            if node >= len(self._timers) or self._timers[node][0] > self.now:
                continue
            nodes += (2 * node + 1, 2 * node + 2)
            if not self._is_void(*self._timers[node]):
                found[self._timers[node][1]] = None
        return list(found)

    def due(self, queue: int, limit: int) -> Rows:
        """The first rows of a queue that are due."""
        delayed = self._queues.get(queue) or DelayQueue()
        return delayed.head(limit, until=self.now)

    def standing_before(self, index: int, *, queue: int, after: Key, limit: int) -> Rows:
        """Rows whose messages stand before this index of the log: see `DelayQueue.before`."""
        delayed = self._queues.get(queue) or DelayQueue()
        return delayed.before(index << POSITION_BITS, after=after, limit=limit)

    # Inside.

    def _is_void(self, due: int, queue: int) -> bool:
        delayed = self._queues.get(queue)
        return delayed is None or delayed.first.due != due

    def _watch(self, queue: int, delayed: DelayQueue) -> None:
        """Set a timer for a queue whose first row may be another one now."""
        heappush(self._timers, (delayed.first.due, queue))
        if len(self._timers) > 2 * len(self._queues) + _SPARE_TIMERS:
            self._timers = [(delayed.first.due, queue) for queue, delayed in self._queues.items()]
            heapify(self._timers)

    def _tidy(self, queue: int, delayed: DelayQueue) -> None:
        """Rows of a queue were removed: watch its new first row, or forget the empty queue."""
        assert self._queues.get(queue) is delayed, "rows of a queue that was dropped"
        if delayed.count:
            self._watch(queue, delayed)
        else:
            del self._queues[queue]

    def _come(self, place: int, count: int) -> None:
        """Messages of one record wait from now on."""
        region = place >> _REGION_BITS
        if count:
            self.count += count
            self._held[region] = self._held.get(region, 0) + count

    def _leave(self, places: "np.ndarray") -> None:
        """Messages that stood at these places no longer wait, or now stand elsewhere."""
        self.count -= len(places)
        regions, counts = np.unique(places >> _REGION_BITS, return_counts=True)
        for region, count in zip(regions.tolist(), counts.tolist(), strict=True):
            assert self._held[region] >= count, f"more messages leave region {region} than came"
            self._held[region] -= count
            if not self._held[region]:
                del self._held[region]
        # `floor` holds retention up by `_held`.
        assert bool(self.count) == bool(self._held), f"{self.count} wait in {len(self._held)}"

    # Snapshots.

    def dump(self) -> list[Any]:
        """The state but for the rows: `[now, dropped, [[queue, rows], …], cancelled, by whom]`."""
        counts = [[queue, delayed.count] for queue, delayed in sorted(self._queues.items())]
        cancelled = (self._cancelled.keys(), self._cancelled.values())
        return [self.now, self.dropped, counts, *(array("q", x).tobytes() for x in cancelled)]

    def columns(self) -> list["array[int]"]:
        """The rows, to be written one after the other: by queue the three columns.

        They are many bytes, and joined once: through CBOR they would be copied several times.
        """
        delay_queues = [delayed for _, delayed in sorted(self._queues.items())]
        return [
            chunk[n] for delayed in delay_queues for n in range(3) for chunk in delayed.chunks()
        ]

    def load(self, state: list[Any], snapshot: bytes) -> None:
        """The reverse of `dump` and `columns`, which stand at the end of a snapshot."""
        self.now, self.dropped, counts, *later = state
        if later:
            numbers = array("q", later[0])
            requests = array("q", later[1]) if len(later) > 1 else [0] * len(numbers)
            self._cancelled = dict(zip(numbers, requests, strict=True))
        position = len(snapshot) - ROW_BYTES * sum(count for _, count in counts)
        for queue, count in counts:
            end = position + ROW_BYTES * count
            delayed = self._queues[queue] = DelayQueue.load(memoryview(snapshot)[position:end])
            position = end
            self.count += delayed.count
            for chunk in delayed.chunks():
                regions = np.frombuffer(chunk.places, dtype=np.int64) >> _REGION_BITS
                found, counts = np.unique(regions, return_counts=True)
                for region, count in zip(found.tolist(), counts.tolist(), strict=True):
                    self._held[region] = self._held.get(region, 0) + count
            self._watch(queue, delayed)


def _whole(payload: bytes | memoryview) -> Batch:
    """A batch with the frames of all its columns checked.

    Raises:
        CorruptRecord: a frame is wrong.
    """
    batch = Batch.decode(payload, check=False)
    # A release reads the properties: a batch without readable ones must not wait for its time.
    _ = batch.columns
    return batch
