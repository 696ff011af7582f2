"""Parquet files by the hour, written in Spark's workers.

Invariants:
- A file gets its name when it is whole and fsynced; a task that is repeated replaces it.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from raftmq.pipeline import durable

from .folder import path_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

HOUR_FORMAT = "%Y-%m-%dT%H"
"""An hour as text."""


def hours_in(batch: "pa.RecordBatch | pa.Table", column: str) -> "pa.Array":
    """Each row's hour by this timestamp, as text, UTC."""
    import pyarrow.compute as pc

    return pc.strftime(pc.floor_temporal(batch[column], unit="hour"), format=HOUR_FORMAT)


class HourFiles:
    """One file an hour, as rows come. Use it as `with`; after a failure no file gets its name."""

    def __init__(self, root: Path, *, run: int, part: int, column: str) -> None:
        """Write below `root`; `column` is the timestamp that decides a row's hour."""
        self._root, self._run, self._part, self._column = root, run, part, column
        self._writers: dict[Path, pq.ParquetWriter] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "HourFiles":
        durable.make_folders(self._root)
        return self

    def write(self, batch: "pa.RecordBatch") -> None:
        """Add rows, each to the file of its hour."""
        import pyarrow.compute as pc

        hours = hours_in(batch, self._column)
        for hour in pc.unique(hours).to_pylist():
            self._writer(hour, batch.schema).write_batch(batch.filter(pc.equal(hours, hour)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _writer(self, hour: str, schema: "pa.Schema") -> "pq.ParquetWriter":
        import pyarrow.parquet as pq

        path = path_of(self._root, hour, self._run, self._part)
        if path not in self._writers:
            durable.make_folders(path.parent)
            unfinished = self._stack.enter_context(durable.writing(path))
            writer = pq.ParquetWriter(unfinished, schema, compression="zstd")
            # The writer is closed before the file gets its name.
            self._writers[path] = self._stack.enter_context(writer)
        return self._writers[path]
