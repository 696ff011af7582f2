"""Parquet files by the hour, written in Spark's workers.

Invariants:
- A file gets its name when it is whole and fsynced; a task that is repeated replaces it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.pipeline.archive.files import UNFINISHED, make_folders, sync_folder

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
        self._writers: dict[Path, tuple[Path, pq.ParquetWriter]] = {}

    def __enter__(self) -> "HourFiles":
        self._root.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, batch: "pa.RecordBatch") -> None:
        """Add rows, each to the file of its hour."""
        import pyarrow.compute as pc

        hours = hours_in(batch, self._column)
        for hour in pc.unique(hours).to_pylist():
            self._writer(hour, batch.schema).write_batch(batch.filter(pc.equal(hours, hour)))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for unfinished, writer in self._writers.values():
            writer.close()
            if kind is not None:
                unfinished.unlink()
        if kind is None:
            for path, (unfinished, _writer) in self._writers.items():
                with unfinished.open("rb") as file:
                    os.fsync(file.fileno())
                unfinished.replace(path)
                sync_folder(path.parent)

    def _writer(self, hour: str, schema: "pa.Schema") -> "pq.ParquetWriter":
        import pyarrow.parquet as pq

        path = path_of(self._root, hour, self._run, self._part)
        if path not in self._writers:
            make_folders(path.parent, below=self._root)
            unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
            writer = pq.ParquetWriter(unfinished, schema, compression="zstd")
            self._writers[path] = unfinished, writer
        return self._writers[path][1]
