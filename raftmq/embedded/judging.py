"""Turns a tape and the final contents of the queues into histories that the checkers judge.

Applications may send equal messages, and checkers want unique values. So each sent message gets a
number, and a delivered message is identified by its place: receipts name the places of messages. A
place that no receipt names belongs to a send without a receipt, if the digest fits; otherwise the
message there was never sent. Messages from before the opening are left out, and so are messages
that retention took.

| history | judged by |
|---|---|
| sends, reads by offset, and all queues read back in the end | `check_total_queue`, `check_log` |
| for each consumer group that pops and each queue: sends, its calls, and the broker's books | |
| | `check_pop` |

Only the application can write to an embedded queue, so every message in it must be on the tape.

Invariants:
- Rows stand in the order of the tape; what is read back comes last.
- A send that ended after the reading back began counts as open.
- Retention excuses a missing head only where it is on, and only messages as old as it allows.
- All messages of a committed transaction must be there, unless equal ones of an open send may
  stand in their places.

Left out: order across a group's filter; the books of groups that had messages under way at the
opening; groups that were detached or deleted, since a new group of the name starts over; groups
that were reset or made as clones, or whose messages were settled by handle.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge

from raftmq.checkers import LogRules, PopRules, Report, check_log, check_pop, check_total_queue
from raftmq.checkers.history import History, Recorder, Value
from raftmq.checkers.pop.calls import Books
from raftmq.checkers.pop.messages import Ordering

from .tape import Begun, Ended, Event, Row, Tape

Cell = tuple[str | None, Value, int | None]
"""Key, value, offset."""

CLOCK_MS_MAX = 1_000
"""Tolerance of the lease rules in ms: one machine's clock gives all times, but an extension counts
from its call and its answer, not from the moment at the leader."""
READER = 0
"""The process that reads back."""


@dataclass(slots=True)
class Place:
    """A queue of a topic, with its contents."""

    name: str
    """`topic/queue`."""
    topic: str
    before: int = 0
    """The queue's end offset when the folder was opened."""
    kept_from: int = 0
    """The first offset that retention kept."""
    contents: list[Row] = field(default_factory=list)
    """(queue number, offset, digest) of each message from `kept_from` on."""


@dataclass(slots=True)
class Case:
    """The input of `judge`."""

    tape: Tape
    events: Sequence[Event]
    """The tape's events up to the moment of judging."""
    places: Mapping[int, Place]
    """By queue number; those of deleted topics are missing."""
    before: Mapping[tuple[str, int], Books]
    """By (group, queue number): the books when the folder was opened."""
    orders: Mapping[str, Ordering]
    """By ordered group: what the group keeps in order."""
    asked_at: int
    """The number of events when the reading back began."""
    expired_at: int = 0
    """Retention may have taken messages sent before this time; nanoseconds since 1970, 0: retention
    is off."""


def judge(case: Case) -> list[tuple[Report, History]]:
    """The reports of all checkers that apply, each with the history that it judges."""
    telling = _Telling(case)
    log = telling.log_history()
    found = [
        (check_total_queue(log), log),
        (check_log(log, LogRules(is_send_contiguous=True)), log),
    ]
    for group, number in sorted(telling.popped):
        history, books = telling.pop_history(group, number)
        rules = PopRules(
            clock_ms_max=CLOCK_MS_MAX,
            order=case.orders.get(group, ""),
            begun=telling.begun(group, number, books),
        )
        found.append((check_pop(history, rules), history))
    return found


class _Telling:
    """Identifies messages by their numbers, and writes histories."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._tape = case.tape
        # Events by queue, or by group and queue, each with its position on the tape.
        self._sends: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        self._calls: dict[tuple[str, int], list[tuple[int, Event]]] = defaultdict(list)
        self._reads: list[tuple[int, Event]] = []
        self._began: dict[int, Begun] = {}
        self._began_at: dict[int, int] = {}
        self._number_at: dict[tuple[int, int], int] = {}
        self._unplaced: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._failed: dict[tuple[int, int], list[int]] = defaultdict(list)
        # (queue number, digest) of messages that may be in the queue or not.
        self._doubtful: set[tuple[int, int]] = set()
        ended = set()
        for at, event in enumerate(case.events):
            if isinstance(event, Begun):
                self._began[event.operation] = event
                self._began_at[event.operation] = at
            elif self._began[event.operation].function == "send":
                ended.add(event.operation)
                self._place(self._began[event.operation], event, is_sure=at < case.asked_at)
            self._sort(at, event)
        for begun in self._began.values():
            if begun.function == "send" and begun.operation not in ended:
                self._place(begun, None, is_sure=False)
        for events in self._calls.values():
            events.sort(key=lambda each: each[0])

    @property
    def popped(self) -> set[tuple[str, int]]:
        """(group, queue number) of all calls that popped, settled or revived messages."""
        return {
            (group, number)
            for (group, number), events in self._calls.items()
            if number in self._case.places
            and (self._case.places[number].topic, group) not in self._tape.forgotten
            and any(self._began[event.operation].function != "backlog" for _, event in events)
        }

    def _place(self, begun: Begun, ended: Ended | None, *, is_sure: bool) -> None:
        """Note the places of a send's messages, or that the places are unknown."""
        numbers = begun.messages
        if ended is not None and ended.is_ok and ended.offset >= 0:
            for at, number in enumerate(numbers, ended.offset):
                self._number_at.setdefault((begun.queue_number, at), number)
            return
        # Messages of failed sends are matched last: they should be nowhere.
        unplaced = self._unplaced if ended is None or ended.is_ok else self._failed
        for number in numbers:
            place = begun.queue_number, self._tape.digests[number]
            unplaced[place].append(number)
            if not is_sure or ended is None or not ended.is_ok:
                self._doubtful.add(place)

    def _sort(self, at: int, event: Event) -> None:
        begun = self._began[event.operation]
        if begun.function == "send":
            self._sends[begun.queue_number].append((at, event))
        elif begun.function in ("poll", "assign"):
            self._reads.append((at, event))
        elif begun.function == "backlog":
            self._note(at, event, {(str(row[0]), int(row[1])) for row in event.rows})
        else:
            rows = begun.rows or event.rows
            self._note(at, event, {(begun.group, int(row[0])) for row in rows})

    def _note(self, at: int, event: Event, concerned: set[tuple[str, int]]) -> None:
        begun = self._began[event.operation]
        for each in concerned:
            if isinstance(event, Ended) and not begun.rows:
                # The call named no messages: only its answer shows which queues it concerns.
                self._calls[each].append((self._began_at[event.operation], begun))
            self._calls[each].append((at, event))

    # -- values ----------------------------------------------------------------------------------

    def _sent_value(self, number: int) -> Value:
        """A sent message as a history names it: its number with the body's start, and its key."""
        body, key = self._tape.shown[number]
        return f"#{number} {body.decode(errors='replace')!r}", key

    def _value(self, number: int, offset: int, digest: int) -> Value:
        """The message at a place, by the digest that was read there."""
        sent = self._number_at.get((number, offset))
        if sent is None:
            line = self._unplaced.get((number, digest)) or self._failed.get((number, digest))
            if line:
                # One sent message explains one place: a second copy must show up as unexpected.
                sent = self._number_at[number, offset] = line.pop(0)
        if sent is None or self._tape.digests[sent] != digest:
            return f"something else at offset {offset}, digest {digest & (2**64 - 1):016x}", None
        return self._sent_value(sent)

    def _is_ours(self, number: int, offset: int) -> bool:
        place = self._case.places.get(number)
        return place is not None and offset >= place.before

    # -- histories -------------------------------------------------------------------------------

    def log_history(self) -> History:
        """Sends and reads of all queues, and the final contents of the queues."""
        writer = _Writer()
        places = self._case.places
        sends = [events for number, events in self._sends.items() if number in places]
        for at, event in merge(*sends, self._reads):
            writer.now = event.time
            begun = self._began[event.operation]
            if begun.function == "send":
                self._write_send(writer, at, event, retired=True)
            elif isinstance(event, Ended):
                self._write_read(writer, begun, event)
        for _, place in sorted(places.items()):
            operation = writer.recorder.invoke(READER, "poll", place.name)
            rows: list[Cell] = [
                (place.name, self._value(*map(int, row)), int(row[1])) for row in place.contents
            ]
            writer.recorder.ok_many(operation, rows)
        return writer.recorder.history()

    def pop_history(self, group: str, number: int) -> tuple[History, Books | None]:
        """The sends to one queue and one group's calls on it, and the group's last books."""
        writer = _Writer()
        books: Books | None = None
        for at, event in merge(self._sends[number], self._calls[group, number]):
            writer.now = event.time
            function = self._began[event.operation].function
            if function == "send":
                self._write_send(writer, at, event, retired=False)
            elif isinstance(event, Begun) and not event.rows:
                writer.begin(event, [(group, None)])
            elif function == "backlog" and isinstance(event, Ended):
                books = self._write_books(writer, group, number, event)
            else:
                self._write_call(writer, group, number, event)
        return writer.recorder.history(), books

    def begun(self, group: str, number: int, books: Books | None) -> int:
        """The offset from which the books can be balanced; -1: not at all."""
        place, before = self._case.places[number], self._case.before.get((group, number))
        if books is None or (before is not None and _is_under_way(before)):
            return -1
        expected = place.before if before is not None else 0
        if place.before and before is None:
            # The group is new and the queue is not: its first messages are not on the tape.
            return -1
        if (place.topic, group) in self._case.tape.latest:
            return max(expected, books.begun)
        return expected

    def _write_send(self, writer: "_Writer", at: int, event: Event, *, retired: bool) -> None:
        """With `retired`, a send stays open if retention may have taken its messages."""
        begun = self._began[event.operation]
        place = self._case.places[begun.queue_number]
        values = [self._sent_value(number) for number in begun.messages]
        if isinstance(event, Begun):
            writer.begin(event, [(place.name, value) for value in values])
        elif not event.is_ok:
            writer.fail(event)
        elif at < self._case.asked_at and self._is_owed(begun, event, place, retired=retired):
            offset = event.offset
            writer.end(
                event,
                [
                    (place.name, value, None if offset < 0 else offset + n)
                    for n, value in enumerate(values)
                ],
            )

    def _is_owed(self, begun: Begun, ended: Ended, place: Place, *, retired: bool) -> bool:
        """Whether the acknowledged messages must be in the queue, as far as can be known."""
        has_place = ended.offset >= 0
        if retired and begun.time < self._case.expired_at:
            kept_from = place.kept_from
            return ended.offset >= kept_from if has_place else kept_from == place.before
        # Without a place, only the digest identifies a message, and an open send may have an equal
        # one: then a single copy in the queue proves neither.
        return has_place or (
            retired
            and not any(
                (begun.queue_number, self._tape.digests[number]) in self._doubtful
                for number in begun.messages
            )
        )

    def _write_read(self, writer: "_Writer", begun: Begun, ended: Ended) -> None:
        reader = self._tape.readers[begun.process]
        places = self._case.places
        rows: list[Cell] = [
            (places[number].name, self._value(number, at, said), at)
            for number, at, said in (map(int, row) for row in ended.rows)
            if self._is_ours(number, at) and at >= places[number].kept_from
        ]
        is_filtered = reader.group is not None and (
            (reader.topic, reader.group) in self._tape.filtered
        )
        if is_filtered:
            # The filter leaves messages out: neighbours in an answer are none in the queue.
            for row in rows:
                writer.read(begun, [row], is_assigned_first=True)
        elif begun.function == "assign":
            writer.assign(begun.process)
        elif rows:
            writer.read(begun, rows, is_assigned_first=not reader.is_steady)

    def _write_call(self, writer: "_Writer", group: str, number: int, event: Event) -> None:
        """Write a pop, a settlement or a revival, with its rows of one queue."""
        begun = self._began[event.operation]
        key = f"{group} {self._case.places[number].name}"
        if isinstance(event, Begun):
            rows = [row for row in event.rows if self._is_of(row, number)]
            is_revival = begun.function in ("redrive", "purge")
            values: list[tuple[str | None, Value]] = [
                (key, (row[2], row[1]) if is_revival else (row[2], row[1], event.argument))
                for row in rows
            ]
            writer.begin(event, values)
        elif begun.rows:
            results = zip(begun.rows, event.rows or [(1,)] * len(begun.rows), strict=True)
            settled = [
                (key, (row[2], row[1], result[0]), int(row[1]))
                for row, result in results
                if self._is_of(row, number)
            ]
            writer.end(event, settled)
        else:
            popped = [
                (key, (self._value(int(row[0]), int(row[1]), int(row[2])), *row[3:]), int(row[1]))
                for row in event.rows
                if self._is_of(row, number)
            ]
            writer.end(event, popped)

    def _is_of(self, row: Row, number: int) -> bool:
        return int(row[0]) == number and self._is_ours(number, int(row[1]))

    def _write_books(self, writer: "_Writer", group: str, number: int, event: Ended) -> Books:
        now = next(Books(*map(int, row[2:])) for row in event.rows if row[:2] == (group, number))
        before = self._case.before.get((group, number))
        if before is not None:
            # Earlier sessions are on no tape: only the counts since the opening can be balanced.
            gone = zip(now[5:], before[5:], strict=True)
            now = Books(*now[:5], *(later - earlier for later, earlier in gone))
        key = f"{group} {self._case.places[number].name}"
        writer.end(event, [(key, tuple(now), None)])
        return now


def _is_under_way(books: Books) -> bool:
    return books.next != books.end or any((books.leased, books.waiting, books.ready, books.dead))


class _Writer:
    """A recorder whose clock stands at the event that is written."""

    def __init__(self) -> None:
        self.now = 0
        self.recorder = Recorder(clock=lambda: self.now)
        self._operations: dict[int, int] = {}

    def begin(self, begun: Begun, rows: Sequence[tuple[str | None, Value]]) -> None:
        operation = self.recorder.invoke_many(begun.process, begun.function, rows)
        self._operations[begun.operation] = operation

    def end(self, ended: Ended, rows: Sequence[Cell]) -> None:
        self.recorder.ok_many(self._operations[ended.operation], rows)

    def fail(self, ended: Ended) -> None:
        self.recorder.fail(self._operations[ended.operation])

    def assign(self, process: int) -> None:
        self.recorder.ok(self.recorder.invoke(process, "assign"))

    def read(self, begun: Begun, rows: Sequence[Cell], *, is_assigned_first: bool) -> None:
        if is_assigned_first:
            self.assign(begun.process)
        self.recorder.ok_many(self.recorder.invoke(begun.process, "poll"), rows)
