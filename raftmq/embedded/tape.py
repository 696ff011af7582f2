"""The calls of an application on a checked queue and their answers, in order.

The tape keeps no message. For each message the tape keeps a digest of its content, and the body's
first bytes for people; `judging` identifies delivered messages by place and digest.

| event | rows |
|---|---|
| `Begun` of `send` | none: `messages` says which, `queue_number` where to |
| `Ended` of `send` | the first one's offset |
| `Ended` of `poll` | (queue number, offset, digest) |
| `Ended` of `pop` | (queue number, offset, digest, token, attempt, remaining ms) |
| `Begun` of `ack` and its like | (queue number, offset, token) |
| `Ended` of these | the result of each row: 1, or -1 for a lease that was not the caller's |
| `Begun` of `redrive`, `purge` | (queue number, offset, letter) |
| `Ended` of `backlog` | what the broker's books say, see `judging` |

Invariants:
- The beginning of a call stands after the ends of all calls that were over by then. The end of a
  send is written when the next call begins, or later if an earlier send to its queue is open: a
  late end makes a verdict weaker, never wrong.
- At most `ROWS_MAX` rows are kept; then recording stops, and `is_full` is true.

Left out: messages read by `get` and `find`; the fate of delayed messages: their sends count as open
for ever.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftmq.client.checked.digests import shown as shown_of
from raftmq.client.checked.digests import text_of
from raftmq.client.produce.producer_batch import Entry
from raftmq.errors import Rejected, Unavailable

ROWS_MAX = 1_000_000
"""A row is a message sent, handed out or settled, or an event; up to 300 bytes each."""

Row = tuple[int | str, ...]


class Begun(NamedTuple):
    """A call begins."""

    operation: int
    process: int
    """The producer or consumer."""
    function: str
    time: int
    """Nanoseconds since 1970."""
    group: str = ""
    """The consumer group."""
    queue_number: int = 0
    messages: range = range(0)
    """The numbers of the sent messages: their places in `Tape.digests`."""
    rows: Sequence[Row] = ()
    argument: int | str = -1
    """The argument as in `raftmq.checkers.pop.calls`."""


class Ended(NamedTuple):
    """A call is over."""

    operation: int
    time: int
    is_ok: bool
    """False: the call did not happen and never will."""
    offset: int = -1
    """Of a send: the offset of its first message; -1: unknown."""
    rows: Sequence[Row] = ()


Event = Begun | Ended


class Reader(NamedTuple):
    """A consumer that reads by offset."""

    topic: str
    group: str | None
    is_steady: bool
    """True: the consumer reads whole queues and moves only by `seek`, unless its group has a
    filter."""


class Tape:
    """The history of one embedded queue since it was opened."""

    def __init__(self, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._rows_max = ROWS_MAX
        self._processes = 0
        self._operations = 0
        # By queue number: sends that were not over at the last sweep, in order.
        self._open: dict[int, deque[tuple[int, Entry]]] = {}
        self.rows = 0
        """Rows so far; more than the limit: something was not recorded."""
        self.recorded = 0
        """Rows so far, and those that the limit left out."""
        self.events: list[Event] = []
        self.digests: list[int] = []
        """One for each sent message."""
        self.shown: list[tuple[bytes, str | None]] = []
        """For each sent message: the body's first bytes, and the key."""
        self.readers: dict[int, Reader] = {}
        """Consumers that read by offset, by process."""
        self.filtered: set[tuple[str, str]] = set()
        """(topic, group) of groups that ever had a filter."""
        self.latest: set[tuple[str, str]] = set()
        """(topic, group) of groups that may have begun at the end of queues."""
        self.forgotten: set[tuple[str, str]] = set()
        """(topic, group) of groups that were detached, deleted, reset or made as clones, or whose
        messages were settled by handle: the fate of their messages is not on the tape."""

    @property
    def is_full(self) -> bool:
        """True if something was not recorded."""
        return self.rows > self._rows_max

    def now_ms(self) -> int:
        """The clock of the events, in milliseconds since 1970."""
        return self._clock() // 1_000_000

    def process(self) -> int:
        """A number for a producer or consumer."""
        self._processes += 1
        return self._processes

    def begin(
        self,
        process: int,
        function: str,
        *,
        group: str = "",
        rows: Sequence[Row] = (),
        argument: int | str = -1,
    ) -> int:
        """Record that a call begins; the result is the operation's number, for `end`."""
        self._sweep()
        self._operations += 1
        now = self._clock()
        event = Begun(self._operations, process, function, now, group, rows=rows, argument=argument)
        self._put(event, 1 + len(rows))
        return self._operations

    def end(self, operation: int, rows: Sequence[Row] = (), *, is_ok: bool = True) -> None:
        """Record that a call is over, with its outcome."""
        self._put(Ended(operation, self._clock(), is_ok, rows=rows), 1 + len(rows))

    def drop(self, operation: int) -> None:
        """Forget a call that brought no messages, if its beginning is the last event."""
        last = self.events[-1] if self.events else None
        if isinstance(last, Begun) and last.operation == operation:
            self.events.pop()
            self.rows -= 1

    def sent(
        self,
        process: int,
        entry: Entry,
        digests: Sequence[int],
        shown: Sequence[tuple[bytes, str | None]],
    ) -> None:
        """Record messages that take their place in line for a queue. The send of delayed messages
        stays open: the answer does not say where they will stand."""
        operation = self.hidden(process, entry.queue_number, digests, shown)
        if operation and not entry.is_delayed:
            line = self._open.setdefault(entry.queue_number, deque())
            line.append((operation, entry))

    def hidden(
        self,
        process: int,
        queue_number: int,
        digests: Sequence[int],
        shown: Sequence[tuple[bytes, str | None]],
    ) -> int:
        """Record a send whose answer will not name its place. The result is the operation's number,
        for `end` once the outcome is known; 0: the tape is full."""
        self._sweep()
        self._operations += 1
        event = Begun(
            self._operations,
            process,
            "send",
            self._clock(),
            queue_number=queue_number,
            messages=range(len(self.digests), len(self.digests) + len(digests)),
        )
        if not self._put(event, 1 + len(digests)):
            return 0
        self.digests += digests
        self.shown += shown
        return event.operation

    def owed(self, queue_number: int, kept_from: int) -> Counter[int]:
        """Digests of all messages acknowledged in a queue from an offset on; empty if each message
        has a known place, as the queue's end then shows how far to read."""
        found: Counter[int] = Counter()
        begun: dict[int, Begun] = {}
        is_without_place = False
        for event in self.events:
            if isinstance(event, Begun):
                if event.function == "send" and event.queue_number == queue_number:
                    begun[event.operation] = event
            elif event.is_ok and (sent := begun.get(event.operation)) is not None:
                is_without_place |= event.offset < 0
                if event.offset < 0 or event.offset >= kept_from:
                    found.update(self.digests[number] for number in sent.messages)
        return found if is_without_place else Counter()

    def sweep_all(self) -> None:
        """Record the end of all sends that are over, in whatever order they ended."""
        for number, line in self._open.items():
            for operation, entry in line:
                if entry.is_done:
                    self._sent(operation, entry)
            self._open[number] = deque(each for each in line if not each[1].is_done)

    def _sweep(self) -> None:
        """Record the end of the sends that are over. Sends of a queue end in order, except those
        taken back."""
        for number, line in list(self._open.items()):
            while line and line[0][1].is_done:
                self._sent(*line.popleft())
            if not line:
                del self._open[number]

    def _sent(self, operation: int, entry: Entry) -> None:
        if entry.error is None:
            offset = -1 if entry.base_offset is None else entry.base_offset
            self._put(Ended(operation, self._clock(), True, offset), 1)
        elif is_certain(entry.error):
            self._put(Ended(operation, self._clock(), False), 1)

    def _put(self, event: Event, rows: int) -> bool:
        self.recorded += rows
        self.rows += rows
        if self.is_full:
            # A history with a gap would convict a sound queue: once an event is left out, none of
            # the later ones may be taken, even if it would fit.
            self.rows = self._rows_max + 1
            return False
        self.events.append(event)
        return True


def is_certain(error: Exception) -> bool:
    """Whether an error means that the call did not happen and never will."""
    return isinstance(error, Rejected | Unavailable)


def shown(body: bytes, key: str | bytes | None) -> tuple[bytes, str | None]:
    """The body's first bytes, for people, and the key, to judge order by."""
    return shown_of(body), text_of(key)
