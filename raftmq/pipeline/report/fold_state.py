"""The memory of a partition group's log from one batch of events to the next.

| what | for |
|---|---|
| `Queue` | when each message was stored: waits, and the age of what is not settled |
| `Reading` | what a consumer group has settled of a queue, and begun with: lag |
| `Leases` | when messages in hand were handed out: service times |

All of it is columns: no object a message. The bytes of `Carry` are msgpack; arrays are
little-endian int64.

Invariants:
- The log has all events of each message that it still holds, so the memory is exact wherever
  reading began; messages before the first one that was met are settled.
- The memory is bounded: `STEPS_MAX` times a queue, `LEASES_MAX` leases a partition group.
"""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from .offsets import Array, Offsets

STEPS_MAX = 4096
"""Times that are kept of a queue; beyond it two neighbours become one, with the earlier time."""
LEASES_MAX = 65_536
"""Leases that are kept of a partition group; those beyond it, oldest first, are not timed."""

_NONE = np.empty(0, np.int64)


class Pieces(NamedTuple):
    """Runs of messages, cut so that each was stored at one time."""

    starts: Array
    """The first offset of each piece."""
    stops: Array
    """The offset after each piece."""
    times: Array
    """When the messages of each piece were stored, milliseconds since 1970."""
    runs: Array
    """For each piece, the index of the run that it is a part of."""


class Queue(msgspec.Struct):
    """The messages of a queue, with the storing times that may still be needed."""

    topic: str
    """Name of the topic."""
    queue: int
    """The queue within the topic."""
    first: int
    """The first message that was met, since reading began."""
    end: int
    """The offset after the last message."""
    starts: Array = msgspec.field(default_factory=lambda: _NONE)
    """First offsets of messages that were stored at the same time, rising."""
    times: Array = msgspec.field(default_factory=lambda: _NONE)
    """When the messages from each of `starts` on were stored, milliseconds since 1970."""

    def store(self, starts: Array, stops: Array, times: Array) -> None:
        """Note that these runs were stored; they come by offset."""
        starts = np.concatenate((self.starts, starts))
        times = np.concatenate((self.times, times))
        is_new = np.concatenate(([True], times[1:] != times[:-1]))
        self.starts, self.times = starts[is_new], times[is_new]
        self.end = max(self.end, int(stops[-1]))

    def forget_before(self, offset: int) -> None:
        """Forget the times of messages before this offset, and thin the rest to `STEPS_MAX`."""
        kept = max(0, int(np.searchsorted(self.starts, offset, "right")) - 1)
        self.starts, self.times = self.starts[kept:], self.times[kept:]
        while len(self.starts) > STEPS_MAX:
            self.starts, self.times = self.starts[::2], self.times[::2]

    def time_of(self, offset: int) -> int:
        """When a message was stored; 0: its time is not known, or there is no such message yet."""
        step = int(np.searchsorted(self.starts, offset, "right")) - 1
        return int(self.times[step]) if step >= 0 and offset < self.end else 0

    def cut(self, starts: Array, stops: Array) -> Pieces:
        """Cut runs where the time changes; messages before the first known time are left out."""
        if not len(self.starts) or not len(starts):
            return Pieces(_NONE, _NONE, _NONE, _NONE)
        first = np.maximum(np.searchsorted(self.starts, starts, "right") - 1, 0)
        last = np.searchsorted(self.starts, stops - 1, "right") - 1
        counts = np.maximum(last - first + 1, 0)
        runs = np.repeat(np.arange(len(starts)), counts)
        steps = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts) + first[runs]
        ends = np.concatenate((self.starts[1:], [np.iinfo(np.int64).max]))
        cut_starts = np.maximum(starts[runs], self.starts[steps])
        cut_stops = np.minimum(stops[runs], ends[steps])
        return Pieces(cut_starts, cut_stops, self.times[steps], runs)


class Reading(msgspec.Struct):
    """How far a consumer group is with a queue."""

    topic: str
    """Name of the topic."""
    queue: int
    """The queue within the topic."""
    group: str
    """The consumer group."""
    attachment: int
    """The number of its attachment to the topic."""
    settled: Offsets
    """Messages that the group is done with: acked, passed over, dead, lost, or before its start."""
    begun: Offsets
    """The settled messages, and those that were handed out."""
    is_touched: bool = False
    """Whether the group has done anything yet; until then its start may move: a group that begins
    at the end does so when its first consumer comes."""
    passed: Offsets = Offsets()
    """Messages that the filter passed over; they are free again once the filter is gone."""


class Leases(msgspec.Struct):
    """The open leases, and when each began."""

    tokens: Array = msgspec.field(default_factory=lambda: _NONE)
    """Rising."""
    times: Array = msgspec.field(default_factory=lambda: _NONE)
    """When it was handed out, milliseconds since 1970."""
    left: Array = msgspec.field(default_factory=lambda: _NONE)
    """Messages of the lease that are not settled."""

    def open(self, tokens: Array, times: Array, counts: Array) -> None:
        """Note messages that were handed out; rows of one token are one lease."""
        tokens = np.concatenate((self.tokens, tokens))
        times = np.concatenate((self.times, times))
        counts = np.concatenate((self.left, counts))
        self.tokens, first, where = np.unique(tokens, return_index=True, return_inverse=True)
        self.times = times[first]
        self.left = np.bincount(where, weights=counts).astype(np.int64)

    def close(self, tokens: Array, counts: Array) -> Array:
        """Note messages of leases that ended. Returns when each was handed out; 0: unknown."""
        if not len(self.tokens):
            return np.zeros(len(tokens), np.int64)
        at = np.minimum(np.searchsorted(self.tokens, tokens), len(self.tokens) - 1)
        is_known = self.tokens[at] == tokens
        np.subtract.at(self.left, at[is_known], counts[is_known])
        return np.where(is_known, self.times[at], 0)

    def sweep(self) -> None:
        """Forget leases that ended, and the oldest beyond `LEASES_MAX`."""
        kept = np.flatnonzero(self.left > 0)
        if len(kept) > LEASES_MAX:
            newest = np.argsort(self.times[kept], kind="stable")[-LEASES_MAX:]
            kept = np.sort(kept[newest])
        self.tokens, self.times, self.left = self.tokens[kept], self.times[kept], self.left[kept]


class Carry(msgspec.Struct):
    """The whole memory of one partition group."""

    queues: dict[tuple[str, int], Queue] = {}
    """(topic, queue) → the state of the queue."""
    readings: dict[tuple[str, int, int], Reading] = {}
    """(topic, queue, attachment) → what the group has settled."""
    leases: Leases = msgspec.field(default_factory=Leases)
    """The open leases of all groups."""

    def pack(self) -> bytes:
        """As bytes."""
        return msgspec.msgpack.encode(self, enc_hook=_plain)

    @classmethod
    def unpack(cls, data: bytes) -> "Carry":
        """The reverse of `pack`; no bytes: nothing is remembered."""
        if not data:
            return cls()
        return msgspec.msgpack.decode(data, type=cls, dec_hook=_array)


def _plain(array: Any) -> bytes:
    assert isinstance(array, np.ndarray), type(array)
    return array.astype("<i8", copy=False).tobytes()


def _array(_kind: type, data: bytes) -> Array:
    return np.frombuffer(data, "<i8").astype(np.int64)
