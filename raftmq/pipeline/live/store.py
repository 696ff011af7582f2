"""The store of a board's windows: one SQLite file, changed in one transaction a batch.

| table | a row | columns |
|---|---|---|
| `windows` | a group of a window | `window_start`, `group`, `closed`, `sketches`, the measures |
| `places` | a queue | `topic`, `queue`, `next` (the next offset to count) |
| `facts` | one | `board`, `topics`, `name`, `watermark`, `step`, `published`, and counts |

`window_start` and `watermark` are microseconds since 1970. `group` is a JSON list, or `''` for the
whole window. `closed` is the step in which a window closed; null: it is open. Each measure has a
column of its name; `sketches` has 4 KiB for each distinct count of an open window.

A *step* is a transaction: of a batch, or of a flush at the end. Closed windows stay for `KEPT`
lengths of a window, for the page and for files that hold several.

Invariants:
- Windows and offsets change together, durably (`synchronous=FULL`), before Spark notes a batch as
  done. After a crash Spark repeats at most rows that are counted already, as `places` shows.
- Steps up to `published` are in files and in the topic; later steps are published again.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from raftmq.pipeline.errors import PipelineError

from . import hyperloglog
from .board import Board, plain
from .windows import BEGINNING, Added, Cell, Group, Number, Window, Windows, ranked

KEPT = 120
"""Closed windows that stay, counted in lengths of a window back from the watermark."""

_TOTAL = ""
_FACTS = ("watermark", "step", "published", "counted", "late", "unusable")


class Final(NamedTuple):
    """A group of a closed window."""

    start: int
    """The window's start, microseconds since 1970."""
    group: Group | None
    """The group; None: the whole window."""
    values: tuple[Number, ...]
    """As `Board.measures` names them."""


class Store:
    """The file of one board. One process at a time; its threads one after the other.

    Args:
        path: the file; made if it is not there.
        board: the board that is counted.
        topics: the number of each topic in its cluster; a topic that was created again has another.

    Raises:
        PipelineError: the file is of another board or other topics, or no file of a board.
    """

    def __init__(self, path: Path, board: Board, topics: Mapping[str, int]) -> None:
        self._board = board
        self._topics = dict(sorted(topics.items()))
        # Spark calls from a thread of its own, one call at a time.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.facts = {**dict.fromkeys(_FACTS, 0), "watermark": BEGINNING}
        """The numbers among the facts."""
        self.name = ""
        """A name of this store alone, which moves with the file: 32 hexadecimal digits."""
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._make(path)
        except sqlite3.DatabaseError as error:
            raise PipelineError(f"{path} is no file of a live board: {error}",
                                "name another folder with --out") from error  # fmt: skip

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def windows(self) -> Windows:
        """The windows as the last step left them."""
        windows = Windows(self._board)
        windows.watermark = self.facts["watermark"]
        for topic, queue, following in self._db.execute("SELECT topic, queue, next FROM places"):
            windows.places[topic, queue] = following
        for start, group, blob, *values in self._db.execute(
            f'SELECT window_start, "group", sketches, {self._measures} FROM windows'
            " WHERE closed IS NULL ORDER BY window_start"
        ):
            cell = self._cell(values, blob)
            window = windows.open.setdefault(start, Window(start, cell))
            if group == _TOTAL:
                window.total = cell
            else:
                window.cells[tuple(json.loads(group))] = cell
        return windows

    def commit(self, windows: Windows, added: Added) -> int:
        """Keep the changes of a batch or a flush, and return the step. Durable on return."""
        step = self.facts["step"] + 1
        facts = dict(self.facts, step=step, watermark=windows.watermark)
        for name in ("counted", "late", "unusable"):
            facts[name] += getattr(added, name)
        # Windows that closed in this step are written as closed rows below.
        closed = {window.start for window in added.closed}
        touched = [at for at in added.touched if at[0] not in closed]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(self._open_rows(windows, touched))
            for window in added.closed:
                self._db.execute("DELETE FROM windows WHERE window_start = ?", [window.start])
                self._write(self._closed_rows(window, step))
            self._db.executemany(
                "INSERT OR REPLACE INTO places VALUES (?, ?, ?)",
                [(*place, following) for place, following in windows.places.items()],
            )
            self._forget(facts)
            self._note(facts)
        self.facts = facts
        return step

    def publish(self, step: int) -> None:
        """Note that all steps up to this one are published; durable with the next commit."""
        self.facts["published"] = step

    def unpublished(self) -> list[tuple[int, int]]:
        """Step and start of each closed window that may be unpublished, in order."""
        return self._db.execute(
            "SELECT closed, window_start FROM windows WHERE closed > ? AND \"group\" = ''"
            " ORDER BY closed, window_start",
            [self.facts["published"]],
        ).fetchall()

    def closed(self, start: int, end: int) -> list[Final]:
        """The groups of the closed windows that begin from `start` to below `end`, by window and
        rank; the whole window's first."""
        found = self._db.execute(
            f'SELECT window_start, "group", {self._measures} FROM windows'
            " WHERE closed IS NOT NULL AND window_start >= ? AND window_start < ? ORDER BY rowid",
            [start, end],
        )
        rows = [
            Final(at, None if group == _TOTAL else tuple(json.loads(group)), tuple(values))
            for at, group, *values in found
        ]
        return sorted(rows, key=lambda row: row.start)

    @property
    def _measures(self) -> str:
        return ", ".join(f'"{name}"' for name in self._board.measures)

    def _make(self, path: Path) -> None:
        board = json.dumps(plain(self._board))
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                'CREATE TABLE IF NOT EXISTS windows (window_start INTEGER, "group" TEXT,'
                f" closed INTEGER, sketches BLOB, {self._measures},"
                ' UNIQUE (window_start, "group"))'
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS places"
                " (topic TEXT, queue INTEGER, next INTEGER, PRIMARY KEY (topic, queue))"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value)")
            found = dict(self._db.execute("SELECT name, value FROM facts"))
            if not found:
                self.name = uuid4().hex
                texts = [("board", board), ("topics", json.dumps(self._topics))]
                texts.append(("name", self.name))
                self._db.executemany("INSERT INTO facts VALUES (?, ?)", texts)
                self._note(self.facts)
                return
        self._compare(json.loads(found["board"]), json.loads(board), path)
        self._compare_topics(json.loads(found["topics"]), path)
        self.facts = {name: found[name] for name in _FACTS}
        self.name = found["name"]

    def _compare_topics(self, found: dict[str, int], path: Path) -> None:
        for name, number in self._topics.items():
            if found.get(name) != number:
                raise PipelineError(
                    f"{path} counted another topic {name}: it was number {found.get(name)}, "
                    f"and is number {number} now",
                    "it was deleted and created again: name another folder with --out",
                )

    def _compare(self, found: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
        names = [name for name in wanted if found.get(name) != wanted[name]]
        if names:
            was = ", ".join(f"{name} = {json.dumps(found.get(name))}" for name in names)
            raise PipelineError(
                f"{path} was begun with another board ({was})",
                "give the same board, or another folder with --out: windows that are counted "
                "cannot be counted again",
            )

    def _open_rows(
        self, windows: Windows, touched: list[tuple[int, Group]]
    ) -> Iterable[tuple[Any, ...]]:
        for start in sorted({start for start, _ in touched}):
            yield (start, _TOTAL, None, *_stored(windows.open[start].total))
        for start, group in touched:
            cell = windows.open[start].cells[group]
            yield (start, json.dumps(group), None, *_stored(cell))

    def _closed_rows(self, window: Window, step: int) -> Iterable[tuple[Any, ...]]:
        yield (window.start, _TOTAL, step, None, *window.total.values())
        for group, values in ranked(window, self._board):
            yield (window.start, json.dumps(group), step, None, *values)

    def _write(self, rows: Iterable[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * (4 + len(self._board.measures)))
        self._db.executemany(f"INSERT OR REPLACE INTO windows VALUES ({marks})", rows)

    def _forget(self, facts: dict[str, int]) -> None:
        # Unpublished windows stay: the next start has to publish them.
        kept = facts["watermark"] - KEPT * self._board.window_ms * 1000
        self._db.execute(
            "DELETE FROM windows WHERE closed <= ? AND window_start < ?",
            [facts["published"], kept],
        )

    def _note(self, facts: dict[str, int]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def _cell(self, values: list[Any], blob: bytes) -> Cell:
        board = self._board
        size = hyperloglog.REGISTERS
        sketches = [
            np.frombuffer(blob, np.uint8, size, place * size).copy()
            for place in range(len(board.distincts))
        ]
        return Cell(values[0], values[1 : 1 + len(board.sums)], sketches)


def _stored(cell: Cell) -> tuple[Any, ...]:
    blob = b"".join(registers.tobytes() for registers in cell.sketches)
    return (blob, *cell.values())
