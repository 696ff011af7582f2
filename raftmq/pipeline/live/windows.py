"""The rules: how partial results become windows, when a window closes, and what is late.

Spark sums up each micro-batch by queue, window and group: a `Partial`. `Windows.add` takes the
partials of one batch, all at once, and returns the changes. No clock, file or Spark is in here.

The *watermark* is the event time before which no message is waited for. After a batch it is the
newest event time of the queue that is furthest behind in that batch, less the lateness; it never
goes back. A window closes when its end is not above the watermark; a later message for it is late,
and counted as late. A queue without messages in the batch does not hold the watermark back, nor
does a queue whose messages are all late.

Why not Spark's own windows: its watermark follows the queue that is furthest *ahead*, so that a
backlog read unevenly is dropped as late; it counts late rows after summing up, not late messages;
and the last windows of a run stay in its state. Here the state is small, and in one place.

Invariants:
- Each message of each queue is counted once: in a window, as late, or as unusable.
- What `add` does depends on the windows and the batch's rows alone, not on their order (but for
  the last digits of sums of doubles).
- There are at most `WINDOWS_MAX` open windows, and `CELLS_MAX` groups in all of them.

Sources: Akidau and others, *The Dataflow Model*, 2015, for windows, watermarks and lateness; Flink
and Kafka Streams take the watermark of a stream of several queues from the slowest, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raftmq.pipeline.errors import PipelineError

from . import hyperloglog
from .board import Board

WINDOWS_MAX = 3600
"""Windows open at a time; beyond it the oldest are closed, even if a queue stays behind."""
CELLS_MAX = 1_000_000
"""Groups of all open windows."""
BEGINNING = -(2**62)
"""The watermark before any message, in microseconds."""

Group = tuple[str | None, ...]
"""The values of a board's groups as text, in its order; None: null."""
Number = int | float
Place = tuple[str, int]
"""Topic and queue."""


class Partial(NamedTuple):
    """The sums of one batch for one queue, window and group."""

    place: Place
    start: int | None
    """The window's start, microseconds since 1970; None: the event times are unusable."""
    group: Group
    messages: int
    """Number of messages, at least 1."""
    sums: tuple[Number, ...]
    """In the board's order."""
    codes: tuple[NDArray[np.int32], ...]
    """The different values that were seen, as `hyperloglog` takes them, in the board's order."""
    newest: int
    """The newest event time, microseconds; without meaning where `start` is None."""
    first: int
    """The lowest offset."""
    next: int
    """The highest offset, and one more."""


@dataclass(slots=True)
class Cell:
    """One group of one window."""

    count: int
    sums: list[Number]
    sketches: list[hyperloglog.Registers]
    _values: tuple[Number, ...] | None = None

    def values(self) -> tuple[Number, ...]:
        """As `Board.measures` names them."""
        if self._values is None:
            self._values = (self.count, *self.sums, *map(hyperloglog.estimate, self.sketches))
        return self._values

    def add(self, partial: Partial) -> None:
        """Add a partial to the sums."""
        self._values = None
        self.count += partial.messages
        for place, value in enumerate(partial.sums):
            self.sums[place] += value
        for registers, codes in zip(self.sketches, partial.codes, strict=True):
            hyperloglog.add(registers, codes)


@dataclass(slots=True)
class Window:
    """One window: the measures of all its messages, and of each group."""

    start: int
    """Microseconds since 1970."""
    total: Cell
    cells: dict[Group, Cell] = field(default_factory=dict)


class Added(NamedTuple):
    """The changes that one batch made."""

    touched: list[tuple[int, Group]]
    """The window and group of each cell that changed, sorted; also of windows that closed."""
    closed: list[Window]
    """The windows that closed, in order."""
    counted: int
    """Messages that are in windows now."""
    late: int
    """Messages whose window was closed before."""
    unusable: int
    """Messages without an event time, or with one too far ahead."""


class Windows:
    """The open windows of a board, and how far each queue is counted."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.open: dict[int, Window] = {}
        """By start."""
        self.watermark = BEGINNING
        """Microseconds since 1970."""
        self.places: dict[Place, int] = {}
        """The next offset to count of each queue."""

    @property
    def length(self) -> int:
        """The length of a window in microseconds."""
        return self.board.window_ms * 1000

    def repeated(self, partials: Iterable[Partial]) -> Mapping[Place, int]:
        """Queues with rows that are counted already → the first offset that is not.

        If there are any, the batch was counted before a crash, and has to be summed up again
        without those rows.
        """
        places = {partial.place for partial in partials
                  if partial.first < self.places.get(partial.place, 0)}  # fmt: skip
        return {place: self.places[place] for place in sorted(places)}

    def add(self, partials: list[Partial]) -> Added:
        """Count a batch, none of whose rows was counted before.

        Raises:
            PipelineError: there are more groups than `CELLS_MAX`.
        """
        assert not self.repeated(partials)
        touched: set[tuple[int, Group]] = set()
        newest: dict[Place, int] = {}
        late = unusable = 0
        for partial in partials:
            if partial.start is None:
                unusable += partial.messages
            elif partial.start + self.length <= self.watermark:
                late += partial.messages
            else:
                self._count(partial.start, partial)
                touched.add((partial.start, partial.group))
                before = newest.get(partial.place, partial.newest)
                newest[partial.place] = max(before, partial.newest)
        # Late and unusable messages are done with, too: no repeated batch may count them again.
        for partial in partials:
            self.places[partial.place] = max(self.places.get(partial.place, 0), partial.next)
        self._bound()
        if newest:
            reached = min(newest.values()) - self.board.lateness_ms * 1000
            self.watermark = max(self.watermark, reached)
        counted = sum(partial.messages for partial in partials) - late - unusable
        return Added(sorted(touched, key=_order), self._close(), counted, late, unusable)

    def flush(self) -> Added:
        """Close all windows; later messages for them are late."""
        self.watermark = max([self.watermark, *(start + self.length for start in self.open)])
        return Added([], self._close(), 0, 0, 0)

    def _count(self, start: int, partial: Partial) -> None:
        window = self.open.get(start)
        if window is None:
            window = self.open[start] = Window(start, self._cell())
        cell = window.cells.get(partial.group)
        if cell is None:
            cell = window.cells[partial.group] = self._cell()
        cell.add(partial)
        window.total.add(partial)

    def _cell(self) -> Cell:
        board = self.board
        return Cell(0, [0] * len(board.sums), [hyperloglog.empty() for _ in board.distincts])

    def _close(self) -> list[Window]:
        ended = sorted(start for start in self.open if start + self.length <= self.watermark)
        surplus = max(0, len(self.open) - len(ended) - WINDOWS_MAX)
        if surplus:
            rest = sorted(set(self.open) - set(ended))[:surplus]
            self.watermark = rest[-1] + self.length
            ended += rest
        return [self.open.pop(start) for start in ended]

    def _bound(self) -> None:
        if sum(len(window.cells) for window in self.open.values()) > CELLS_MAX:
            raise PipelineError(
                f"more than {CELLS_MAX:,} groups are open",
                "group by a column with fewer values, or take a shorter window or lateness",
            )


def ranked(window: Window, board: Board) -> list[tuple[Group, tuple[Number, ...]]]:
    """The groups of a window with their values, the highest by `board.order` first; at most
    `board.top` of them, if it is not 0. Equals are in the order of their names."""
    place = board.measures.index(board.order)
    rows = [(group, cell.values()) for group, cell in window.cells.items()]
    rows.sort(key=lambda row: (-row[1][place], _text(row[0])))
    return rows[: board.top or None]


def _order(touched: tuple[int, Group]) -> tuple[int, list[tuple[bool, str]]]:
    return touched[0], _text(touched[1])


def _text(group: Group) -> list[tuple[bool, str]]:
    # None and text cannot be compared, so a flag sorts None first.
    return [(value is not None, value or "") for value in group]
