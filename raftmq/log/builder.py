"""The index of one segment while its records are being applied: the later content of `index_file`.

The machine says of each batch where it was placed (`Placement`), and which key hashes its messages
have. A batch costs a handful of integers in arrays, whatever the number of its messages:

    rows     queue | first offset | messages | record | timestamp        one row a batch
    queue -> [first offset, row, first offset, row, ...]                 to find a row by offset
    keys     hash hash hash ... | hash hash ...                          with the record of each run
    events  events of messages: see `traces`

The event loop fills a builder. Once all records of its segment are applied, nothing is added, and
another thread may turn the builder into columns while the loop goes on reading it.

Invariants:
- Within a queue a batch begins where the last one ended, or at 0: then the queue was dropped and
  lives again, and its earlier batches are forgotten.
- The columns depend on the placements alone, not on when or in how many steps they were noted.
- Key hash 0 stands for "no key" and is not indexed.

Sources: RocketMQ's consume queue (a light index a queue, one log for all).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raftmq.log.events import Placed
from raftmq.log.index_file import Column
from raftmq.log.traces import EventBuilder, MessageEvent


class Placement(NamedTuple):
    """Where a batch stands in its queue."""

    queue: int
    """The queue's number, u64."""
    base_offset: int
    """Offset of the batch's first message."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    """Number of its messages, at least 1."""
    index: int  # type: ignore[assignment]
    """Its record's position in the Raft log."""


class SegmentBuilder:
    """The index of one segment that is not sealed."""

    def __init__(self, name: int) -> None:
        self.name = name
        """The index in the segment's file name."""
        self.born: set[int] = set()
        """Queues whose offset 0 lies in this segment: earlier batches are of another life."""
        self.events = EventBuilder()
        """Events of messages."""
        self._queues = array("Q")
        self._bases = array("Q")
        self._counts = array("I")
        self._indexes = array("Q")
        self._timestamps = array("q")
        self._by_queue: dict[int, array[int]] = {}
        self._forgotten = array("Q")
        """Rows of queues that were dropped within this segment."""
        self._keys = bytearray()
        self._key_indexes = array("Q")
        self._key_ends = array("Q")

    def place(self, placement: Placement, timestamp: int) -> None:
        """Note a batch; records come in the order of their index."""
        queue, base, count, index = placement
        row = len(self._queues)
        entries = self._by_queue.get(queue)
        if entries is None or base == 0:
            if entries is not None:
                self._forgotten.extend(entries[1::2])
            self._by_queue[queue] = array("Q", (base, row))
            if base == 0:
                self.born.add(queue)
        else:
            last = entries[-1]
            assert self._bases[last] + self._counts[last] == base, f"{placement} leaves a gap"
            entries.append(base)
            entries.append(row)
        self._queues.append(queue)
        self._bases.append(base)
        self._counts.append(count)
        self._indexes.append(index)
        self._timestamps.append(timestamp)

    def add_keys(self, index: int, key_hashes: bytes) -> None:
        """Note the key hashes of a record's messages: little-endian u32, 0 for no key."""
        assert len(key_hashes) % 4 == 0
        known = self._key_indexes
        assert not known or known[-1] < index, f"keys of {index} after those of {known[-1]}"
        self._keys += key_hashes
        self._key_indexes.append(index)
        self._key_ends.append(len(self._keys) // 4)

    def _row_of(self, entries: "array[int]", offset: int) -> int:
        """The entry of a queue that holds `offset`: the last that begins at or before `offset`."""
        with memoryview(entries) as flat, flat[::2] as bases:
            return bisect_right(bases, offset) - 1

    def lookup(self, queue: int, offset: int, limit: int) -> list[Placement]:
        """Up to `limit` batches of a queue, the first one holding `offset` or beginning after."""
        entries = self._by_queue.get(queue)
        if entries is None:
            return []
        first = max(self._row_of(entries, offset), 0)
        rows = entries[2 * first + 1 : 2 * (first + limit) : 2]
        placements = [
            Placement(queue, self._bases[row], self._counts[row], self._indexes[row])
            for row in rows
        ]
        if placements and placements[0].base_offset + placements[0].count <= offset:
            return []
        return placements

    def placement_of(self, queue: int, index: int) -> Placement | None:
        """Where a record's batch stands in a queue; None if it does not."""
        row = bisect_left(self._indexes, index)
        if row == len(self._indexes) or (self._indexes[row], self._queues[row]) != (index, queue):
            return None
        entries, base = self._by_queue.get(queue), self._bases[row]
        if entries is None or entries[2 * self._row_of(entries, base) + 1] != row:
            return None
        return Placement(queue, base, self._counts[row], index)

    def earliest(self, queue: int) -> int | None:
        """First offset of a queue in this segment; None if it has no batch here."""
        entries = self._by_queue.get(queue)
        return None if entries is None else entries[0]

    def end(self, queue: int) -> int | None:
        """The offset after a queue's last message here; None if it has no batch here."""
        entries = self._by_queue.get(queue)
        return None if entries is None else self._bases[entries[-1]] + self._counts[entries[-1]]

    def at_time(self, queue: int, timestamp_ms: int) -> int | None:
        """First offset of a queue's first batch here that is not older; None if there is none."""
        entries = self._by_queue.get(queue)
        if entries is None:
            return None
        begin, stop = 0, len(entries) // 2
        while begin < stop:
            middle = (begin + stop) // 2
            if self._timestamps[entries[2 * middle + 1]] < timestamp_ms:
                begin = middle + 1
            else:
                stop = middle
        return entries[2 * begin] if 2 * begin < len(entries) else None

    def placed(self, start: int, limit: int) -> Placed:
        """Up to `limit` batches of the records from the one at `start` on: a copy."""
        first = bisect_left(self._indexes, start)
        rows = slice(first, first + limit)
        gone = [row - first for row in self._forgotten if 0 <= row - first < limit]
        return Placed(
            self._queues[rows], self._bases[rows], self._counts[rows], self._indexes[rows], gone
        )

    def forget(self, queue: int) -> None:
        """Hide a queue that lives again in a later segment; the columns still hold its rows."""
        self._by_queue.pop(queue, None)
        self.born.discard(queue)

    def find_key(self, key_hash: int) -> list[int]:
        """Indexes of the records that hold messages of a key, newest first."""
        if not self._keys or key_hash == 0:
            return []
        hits = np.flatnonzero(np.frombuffer(self._keys, dtype="<u4") == key_hash)
        runs = np.searchsorted(np.frombuffer(self._key_ends, dtype="<u8"), hits, side="right")
        return [self._key_indexes[run] for run in np.unique(runs)[::-1].tolist()]

    def add_events(self, index: int, number: int, events: Sequence[MessageEvent]) -> None:
        """Note what a record did to messages of an attachment; records come in their order."""
        self.events.add(index, number, events)

    def columns(self, *, base: int, record_count: int) -> dict[Column, bytes]:
        """The sections of the index file that this builder knows; ordinals count from `base`."""
        queues = np.frombuffer(self._queues, dtype="<u8")
        order = np.argsort(queues, kind="stable")
        if self._forgotten:
            order = order[~np.isin(order, np.frombuffer(self._forgotten, dtype="<u8"))]
        in_order = queues[order]
        firsts = np.flatnonzero(_is_new(in_order))
        starts = np.append(firsts, len(order)).astype("<u4")
        ordinals = np.frombuffer(self._indexes, dtype="<u8") - np.uint64(base)
        assert not len(ordinals) or int(ordinals.max()) < record_count, "not of this segment"
        # `placement_of` and `placed` find records by bisection.
        assert (ordinals[1:] >= ordinals[:-1]).all(), "batches placed out of their records' order"
        assert len(self._key_indexes) == len(self._key_ends), "runs of keys without a record"
        keys, key_ordinals = self._key_columns(base)
        return {
            "queues": in_order[firsts].tobytes(),
            "starts": starts.tobytes(),
            "bases": np.frombuffer(self._bases, dtype="<u8")[order].tobytes(),
            "counts": np.frombuffer(self._counts, dtype="<u4")[order].tobytes(),
            "ordinals": ordinals[order].astype("<u4").tobytes(),
            "keys": keys,
            "key_ordinals": key_ordinals,
            "events": self.events.section(),
        }

    def _key_columns(self, base: int) -> tuple[bytes, bytes]:
        """Pairs (hash, ordinal), each once, sorted as one 64-bit number."""
        if not self._keys:
            return b"", b""
        hashes = np.frombuffer(bytes(self._keys), dtype="<u4").astype("<u8")
        ends = np.frombuffer(self._key_ends, dtype="<u8").astype(np.int64)
        ordinals = np.frombuffer(self._key_indexes, dtype="<u8") - np.uint64(base)
        pairs = (hashes << np.uint64(32)) | np.repeat(ordinals, np.diff(ends, prepend=0))
        pairs = pairs[hashes != 0]
        pairs.sort()
        pairs = pairs[_is_new(pairs)]
        return (
            (pairs >> np.uint64(32)).astype("<u4").tobytes(),
            (pairs & np.uint64(0xFFFFFFFF)).astype("<u4").tobytes(),
        )


def _is_new(column: "npt.NDArray[np.uint64]") -> "npt.NDArray[np.bool_]":
    """Where a sorted column's entry differs from the one before.

    `np.unique` would hash instead, which measured 30 times slower than the sort that it saves.
    """
    is_new = np.ones(len(column), dtype=np.bool_)
    np.not_equal(column[1:], column[:-1], out=is_new[1:])
    return is_new
