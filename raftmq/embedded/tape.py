"""What an application did with a checked queue and what it was told, in the order of the calls.

The tape keeps no message. Of each it keeps a digest of body, key and tag, and the body's first
bytes for people; what was sent is told from what is delivered by place and digest (`judging`).

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
- An event stands after all that was over when it happened. The end of a send is written when
  somebody looks next, so perhaps late: that makes a verdict weaker, never wrong.
- At most `ROWS_MAX` rows are kept; then nothing is recorded any more, and `is_full`.

Left out: properties are not in the digest; messages read by `get` and `find`; what became of a
message that is delayed: its send counts as open for ever.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftmq.client.produce.producer_batch import Entry
from raftmq.errors import Rejected, Unavailable

ROWS_MAX = 1_000_000
"""A row is a message sent, handed out or settled, or an event; up to 300 bytes each."""
SHOWN_BYTES = 24
"""Of a body, for people."""

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
    """The numbers of what is sent, in `Tape.digests`."""
    rows: Sequence[Row] = ()
    argument: int | str = -1
    """As of `raftmq.checkers.pop.calls`."""


class Ended(NamedTuple):
    """A call is over."""

    operation: int
    time: int
    is_ok: bool
    """False: it did not happen and never will."""
    offset: int = -1
    """Of a send: where its first message stands."""
    rows: Sequence[Row] = ()


Event = Begun | Ended


class Reader(NamedTuple):
    """A consumer that reads by offset."""

    topic: str
    group: str | None
    is_steady: bool
    """True: it reads whole queues and moves only by `seek`, unless its group has a filter."""


class Tape:
    """One queue's history, from when it was opened."""

    def __init__(self, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._rows_max = ROWS_MAX
        self._processes = 0
        self._operations = 0
        # By queue number: sends that were not over when somebody looked last, in order.
        self._open: dict[int, deque[tuple[int, Entry]]] = {}
        self.rows = 0
        """Rows so far."""
        self.events: list[Event] = []
        self.digests: list[int] = []
        """Of each message that was sent."""
        self.shown: list[tuple[bytes, str | None]] = []
        """Of each message that was sent: how its body begins, and its key."""
        self.readers: dict[int, Reader] = {}
        """By process."""
        self.filtered: set[tuple[str, str]] = set()
        """(topic, group) of groups that ever had a filter."""
        self.latest: set[tuple[str, str]] = set()
        """(topic, group) of groups that may have begun at the end of queues."""
        self.forgotten: set[tuple[str, str]] = set()
        """(topic, group) of groups that were detached, told to go on elsewhere, or settled for by
        handle: what became of their messages is not on the tape."""

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
        """A call begins; the result names it."""
        self._operations += 1
        now = self._clock()
        event = Begun(self._operations, process, function, now, group, rows=rows, argument=argument)
        self._put(event, 1 + len(rows))
        return self._operations

    def end(self, operation: int, rows: Sequence[Row] = (), *, is_ok: bool = True) -> None:
        """It is over."""
        self._put(Ended(operation, self._clock(), is_ok, rows=rows), 1 + len(rows))

    def drop(self, operation: int) -> None:
        """It brought nothing; if nothing happened since, it need not be kept."""
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
        *,
        is_later: bool = False,
    ) -> None:
        """Messages take their place in line for a queue; if `is_later`, when their time has come:
        whether they are there is not known before."""
        operation = self.hidden(process, entry.queue_number, digests, shown)
        if operation and not is_later:
            line = self._open.setdefault(entry.queue_number, deque())
            line.append((operation, entry))

    def hidden(
        self,
        process: int,
        queue_number: int,
        digests: Sequence[int],
        shown: Sequence[tuple[bytes, str | None]],
    ) -> int:
        """Messages are sent to a queue, and nobody will say where they are; the result names the
        call, for `end` if they are never to be seen, and is 0 if it is not recorded."""
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
        """Digests of all that was acknowledged in a queue from an offset on; none where each
        message has its place, so that the queue's end says enough."""
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

    def sweep(self) -> None:
        """Write down the sends that are over. They end in order, but for those taken back."""
        for line in self._open.values():
            while line and line[0][1].is_done:
                self._sent(*line.popleft())

    def sweep_all(self) -> None:
        """The same, whatever the order."""
        for number, line in self._open.items():
            for operation, entry in line:
                if entry.is_done:
                    self._sent(operation, entry)
            self._open[number] = deque(each for each in line if not each[1].is_done)

    def _sent(self, operation: int, entry: Entry) -> None:
        if entry.error is None:
            offset = -1 if entry.base_offset is None else entry.base_offset
            self._put(Ended(operation, self._clock(), True, offset), 1)
        elif is_certain(entry.error):
            self._put(Ended(operation, self._clock(), False), 1)

    def _put(self, event: Event, rows: int) -> bool:
        self.rows += rows
        if self.is_full:
            # What follows would be judged without it.
            self.rows = self._rows_max + 1
            return False
        self.events.append(event)
        return True


def is_certain(error: Exception) -> bool:
    """Whether an error says that nothing happened, nor ever will."""
    return isinstance(error, Rejected | Unavailable)


def digest(body: bytes, key: str | bytes | None, tag: str | None) -> int:
    """What a message says, in one number; the same within a process only.

    >>> digest(b"a", "k", None) == digest(bytearray(b"a"), b"k", None)
    True
    """
    text = key.decode(errors="replace") if isinstance(key, bytes) else key
    return hash((bytes(body), text, tag))


def shown(body: bytes, key: str | bytes | None) -> tuple[bytes, str | None]:
    """What is kept of a message for people, and to judge order by."""
    text = key.decode(errors="replace") if isinstance(key, bytes) else key
    return bytes(body[:SHOWN_BYTES]), text
