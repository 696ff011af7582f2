"""Retries that are not due: messages that failed, each with the time when it is handed out again.

Retries are plain tuples of numbers. Messages that fail together wait together: so a million
leases that run out at once are a few hundred retries.

Invariants:
- Retries fall due by time, then queue, then offset, whatever the order of the failures.
"""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from .pieces import Piece


class Retries:
    """The retries of one consumer group."""

    def __init__(self) -> None:
        # (due, queue, base, bits, attempt, keys): no two have one queue and base.
        self._rows: list[tuple[int, int, int, int, int, bytes]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        return ((row[1], Piece(*row[2:])) for row in self._rows)

    @property
    def next_due(self) -> int | None:
        """When the next retry is due; None: there is none."""
        return self._rows[0][0] if self._rows else None

    def add(self, due: int, queue: int, messages: Piece) -> None:
        """Add a retry that falls due at a time."""
        assert messages.bits & 1, "a retry begins with a message that it holds"
        heappush(self._rows, (due, queue, *messages))

    def take_due(self, now: int, count: int) -> list[tuple[int, Piece]]:
        """Take out up to `count` retries that are due: (queue, messages) each."""
        taken: list[tuple[int, Piece]] = []
        while self._rows and self._rows[0][0] <= now and len(taken) < count:
            row = heappop(self._rows)
            taken.append((row[1], Piece(*row[2:])))
        return taken

    def drop_before(self, queue: int, offset: int) -> list[Piece]:
        """Drop all messages before an offset of a queue; which they were."""
        dropped: list[Piece] = []
        rows = self._rows
        self._rows = [row for row in rows if row[1] != queue]
        for row in rows:
            if row[1] == queue:
                gone, kept = Piece(*row[2:]).before(offset)
                if gone is not None:
                    dropped.append(gone)
                if kept is not None:
                    self._rows.append((row[0], queue, *kept))
        heapify(self._rows)
        return sorted(dropped)

    def drop(self, queues: Collection[int]) -> None:
        """Drop all messages of some queues, in one pass for all of them."""
        self._rows = [row for row in self._rows if row[1] not in queues]
        heapify(self._rows)

    def dump(self) -> list[list[Any]]:
        """The retries as plain values."""
        return [list(row) for row in sorted(self._rows)]

    def load(self, rows: list[list[Any]]) -> None:
        """The reverse of `dump`."""
        self._rows = [(row[0], row[1], *Piece(*row[2:])) for row in rows]
