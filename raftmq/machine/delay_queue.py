"""A delay queue: the delayed messages of one queue, as rows sorted by when they fall due.

A row has a message's due time, its number, and its place in the log:

| column | meaning |
|---|---|
| due | milliseconds since 1970 |
| number | the name of the message for ever: Raft index of its first record << 16, + its position |
| place | where its bytes are now, in the same form: it moves when retention comes near |

Rows are sorted by (due, number) and cut into chunks of at most `CHUNK_ROWS`, each three arrays of
64-bit numbers. So a message takes 24 bytes and no Python object, and putting one in moves at most
some 30 KiB.

Invariants:
- A row that is put in has a greater number than all that are here, so among equal times it is last.
- Chunks are not empty.

Sources: Bentley's sorted chunks, as in the sortedcontainers library; RocketMQ's timer wheel has a
slot a second and a linked list in a file instead.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK_ROWS = 4096
"""Rows of a chunk at the most: to put a row in moves no more than these."""
ROW_BYTES = 24
"""Bytes of a row: three numbers of 64 bits."""
NUMBER_MAX = 2**63 - 1
"""The highest number of a message."""


class Rows(NamedTuple):
    """Some rows, as columns."""

    dues: "array[int]"
    """When each message falls due, milliseconds since 1970."""
    numbers: "array[int]"
    """The number of each message."""
    places: "array[int]"
    """Where in the log each message stands."""


class Key(NamedTuple):
    """The sort key of a row."""

    due: int
    """Milliseconds since 1970."""
    number: int
    """The message's number."""


class _At(NamedTuple):
    chunk: int
    row: int


class DelayQueue:
    """The rows of one queue."""

    __slots__ = ("_chunks", "_firsts", "count")

    def __init__(self) -> None:
        self._chunks: list[Rows] = []
        # The key of each chunk's first row.
        self._firsts: list[tuple[int, int]] = []
        self.count = 0
        """The number of rows."""

    @property
    def first(self) -> Key:
        """The row that falls due first; there must be one."""
        assert self.count, "an empty delay queue is to be forgotten"
        return Key(*self._firsts[0])

    def put(self, *, due: int, number: int, place: int, count: int) -> None:
        """Add messages that fall due together, with numbers and places one after the other."""
        dues = array("q", (due,)) * count
        numbers = array("q", range(number, number + count))
        places = array("q", range(place, place + count))
        at = bisect_right(self._firsts, (due, NUMBER_MAX)) - 1
        self.count += count
        if at < 0:
            self._insert(0, Rows(dues, numbers, places))
            return
        chunk = self._chunks[at]
        row = bisect_right(chunk.dues, due)
        assert row == 0 or chunk.dues[row - 1] < due or chunk.numbers[row - 1] < number
        if row == len(chunk.dues) and row + count > CHUNK_ROWS:
            self._insert(at + 1, Rows(dues, numbers, places))
            return
        chunk.dues[row:row] = dues
        chunk.numbers[row:row] = numbers
        chunk.places[row:row] = places
        if len(chunk.dues) > CHUNK_ROWS:
            del self._chunks[at], self._firsts[at]
            self._insert(at, chunk)

    def _insert(self, at: int, rows: Rows) -> None:
        """Put rows in as chunks of their own, of equal lengths."""
        total = len(rows.dues)
        assert total, "chunks are not empty"
        step = -(-total // -(-total // CHUNK_ROWS))
        pieces = [Rows(*(c[n : n + step] for c in rows)) for n in range(0, total, step)]
        self._chunks[at:at] = pieces
        self._firsts[at:at] = [(piece.dues[0], piece.numbers[0]) for piece in pieces]
        assert len(self._firsts) == len(self._chunks), "a chunk without its first key"

    def head(self, limit: int, *, until: int) -> Rows:
        """The first rows that fall due at `until` or before; at most `limit`."""
        found = Rows(array("q"), array("q"), array("q"))
        for chunk in self._chunks:
            stop = min(bisect_right(chunk.dues, until), limit - len(found.dues))
            for column, source in zip(found, chunk, strict=True):
                column.extend(source[:stop])
            if stop < len(chunk.dues):
                break
        assert len(found.dues) <= limit, f"{len(found.dues)} rows, of {limit} at most"
        return found

    def is_due(self, count: int, *, until: int) -> bool:
        """Are there `count` rows that fall due at `until` or before?"""
        if self.count < count:
            return False
        for chunk in self._chunks:
            if count <= len(chunk.dues):
                return chunk.dues[count - 1] <= until
            count -= len(chunk.dues)
        return False

    def take(self, count: int) -> "array[int]":
        """Remove the first rows, and return their places."""
        assert count <= self.count, f"{count} rows are taken of {self.count}"
        self.count -= count
        places = array("q")
        gone = 0
        while gone < len(self._chunks) and count >= len(self._chunks[gone].dues):
            places.extend(self._chunks[gone].places)
            count -= len(self._chunks[gone].dues)
            gone += 1
        del self._chunks[:gone], self._firsts[:gone]
        if count:
            chunk = self._chunks[0]
            places.extend(chunk.places[:count])
            for column in chunk:
                del column[:count]
            self._firsts[0] = chunk.dues[0], chunk.numbers[0]
        assert bool(self.count) == bool(self._chunks), "rows and chunks out of step"
        return places

    def remove(self, due: int, number: int) -> int | None:
        """Remove one row, and return its place; None: there is no such row."""
        at = self._find(due, number)
        if at is None:
            return None
        chunk = self._chunks[at.chunk]
        place = chunk.places[at.row]
        for column in chunk:
            del column[at.row]
        self.count -= 1
        if not chunk.dues:
            del self._chunks[at.chunk], self._firsts[at.chunk]
        elif at.row == 0:
            self._firsts[at.chunk] = chunk.dues[0], chunk.numbers[0]
        assert bool(self.count) == bool(self._chunks), "rows and chunks out of step"
        return place

    def move(self, due: int, number: int, place: int) -> int | None:
        """Note a message's new place, and return the old one; None: there is no such row."""
        at = self._find(due, number)
        if at is None:
            return None
        places = self._chunks[at.chunk].places
        before = places[at.row]
        places[at.row] = place
        return before

    def _find(self, due: int, number: int) -> _At | None:
        at = bisect_right(self._firsts, (due, number)) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        low, high = bisect_left(chunk.dues, due), bisect_right(chunk.dues, due)
        row = bisect_left(chunk.numbers, number, low, high)
        return _At(at, row) if row < high and chunk.numbers[row] == number else None

    def before(self, place: int, *, after: Key, limit: int) -> Rows:
        """Rows whose messages stand before `place`, in order, without those up to key `after`."""
        found = Rows(array("q"), array("q"), array("q"))
        start = max(bisect_right(self._firsts, after) - 1, 0)
        for chunk in self._chunks[start:]:
            columns = [np.frombuffer(column, dtype=np.int64) for column in chunk]
            dues, numbers, places = columns
            is_wanted = places < place
            if chunk.dues[0] <= after.due:
                is_later = (dues > after.due) | ((dues == after.due) & (numbers > after.number))
                is_wanted &= is_later
            chosen = np.flatnonzero(is_wanted)[: limit - len(found.dues)]
            for column, source in zip(found, columns, strict=True):
                column.frombytes(source[chosen].tobytes())
            if len(found.dues) == limit:
                break
        assert len(found.dues) <= limit, f"{len(found.dues)} rows, of {limit} at most"
        return found

    def chunks(self) -> Iterator[Rows]:
        """All rows, in order; the caller must not change them."""
        return iter(self._chunks)

    @classmethod
    def load(cls, data: bytes | memoryview) -> "DelayQueue":
        """A delay queue from its three columns, one after the other."""
        queue = cls()
        rows = Rows(array("q"), array("q"), array("q"))
        size = len(data) // 3
        for at, column in enumerate(rows):
            column.frombytes(data[at * size : (at + 1) * size])
        queue.count = len(rows.dues)
        queue._insert(0, rows)
        return queue
