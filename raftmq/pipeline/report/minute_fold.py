"""Events of one partition group become facts about minutes; a `Carry` is kept between batches.

    facts = Folding(carry, hints).fold(events)

Events are rows as `raftmq.client.Events.to_arrow` has them, in the order of the log: a row is a run
of messages. Vector operations fold the rows of a minute, of a queue, of a group; order within them
matters where messages become unsettled again, or settled by the stretch:

| what | settled | begun with |
|---|---|---|
| acked, passed over, dead letter, lost | and these | and these |
| handed out | | and these |
| redriven | without these | |
| trimmed | and all before | and all before |
| skipped, reset (come together) | all before, nothing else | all before, nothing else |
| filter gone | without those that it passed over | likewise |

Invariants:
- lag = messages of the queue - settled; fresh = messages of the queue - begun with.
- The facts and the carry follow from the carry before, the hints and the events alone.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from raftmq.client.admin.events import SWEEPING, WORDS, EventKind

from . import durations
from .fold_state import Carry, Queue, Reading
from .minute_facts import MINUTE_MS, Facts, Level
from .offsets import Array, Offsets, before

if TYPE_CHECKING:
    import pyarrow as pa

_COUNTED = {
    EventKind.STORED: "stored",
    EventKind.HANDED: "handed_out",
    EventKind.ACKED: "acked",
    EventKind.NACKED: "retries",
    EventKind.EXPIRED: "retries",
    EventKind.DEAD: "dead",
    EventKind.GIVEN_BACK: "given_back",
    EventKind.REDRIVEN: "redriven",
    EventKind.PURGED: "purged",
    EventKind.PASSED: "passed",
    EventKind.LOST: "lost",
}
"""Events whose runs are counted whole; those of `trimmed` and the like depend on prior events."""
_SETTLING = (EventKind.ACKED, EventKind.PASSED, EventKind.DEAD, EventKind.LOST)
_TURNS = (EventKind.REDRIVEN, *map(WORDS.index, SWEEPING))
"""Events that must be applied in order with the events before and after them."""
_ENDING = (EventKind.ACKED, EventKind.NACKED, EventKind.GIVEN_BACK, EventKind.DEAD)
"""Events that end a lease and name its token."""


class Attachment(msgspec.Struct, frozen=True):
    """A consumer group takes messages of a topic."""

    topic: str
    """Name of the topic."""
    group: str
    """The consumer group."""
    number: int
    """The number of the attachment."""
    is_latest: bool
    """Whether the group began at the ends of the queues that there were."""
    starts: dict[int, int] = {}
    """Queue → where the group begins, of queues in which the group has touched nothing yet."""


class Rows(NamedTuple):
    """Rows of events, as columns in the order of the log."""

    time: Array
    """Milliseconds since 1970."""
    what: Array
    """An index into `WORDS`; -1: another event."""
    start: Array
    """The first offset."""
    stop: Array
    """The offset after the last."""
    place: Array
    """An index into the topics and queues of these rows."""
    attachment: Array
    """0: none."""
    token: Array
    """0: none."""
    producer: Array
    """0: not known, or nothing was stored."""
    consumer: Array
    """The consumer's id; 0: none."""

    def where(self, rows: Array) -> "Rows":
        """The rows at these indexes."""
        return Rows(*(column[rows] for column in self))

    def which(self, *kinds: int) -> Array:
        """Indexes of the rows of these kinds, which are indexes into `WORDS`."""
        return np.flatnonzero(np.isin(self.what, kinds))


class Folding:
    """The work on one batch of events."""

    def __init__(self, carry: Carry, attachments: Sequence[Attachment]) -> None:
        self.carry = carry
        """Changed in place."""
        self.facts = Facts()
        """The facts so far."""
        self._attached = {each.number: each for each in attachments}
        # A group that was detached has no lag; one that was attached again has another number.
        for key in [key for key in carry.readings if key[2] not in self._attached]:
            del carry.readings[key]
        self._groups = {number: each.group for number, each in self._attached.items()}
        self._places: list[tuple[str, int]] = []

    def fold(self, events: "pa.Table") -> Facts:
        """Fold the next batch of events, which may be empty; returns all facts so far.

        Args:
            events: columns `timestamp`, `what`, `topic`, `queue`, `offset`, `count`, `group`,
                `attachment`, `token`, `producer` and `consumer` as of
                `raftmq.client.Events.to_arrow`.
        """
        rows = self._rows(events)
        for minute, of_minute in _parts(rows, rows.time - rows.time % MINUTE_MS):
            self._fold_minute(minute, of_minute)
        if len(rows.time):
            self.facts.last = int(rows.time.max())
            self._forget()
        return self.facts

    def appear(self, minute: int) -> Facts:
        """Take levels of all groups in this minute, even of groups that have touched nothing."""
        changed: set[tuple[str, str]] = set()
        for queue in self.carry.queues.values():
            changed |= {(each.topic, each.group) for each in self._readings(queue, None)}
        self._take_levels(minute, changed)
        return self.facts

    def _rows(self, events: "pa.Table") -> Rows:
        import pyarrow as pa
        import pyarrow.compute as pc

        def numbers(name: str) -> Array:
            column = events.column(name).cast(pa.int64())
            return np.asarray(pc.fill_null(column, 0).to_numpy(), np.int64)

        what = pc.index_in(events.column("what"), pa.array(WORDS))
        topics = events.column("topic").combine_chunks().dictionary_encode()
        names, topic = topics.dictionary.to_pylist(), np.asarray(topics.indices, np.int64)
        pairs, place = np.unique((topic << 32) | numbers("queue"), return_inverse=True)
        self._places = [(names[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        attachment = numbers("attachment")
        self._name_groups(attachment, events)
        start = numbers("offset")
        return Rows(
            numbers("timestamp") // 1000,
            np.asarray(pc.fill_null(what, -1).to_numpy(), np.int64),
            start,
            start + numbers("count"),
            place,
            attachment,
            numbers("token"),
            numbers("producer"),
            numbers("consumer"),
        )

    def _name_groups(self, attachment: Array, events: "pa.Table") -> None:
        known, first = np.unique(attachment, return_index=True)
        for number, row in zip(known.tolist(), first.tolist(), strict=True):
            if number and number not in self._groups:
                self._groups[number] = events.column("group")[row].as_py()
        self._groups[0] = ""

    def _fold_minute(self, minute: int, rows: Rows) -> None:
        changed: set[tuple[str, str]] = set()
        stored = rows.where(rows.which(EventKind.STORED))
        for place, of_queue in _parts(stored, stored.place):
            key, first = self._places[place], int(of_queue.start[0])
            self.facts.is_cut |= key not in self.carry.queues and first > 0
            queue = self.carry.queues.setdefault(key, Queue(*key, first, first))
            queue.store(of_queue.start, of_queue.stop, of_queue.time)
        self._count(minute, rows)
        for place, of_queue in _parts(rows, rows.place):
            found = self.carry.queues.get(self._places[place])
            if found is None:
                self.facts.is_cut = True
                # The log no longer holds a message of this queue, so the queue has no lag.
                continue
            readings = self._readings(found, of_queue)
            changed |= {(each.topic, each.group) for each in readings}
            for reading in readings:
                of_group = of_queue.where(np.flatnonzero(of_queue.attachment == reading.attachment))
                self._apply(minute, reading, found, of_group)
        self._lease(minute, rows)
        self._take_levels(minute, changed)

    def _count(self, minute: int, rows: Rows) -> None:
        """Count whole runs, producers and consumers, by topic and group."""
        counts = np.where(np.isin(rows.what, list(_COUNTED)), rows.stop - rows.start, 0)
        for (place, number), of_group in _pairs(rows.place, rows.attachment):
            topic = self._places[place][0]
            flow = self.facts.flow(minute, topic, self._groups[number])
            sums = np.bincount(rows.what[of_group] + 1, counts[of_group], len(WORDS) + 1)
            for what, name in _COUNTED.items():
                setattr(flow, name, getattr(flow, name) + int(sums[what + 1]))
            flow.producers.update(set(np.unique(rows.producer[of_group]).tolist()) - {0})
            flow.consumers.update(set(np.unique(rows.consumer[of_group]).tolist()) - {0})

    def _readings(self, queue: Queue, rows: Rows | None) -> list[Reading]:
        """The reading of each group of a queue, new groups included, if its start is known."""
        found = []
        for number, each in self._attached.items():
            if each.topic != queue.topic:
                continue
            key = (queue.topic, queue.queue, number)
            reading = self.carry.readings.get(key)
            is_touched = rows is not None and bool((rows.attachment == number).any())
            if reading is None or not reading.is_touched:
                begins = self._begins(queue, each, rows)
                if begins is not None:
                    reading = Reading(*key[:2], each.group, number, before(begins), before(begins))
            if reading is not None:
                reading.is_touched |= is_touched
                self.carry.readings[key] = reading
                found.append(reading)
        return found

    def _begins(self, queue: Queue, attachment: Attachment, rows: Rows | None) -> int | None:
        """Where a group began with a queue; None: not known before the group touches a message."""
        if queue.queue in attachment.starts:
            return attachment.starts[queue.queue]
        if not attachment.is_latest:
            return queue.first
        if rows is None:
            return None
        is_its = (rows.attachment == attachment.number) & ~np.isin(rows.what, _TURNS)
        return int(rows.start[is_its].min()) if is_its.any() else None

    def _apply(self, minute: int, reading: Reading, queue: Queue, rows: Rows) -> None:
        turns = rows.which(*_TURNS).tolist()
        at = 0
        for turn in [*turns, len(rows.what)]:
            if turn > at:
                self._advance(minute, reading, queue, rows.where(np.arange(at, turn)))
            if turn < len(rows.what):
                self._turn(minute, reading, rows.where(np.array([turn])))
            at = turn + 1

    def _advance(self, minute: int, reading: Reading, queue: Queue, rows: Rows) -> None:
        """Apply rows that may be taken together, as they only add."""
        handed = rows.where(rows.which(EventKind.HANDED))
        self._wait(minute, reading, queue, handed)
        settling, passed = rows.which(*_SETTLING), rows.which(EventKind.PASSED)
        reading.settled = reading.settled.plus(rows.start[settling], rows.stop[settling])
        reading.passed = reading.passed.plus(rows.start[passed], rows.stop[passed])
        beginning = rows.which(EventKind.HANDED, *_SETTLING)
        reading.begun = reading.begun.plus(rows.start[beginning], rows.stop[beginning])

    def _turn(self, minute: int, reading: Reading, row: Rows) -> None:
        flow = self.facts.flow(minute, reading.topic, reading.group)
        settled, begun = reading.settled, reading.begun
        match int(row.what[0]):
            case EventKind.REDRIVEN:
                reading.settled = settled.minus(Offsets(row.start, row.stop))
            case EventKind.TRIMMED:
                reading.settled = settled.plus(row.start, row.stop)
                reading.begun = begun.plus(row.start, row.stop)
                flow.lost += reading.settled.size - settled.size
            case EventKind.SKIPPED:
                # The reset that comes with it sets what is settled.
                flow.skipped += settled.plus(row.start, row.stop).size - settled.size
            case EventKind.RESET:
                reading.settled = reading.begun = before(int(row.start[0]))
                reading.passed = Offsets()
            case _:
                free = reading.passed.from_on(int(row.start[0]))
                reading.settled, reading.begun = settled.minus(free), begun.minus(free)
                reading.passed = Offsets()

    def _wait(self, minute: int, reading: Reading, queue: Queue, handed: Rows) -> None:
        """Count the waits of messages that are handed out for the first time."""
        order = np.argsort(handed.start, kind="stable")
        handed = handed.where(order)
        # Of a message that is handed out twice in one batch the first time counts.
        reached = np.concatenate(([0], np.maximum.accumulate(handed.stop)[:-1]))
        starts = np.maximum(handed.start, reached[: len(handed.start)])
        is_new = starts < handed.stop
        pieces = queue.cut(starts[is_new], handed.stop[is_new])
        ends = handed.time[is_new][pieces.runs]
        fresh = Offsets(pieces.starts, pieces.stops).minus(reading.begun)
        # If no message was begun with before, the usual case, pieces stay as they are.
        if fresh.size != int(np.sum(pieces.stops - pieces.starts)):
            cut = _within(fresh, pieces.starts, pieces.stops)
        else:
            cut = pieces.stops - pieces.starts
        if len(cut):
            flow = self.facts.flow(minute, reading.topic, reading.group)
            durations.add(flow.waits, durations.counted(ends - pieces.times, cut))

    def _lease(self, minute: int, rows: Rows) -> None:
        """Note when leases began, and count how long acked messages were in hand."""
        leases = self.carry.leases
        handed = rows.where(rows.which(EventKind.HANDED))
        leases.open(handed.token, handed.time, handed.stop - handed.start)
        ending = rows.which(*_ENDING)
        ended = rows.where(ending[rows.token[ending] != 0])
        counts = ended.stop - ended.start
        since = leases.close(ended.token, counts)
        timed = np.flatnonzero((ended.what == EventKind.ACKED) & (since > 0))
        for (place, number), of_group in _pairs(ended.place[timed], ended.attachment[timed]):
            chosen = timed[of_group]
            flow = self.facts.flow(minute, self._places[place][0], self._groups[number])
            spent = ended.time[chosen] - since[chosen]
            durations.add(flow.services, durations.counted(spent, counts[chosen]))

    def _take_levels(self, minute: int, changed: set[tuple[str, str]]) -> None:
        levels: dict[tuple[str, str], Level] = {}
        for reading in self.carry.readings.values():
            key = (reading.topic, reading.group)
            if key in changed:
                level = self._level(reading)
                levels[key] = levels[key].plus(level) if key in levels else level
        self.facts.levels.update({(minute, *key): level for key, level in levels.items()})

    def _level(self, reading: Reading) -> Level:
        queue = self.carry.queues[reading.topic, reading.queue]
        lag = max(0, queue.end - reading.settled.size)
        fresh = max(0, queue.end - reading.begun.size)
        return Level(lag, fresh, queue.time_of(reading.settled.first_gap) if lag else 0)

    def _forget(self) -> None:
        """Drop times, passed offsets and leases that no group needs now."""
        needed: dict[tuple[str, int], int] = {}
        for (topic, queue, _), reading in self.carry.readings.items():
            gap = reading.settled.first_gap
            needed[topic, queue] = min(gap, needed.get((topic, queue), gap))
            reading.passed = reading.passed.from_on(reading.begun.first_gap)
        for key, each in self.carry.queues.items():
            each.forget_before(needed.get(key, 0))
        self.carry.leases.sweep()


def _within(offsets: Offsets, starts: Array, stops: Array) -> Array:
    """The number of offsets of a set within each of these runs."""
    edges = np.concatenate((starts, stops))
    if not len(offsets.starts):
        return np.zeros(len(starts), np.int64)
    sizes = np.concatenate(([0], np.cumsum(offsets.stops - offsets.starts)))
    run = np.searchsorted(offsets.starts, edges, "right") - 1
    into = np.minimum(edges, offsets.stops[np.maximum(run, 0)]) - offsets.starts[np.maximum(run, 0)]
    passed = np.where(run >= 0, sizes[np.maximum(run, 0)] + into, 0)
    counts: Array = passed[len(starts) :] - passed[: len(starts)]
    return counts


def _parts(rows: Rows, by: Array) -> Iterator[tuple[int, Rows]]:
    """Rows grouped by their number in `by`, rising; each part in the order of the log."""
    if not len(by):
        return
    order = np.argsort(by, kind="stable")
    values, first = np.unique(by[order], return_index=True)
    for value, part in zip(values.tolist(), np.split(order, first[1:]), strict=True):
        yield value, rows.where(part)


def _pairs(one: Array, other: Array) -> Iterator[tuple[tuple[int, int], Array]]:
    """Indexes of the rows that have the same two numbers, by these numbers."""
    if not len(one):
        return
    pairs, where = np.unique(np.stack((one, other)), axis=1, return_inverse=True)
    where = where.reshape(-1)
    order = np.argsort(where, kind="stable")
    _, first = np.unique(where[order], return_index=True)
    for n, part in enumerate(np.split(order, first[1:])):
        yield (int(pairs[0, n]), int(pairs[1, n])), part
