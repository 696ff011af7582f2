"""Closed windows as Parquet: one file for `WINDOWS` lengths of a window, named by where it begins.

    windows/20261122T104500Z.parquet

| column | type | meaning |
|---|---|---|
| `window_start`, `window_end` | timestamp | the window, from the first to below the second |
| one a group, by its name | string | the group's value; null: null |
| `count` | bigint | its messages |
| one a sum | bigint or double | its sum; 0 where all values are null |
| one a distinct count | bigint | about how many different values |

Rows are sorted by window, then by rank. A window without messages has no row.

Whenever a window closes, its file is written again from the store, and replaced in one step: a
reader sees whole windows, and writing a file again changes nothing.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .board import Board
from .store import KEPT, Final, Store

if TYPE_CHECKING:
    import pyarrow as pa

WINDOWS = 60
"""Windows of a file: with one a file, windows of a second would make a file a second. The store
keeps closed windows for longer than a file's span."""
assert WINDOWS < KEPT


def write(store: Store, board: Board, folder: Path, starts: Iterable[int]) -> list[Path]:
    """Write the files of the windows that begin at `starts`; durable on return."""
    span = WINDOWS * board.window_ms * 1000
    written = []
    for first in sorted({start - start % span for start in starts}):
        path = folder / f"{_moment(first):%Y%m%dT%H%M%SZ}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        _put(table(store.closed(first, first + span), board), path)
        written.append(path)
    if written:
        _sync(folder)
    return written


def table(rows: list[Final], board: Board) -> "pa.Table":
    """Groups of closed windows as the table that files hold, without rows of whole windows."""
    import pyarrow as pa

    rows = [row for row in rows if row.group is not None]
    time = pa.timestamp("us", "UTC")
    length = board.window_ms * 1000
    columns = {
        "window_start": pa.array([row.start for row in rows], time),
        "window_end": pa.array([row.start + length for row in rows], time),
    }
    for place, name in enumerate(board.groups):
        columns[name] = pa.array([row.group[place] for row in rows if row.group], pa.string())
    for place, name in enumerate(board.measures):
        values = [row.values[place] for row in rows]
        is_whole = all(isinstance(value, int) for value in values)
        columns[name] = pa.array(values, pa.int64() if is_whole else pa.float64())
    return pa.table(columns)


def _put(table: "pa.Table", path: Path) -> None:
    from pyarrow import parquet

    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("wb") as file:
        parquet.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _sync(folder: Path) -> None:
    # Without an fsync of the folder a new name may be gone after a power cut.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
