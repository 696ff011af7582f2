"""Events of messages, as rows derived from the log: which record touched which message, and how.

A hand-out, an expiry and a retry that falls due have no record of their own; they follow from
applying. So the machine names the effects of each record on messages (`MessageEvent`), and the
segment's index keeps them. An event is about many messages at once, and is one row of 64 bytes,
little-endian:

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | index | the record |
| 8 | 8 | token | the lease; 0: none |
| 16 | 8 | consumer | the consumer that acted, or has the messages; 0: none |
| 24 | 8 | detail | i64; the meaning depends on the kind |
| 32 | 8 | queue | the queue's number |
| 40 | 8 | base | offset of the first message |
| 48 | 4 | width | offsets from there on; 0: all before `base`; 2^32 - 1: all from `base` on |
| 52 | 4 | number | the attachment of the consumer group |
| 56 | 4 | bits_at | where the bits of the span stand; 2^32 - 1: it has no gaps |
| 60 | 2 | attempt | how often the messages were handed out |
| 62 | 1 | kind | see `raftmq.pop.message_events` |
| 63 | 1 | reserved | zero |

In an index file the rows stand by queue, then in the order in which they came:
`number of rows u64 | rows | bits`, and no bytes at all if there is no row.

Invariants:
- The bytes depend on the events alone, not on when or in how many steps they were added.
- `snapshot` gives bytes that never change: any thread may look into them.

Left out: compressing the rows, which repeat each other a lot.

Sources: the idea of a consume queue (light rows beside one log), for deliveries.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

BEFORE = 0
"""As `MessageEvent.bits`: all messages before `base` are meant."""
FROM = -1
"""As `MessageEvent.bits`: all messages from `base` on are meant."""

ROW_BYTES = 64
_ROW = struct.Struct("<QQQqQQIIIHBx")
ROW = np.dtype(
    [
        ("index", "<u8"),
        ("token", "<u8"),
        ("consumer", "<u8"),
        ("detail", "<i8"),
        ("queue", "<u8"),
        ("base", "<u8"),
        ("width", "<u4"),
        ("number", "<u4"),
        ("bits_at", "<u4"),
        ("attempt", "<u2"),
        ("kind", "u1"),
        ("reserved", "u1"),
    ]
)
"""A row, for numpy."""
_COUNT = struct.Struct("<Q")
MAX32 = 2**32 - 1
"""As `width`: all from `base` on; as `bits_at`: no gaps."""
_MAX16 = 2**16 - 1
_MAX63 = 2**63 - 1
_CHUNK_ROWS = 1024
_CHUNK_BITS = 256 * 1024
assert _ROW.size == ROW.itemsize == ROW_BYTES


class MessageEvent(NamedTuple):
    """One event of some messages of a queue."""

    kind: int
    """A `raftmq.pop.message_events.EventKind`."""
    queue: int
    """The queue's number."""
    base: int
    """Offset of the first message."""
    bits: int
    """Bit n stands for the message at `base + n`; or `BEFORE`, `FROM`."""
    attempt: int = 0
    """How often the messages were handed out so far."""
    consumer: int = 0
    """The consumer that acted, or has the messages; 0: none."""
    token: int = 0
    """The lease's token; 0: none."""
    detail: int = 0
    """A time or a number, by kind: see `EventKind`."""


class EventRow(NamedTuple):
    """One event of one message, as found in the rows."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which has no use here
    """Index of the record."""
    number: int
    """The attachment of the consumer group."""
    kind: int
    """A `raftmq.pop.message_events.EventKind`."""
    attempt: int
    """How often the message was handed out by then."""
    consumer: int
    """The consumer that acted, or has the message; 0: none."""
    token: int
    """The lease's token; 0: none."""
    detail: int
    """A time or a number, by kind: see `EventKind`."""


class Rows(NamedTuple):
    """Some rows and the bits that they refer to."""

    rows: "bytes | bytearray | memoryview"
    """The rows, 64 bytes each."""
    bits: "bytes | bytearray | memoryview"
    """The bytes that `bits_at` of each row points into."""


class EventBuilder:
    """The events of a segment that is not sealed. Only bytes grow, no object an event."""

    def __init__(self) -> None:
        self._full: list[Rows] = []
        self._rows = bytearray()
        self._bits = bytearray()

    def add(self, index: int, number: int, events: Iterable[MessageEvent]) -> None:
        """Note the events of the record at `index` for an attachment; records come in order."""
        rows, pack = self._rows, _ROW.pack
        for kind, queue, base, bits, attempt, consumer, token, detail in events:
            width, bits_at = bits.bit_length(), MAX32
            if bits == FROM:
                width = MAX32
            elif bits & (bits + 1):
                bits_at = len(self._bits)
                self._bits += bits.to_bytes((width + 7) // 8, "little")
            rows += pack(
                index,
                token,
                consumer,
                min(detail, _MAX63),
                queue,
                base,
                width,
                number & MAX32,
                bits_at,
                min(attempt, _MAX16),
                kind,
            )
        if len(rows) >= _CHUNK_ROWS * ROW_BYTES or len(self._bits) >= _CHUNK_BITS:
            self._full.append(Rows(bytes(rows), bytes(self._bits)))
            self._rows, self._bits = bytearray(), bytearray()

    def snapshot(self) -> list[Rows]:
        """All rows so far, in order."""
        last = Rows(bytes(self._rows), bytes(self._bits))
        return [*self._full, last] if self._rows else list(self._full)

    def section(self) -> bytes:
        """The section of the index file with these events."""
        chunks = self.snapshot()
        if not chunks:
            return b""
        joined = bytearray().join(chunk.rows for chunk in chunks)
        rows = np.frombuffer(joined, ROW)
        start = shift = 0
        for chunk in chunks:
            stop = start + len(chunk.rows) // ROW_BYTES
            part = rows["bits_at"][start:stop]
            part[part != MAX32] += np.uint32(shift)
            start, shift = stop, shift + len(chunk.bits)
        assert shift < MAX32, "a segment is smaller than that"
        in_order = rows[np.argsort(rows["queue"], kind="stable")]
        parts = [_COUNT.pack(len(rows)), in_order.tobytes(), *(chunk.bits for chunk in chunks)]
        return b"".join(parts)


def all_rows(section: memoryview) -> Rows:
    """The rows in a section of an index file."""
    if not len(section):
        return Rows(b"", b"")
    (count,) = _COUNT.unpack_from(section)
    end = _COUNT.size + count * ROW_BYTES
    return Rows(section[_COUNT.size : end], section[end:])


def rows_of(section: memoryview, queue: int) -> Rows:
    """The rows of one queue in a section of an index file."""
    rows, bits = all_rows(section)
    queues = np.frombuffer(rows, ROW)["queue"]
    count = len(queues)

    def queue_at(row: int) -> int:
        return int(queues[row])

    first = bisect_left(range(count), queue, key=queue_at)
    stop = bisect_right(range(count), queue, lo=first, key=queue_at)
    return Rows(rows[first * ROW_BYTES : stop * ROW_BYTES], bits)


def find(found: Rows, *, queue: int, offset: int, after: int) -> Iterator[EventRow]:
    """The events of one message by records after the one at `after`, in order."""
    rows = np.frombuffer(found.rows, ROW)
    rows = rows[(rows["queue"] == queue) & (rows["index"] > after)]
    base, width = rows["base"], rows["width"]
    is_in = (base <= offset) & (offset - base < width)
    is_in &= width != MAX32
    is_in |= (width == 0) & (offset < base)
    is_in |= (width == MAX32) & (offset >= base)
    for row in rows[is_in]:
        if _has_bit(row, found.bits, offset):
            yield EventRow(*(int(row[field]) for field in EventRow._fields))


def _has_bit(row: Any, bits: Sequence[int], offset: int) -> bool:
    if row["bits_at"] == MAX32:
        return True
    at = offset - int(row["base"])
    return bool(bits[int(row["bits_at"]) + (at >> 3)] >> (at & 7) & 1)
