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

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.pipeline import durable

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
    from pyarrow import parquet

    span = WINDOWS * board.window_ms * 1000
    written = []
    for first in sorted({start - start % span for start in starts}):
        path = folder / f"{_moment(first):%Y%m%dT%H%M%SZ}.parquet"
        durable.make_folders(folder)
        with durable.writing(path) as unfinished:
            rows = table(store.closed(first, first + span), board)
            parquet.write_table(rows, unfinished, compression="zstd")
        written.append(path)
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


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
