"""Rows into Parquet files of an archive: one file a topic and hour, as long as the rows stay there.

    data/topic=orders/dt=2026-11-22/hour=09/b000017-p0003-00-5c1f02d9.parquet

The hour is that of `timestamp`, when the leader stored the message, UTC. A queue's times never fall
from one offset to the next, so a task that reads a range of a queue has one file open at a time.
Rows wait in memory until they fill a row group.

Columns are those of `raftmq.pipeline.rows`; zstd; offsets and times as differences.

Invariants:
- A file has its name when it is whole and durable; names are never used twice.
- Within a file, each range has its rows in the order of their offsets, and ranges are in the order
  of the rows.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import arrow_schema

from .digest import add, digest
from .manifest import File, Range, Version

HOUR_MICROSECONDS = 3_600_000_000
GROUP_ROWS = 128 * 1024
"""Rows after which a row group of a Parquet file ends."""
GROUP_BYTES = 32 * 1024 * 1024
"""Bytes of rows in memory after which a row group ends before it is full."""
RANGES_MAX = 10_000
"""Ranges of offsets that a file may have; the broker leaves no gap, and retention few."""

_DELTAS = ("offset", "created", "timestamp")
_DICTIONARIES = ("topic", "queue", "key", "tag", "props.key_value.key", "props.key_value.value")


def folder_of(topic: str, hour: int) -> str:
    """The folder of an hour's files, below the archive's folder.

    Args:
        topic: its name; a topic's name is a file's name as it stands.
        hour: hours since 1970.

    >>> folder_of("orders", 498_849)
    'data/topic=orders/dt=2026-11-28/hour=09'
    """
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return f"data/topic={topic}/dt={moment:%Y-%m-%d}/hour={moment:%H}"


class Part:
    """A file that is being written: `close` it, or else `abandon` it."""

    def __init__(self, archive: Path, topic: str, hour: int, name: str) -> None:
        """Args: the archive's folder, the file's topic and hour, and its name without a suffix."""
        self.topic = topic
        self.hour = hour
        self._archive = archive
        self._path = f"{folder_of(topic, hour)}/{name}.parquet"
        durable.make_folders(self._whole.parent)
        self._schema = arrow_schema()
        self._writer = pq.ParquetWriter(
            durable.unfinished(self._whole),
            self._schema,
            compression="zstd",
            use_dictionary=list(_DICTIONARIES),
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
            coerce_timestamps="us",
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._ranges: list[Range] = []
        self._rows = self._digest = 0
        self._first, self._last = 2**63 - 1, -(2**63)

    @property
    def _whole(self) -> Path:
        return self._archive / self._path

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of one queue and of this hour, with rising offsets; at least one row.

        Raises:
            PipelineError: there are gaps between nearly all offsets.
        """
        moments = np.asarray(rows["timestamp"].cast(pa.int64()))
        self._add_ranges(rows["queue"][0].as_py(), np.asarray(rows["offset"]))
        self._first = min(self._first, int(moments.min()))
        self._last = max(self._last, int(moments.max()))
        self._rows += rows.num_rows
        self._digest = add(self._digest, digest(rows))
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> File:
        """Give the file its name; on return it is durable."""
        self._write_group()
        self._writer.close()
        durable.finish(self._whole)
        size = self._whole.stat().st_size
        return File(
            path=self._path, topic=self.topic, rows=self._rows, bytes=size, digest=self._digest,
            ranges=tuple(self._ranges), first=self._first, last=self._last,
        )  # fmt: skip

    def abandon(self) -> None:
        """Leave no file, unless it has been closed."""
        self._writer.close()
        durable.unfinished(self._whole).unlink(missing_ok=True)

    def _add_ranges(self, queue: int, offsets: np.ndarray) -> None:
        jumps = np.flatnonzero(np.diff(offsets) != 1)
        starts = offsets[[0, *(jumps + 1)]].tolist()
        ends = (offsets[[*jumps, -1]] + 1).tolist()
        if len(self._ranges) + len(starts) > RANGES_MAX:
            raise PipelineError(
                f"queue {queue} of {self.topic} has more than {RANGES_MAX} gaps in an hour",
                "archive all rows of the source, without a filter, a shuffle or a sort",
            )
        if self._ranges and self._ranges[-1][0::2] == (queue, starts[0]):
            starts[0] = self._ranges.pop().start
        self._ranges.extend(map(Range, [queue] * len(starts), starts, ends))

    def _write_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0


def write(
    archive: Path, batches: Iterable[pa.RecordBatch], *, name: str, after: Version
) -> list[File]:
    """Write rows as files, without those that the archive has; on return they are durable.

    Args:
        archive: its folder.
        batches: the rows; those of a queue in the order of their offsets.
        name: the prefix of all names of files; no other writer uses it.
        after: the archive's newest version.

    Raises:
        PipelineError: the offsets of a queue fall.
    """
    files: list[File] = []
    part: Part | None = None
    try:
        for rows in _pieces(batches, after):
            topic, hour = _place(rows)
            if part is None or (part.topic, part.hour) != (topic, hour):
                if part is not None:
                    files.append(part.close())
                part = Part(archive, topic, hour, f"{name}-{len(files):02}")
            part.add(rows)
        if part is not None:
            files.append(part.close())
    finally:
        if part is not None:
            part.abandon()
    return files


def _pieces(batches: Iterable[pa.RecordBatch], after: Version) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of one topic, queue and hour, without those that the archive has."""
    schema = arrow_schema()
    for batch in batches:
        rows = pa.RecordBatch.from_arrays([batch[name] for name in schema.names], schema=schema)
        for start, end in _runs(rows):
            piece = rows.slice(start, end - start)
            topic, queue = piece["topic"][0].as_py(), piece["queue"][0].as_py()
            known = np.searchsorted(np.asarray(piece["offset"]), after.end(topic, queue) or 0)
            if known < piece.num_rows:
                yield piece.slice(int(known))


def _runs(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Runs of rows of one topic, queue and hour: [start, end).

    Raises:
        PipelineError: the offsets of a queue fall.
    """
    if not rows.num_rows:
        return
    topics = np.asarray(rows["topic"].dictionary_encode().indices)
    queues, offsets = np.asarray(rows["queue"]), np.asarray(rows["offset"])
    hours = np.asarray(rows["timestamp"].cast(pa.int64())) // HOUR_MICROSECONDS
    is_other_queue = (np.diff(topics) != 0) | (np.diff(queues) != 0)
    falls = np.flatnonzero(~is_other_queue & (np.diff(offsets) <= 0))
    if len(falls):
        row = int(falls[0]) + 1
        raise PipelineError(
            f"offset {offsets[row]} of queue {queues[row]} comes after {offsets[row - 1]}",
            "archive the rows as the source yields them, without a shuffle or a sort",
        )
    borders = np.flatnonzero(is_other_queue | (np.diff(hours) != 0)) + 1
    edges = [0, *borders.tolist(), rows.num_rows]
    yield from pairwise(edges)


def _place(rows: pa.RecordBatch) -> tuple[str, int]:
    moment = rows["timestamp"].cast(pa.int64())[0].as_py()
    return rows["topic"][0].as_py(), moment // HOUR_MICROSECONDS
