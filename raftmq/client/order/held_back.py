"""Messages of numbered streams, held back until those before them came. Pure: time comes in.

    put 0, 2, 3        take: 0             2 and 3 are held back: 1 is missing
    put 1              take: 1, 2, 3
    put 5              take: nothing       the gap of 4 begins to wait
    `gap_seconds` on   take: the gap of 4, as `MissingMessages`, then 5

Each stream has a next number. A message with a lower number is a repeat, or comes after its gap was
reported; either is dropped. A stream that is not known yet begins at number 0. If 0 does not come
within `gap_seconds`, the stream begins at its lowest number held back, without a gap: the receiver
may have begun in the middle of the stream, and cannot know. A bound that is reached before that
time reports the gap from 0 on.

A gap has waited since the oldest message that it holds back came. All held-back messages stand in
the order in which they came, so the first of them belongs to the gap that has waited longest.

Invariants:
- Each stream's messages are taken in the order of their numbers, each number once.
- Each number between a stream's first taken message and its last one was taken or reported as
  missing.
- At most `messages_max` messages are held back. At that bound, or once the received answers that
  they keep in memory have `bytes_max` bytes, the gap that has waited longest is reported at once.
- At most `STREAMS_MAX` streams without held-back messages are remembered, the last ones used.

Source: the Resequencer of Hohpe and Woolf, Enterprise Integration Patterns.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

from raftmq.errors import MissingMessages
from raftmq.words import counted

M = TypeVar("M")

STREAMS_MAX = 10_000
"""Streams whose next number is remembered while no message of theirs is held back."""


class _Held(NamedTuple, Generic[M]):
    """A message held back."""

    message: M
    """The message."""
    since: float
    """When it came, in seconds."""
    answer: bytes
    """The bytes that it keeps in memory, with other messages."""


class _Stream:
    """A stream with messages held back."""

    __slots__ = ("name", "next", "numbers")

    def __init__(self, name: str, following: int | None) -> None:
        self.name = name
        self.next = following
        """The number to take next; None: not known yet."""
        self.numbers: list[int] = []
        """A heap of the numbers held back, at least one."""


class HeldBack(Generic[M]):
    """The messages of all streams."""

    def __init__(
        self,
        known: Mapping[str, int],
        *,
        gap_seconds: float,
        messages_max: int,
        bytes_max: int,
    ) -> None:
        # An earlier one's `next` has those with messages held back as well.
        self._idle = OrderedDict(list(known.items())[-STREAMS_MAX:])
        self._gap_seconds = gap_seconds
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        # (stream, number) → its message, in the order in which they came.
        self._held: OrderedDict[tuple[str, int], _Held[M]] = OrderedDict()
        # The streams of those messages, and the one among them whose next message is here.
        self._streams: dict[str, _Stream] = {}
        self._ready: _Stream | None = None
        # id of an answer → number of messages that keep it.
        self._kept: dict[int, int] = {}
        self.byte_count = 0
        """Bytes of the answers that the messages held back keep in memory."""

    def __len__(self) -> int:
        """Messages held back."""
        return len(self._held)

    def __iter__(self) -> Iterator[M]:
        """The messages held back, in the order in which they came."""
        return (held.message for held in self._held.values())

    @property
    def stream_count(self) -> int:
        """Number of streams that are known."""
        return len(self._idle) + len(self._streams)

    @property
    def fill(self) -> float:
        """The part of the bounds that is used up; from 1 on a gap is reported before its time."""
        return max(len(self._held) / self._messages_max, self.byte_count / self._bytes_max)

    @property
    def next(self) -> dict[str, int]:
        """Stream → the number after the last one that was taken, or reported as missing."""
        begun = {each.name: each.next for each in self._streams.values() if each.next is not None}
        return {**self._idle, **begun}

    @property
    def deadline(self) -> float:
        """The time at which `take` has something although nothing is put; `inf`: there is none."""
        oldest = next(iter(self._held.values()), None)
        return inf if oldest is None else oldest.since + self._gap_seconds

    def find(self, stream: str, number: int) -> M | None:
        """The message of this number that is held back, if any."""
        held = self._held.get((stream, number))
        return None if held is None else held.message

    def replace(self, stream: str, number: int, message: M, answer: bytes) -> None:
        """Hold another message back in place of the one of this number."""
        before = self._held[stream, number]
        self._keep(answer)
        self._release(before.answer)
        self._held[stream, number] = _Held(message, before.since, answer)

    def put(self, message: M, *, stream: str, number: int, answer: bytes, now: float) -> bool:
        """Hold a message back until `take` returns it; False: its number was here before.

        Args:
            message: the message.
            stream: the stream's name.
            number: the message's number in the stream, from 0.
            answer: the received bytes that the message keeps in memory.
            now: the time in seconds, not before that of an earlier call.
        """
        assert self._ready is None, "messages are put once `take` has returned None"
        found = self._streams.get(stream) or _Stream(stream, self._idle.get(stream))
        is_past = found.next is not None and number < found.next
        if is_past or (stream, number) in self._held:
            return False
        self._idle.pop(stream, None)
        self._streams[stream] = found
        if found.next is None and number == 0:
            found.next = 0
        heappush(found.numbers, number)
        self._keep(answer)
        self._held[stream, number] = _Held(message, now, answer)
        if found.numbers[0] == found.next:
            self._ready = found
        return True

    def take(self, now: float) -> M | MissingMessages | None:
        """The next message, or the gap before it; None: put more, or wait until `deadline`."""
        stream = self._ready
        if stream is None:
            if now < self.deadline and self.fill < 1:
                return None
            name, _ = next(iter(self._held))
            stream = self._ready = self._streams[name]
            missing, stream.next = stream.next, stream.numbers[0]
            if missing is None and now < self.deadline:
                # Number 0 still had time to come.
                missing = 0
            if missing is not None:
                return self._missing(name, missing, stream.next - 1, now)
        number = heappop(stream.numbers)
        assert number == stream.next, f"{number} is taken in place of {stream.next}"
        held = self._held.pop((stream.name, number))
        self._release(held.answer)
        stream.next = number + 1
        if not stream.numbers or stream.numbers[0] != stream.next:
            self._ready = None
        if not stream.numbers:
            del self._streams[stream.name]
            self._idle[stream.name] = stream.next
            if len(self._idle) > STREAMS_MAX:
                self._idle.popitem(last=False)
        return held.message

    def _missing(self, stream: str, first: int, last: int, now: float) -> MissingMessages:
        why = f"within {self._gap_seconds:g} s"
        if now < self.deadline:
            count = counted(len(self._held), "message")
            why = f"before {count} ({self.byte_count:,} bytes) were held back"
        return MissingMessages(why, stream=stream, first=first, last=last)

    def _keep(self, answer: bytes) -> None:
        count = self._kept.get(id(answer), 0)
        if not count:
            self.byte_count += len(answer)
        self._kept[id(answer)] = count + 1

    def _release(self, answer: bytes) -> None:
        count = self._kept.pop(id(answer)) - 1
        if count:
            self._kept[id(answer)] = count
        else:
            self.byte_count -= len(answer)
