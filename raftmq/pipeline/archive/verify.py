"""Checks whether an archive is whole: compares all that its manifest says with its files.

| finding | meaning |
|---|---|
| manifest | a version is missing or can't be read, or the checkpoint is ahead of the newest one |
| hole | offsets between two ranges of a queue are in no file, and not in the table of gaps |
| overlap | an offset is in two files |
| ends | a queue's end is not that of its files |
| missing | a file is not there |
| size | a file is longer or shorter than it was |
| unreadable | a file is no Parquet file, or ends early |
| rows | a file has another number of rows |
| digest | rows have changed (`is_deep`) |
| place | rows are of another topic, queue, hour or order than the manifest says (`is_deep`) |

Ranges that retention took before they could be archived are reported as `lost`; they are no damage.
Files that no version names (`stray`) are no damage either: an attempt that was given up left them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import arrow_schema

from .checkpoint import FOLDER, committed_ends
from .commit import breaks, ranges_of
from .digest import add, digest
from .gaps import Gaps
from .manifest import File, Range, Version, load
from .parts import HOUR_MICROSECONDS, folder_of


class Finding(NamedTuple):
    """One thing that is not as it should be, or worth knowing."""

    kind: str
    """As in the table of this module."""
    where: str
    """A file's path, or a queue."""
    what: str
    """The finding in words."""

    @property
    def is_damage(self) -> bool:
        """False: worth knowing, no more."""
        return self.kind not in ("lost", "stray")


class Checked(NamedTuple):
    """A file has been looked at."""

    file: File
    """The file, as the manifest lists it."""
    findings: list[Finding]
    """Findings about the file."""


def verify(archive: Path, *, is_deep: bool = False) -> Iterator[Finding | Checked]:
    """Examine the archive: findings about the whole of it, then each file as it has been checked.

    Args:
        archive: its folder.
        is_deep: read all rows, too, and compare their digest; else sizes and footers only.

    Raises:
        PipelineError: there is no archive.
    """
    try:
        state = load(archive)
    except PipelineError as error:
        if not (archive / "_manifest").is_dir():
            raise
        yield Finding("manifest", "_manifest", f"{error.message}; {error.fix}")
        return
    yield from _of_queues(archive, state)
    yield from _of_checkpoint(archive, state)
    yield from _strays(archive, state)
    for file in state.files:
        yield Checked(file, list(_of_file(archive, file, is_deep=is_deep)))


def _of_queues(archive: Path, state: Version) -> Iterator[Finding]:
    gaps = Gaps(archive)
    found = ranges_of(state.files)
    for (topic, queue), ranges in found.items():
        where = f"queue {queue} of {topic}"
        for expected, start in breaks(ranges, None):
            if start < expected:
                yield Finding("overlap", where, f"offsets {start} to {expected} are in two files")
            elif gaps.covers(topic, queue, expected, start):
                yield Finding("lost", where, f"retention took offsets {expected} to {start}")
            else:
                yield Finding("hole", where, f"offsets {expected} to {start} are in no file")
    for topic, queues in state.ends.items():
        for queue, end in queues.items():
            last = max((each.end for each in found.get((topic, queue), [])), default=0)
            if last != end:
                what = f"the manifest says that it ends at {end}, and its files end at {last}"
                yield Finding("ends", f"queue {queue} of {topic}", what)


def _of_checkpoint(archive: Path, state: Version) -> Iterator[Finding]:
    gaps = Gaps(archive)
    for topic, queues in committed_ends(archive / FOLDER).items():
        for queue, end in queues.items():
            here = state.end(topic, queue) or 0
            # A queue of which nothing is archived may start at any offset.
            if 0 < here < end and not gaps.covers(topic, queue, here, end):
                what = f"Spark has committed offsets up to {end}, and the archive ends at {here}"
                yield Finding("manifest", f"queue {queue} of {topic}", what)


def _strays(archive: Path, state: Version) -> Iterator[Finding]:
    known = {file.path for file in state.files} | {path for path, _ in state.retired}
    for path in sorted((archive / "data").rglob("*")):
        name = str(path.relative_to(archive))
        if path.is_file() and name not in known:
            yield Finding("stray", name, "no version of the manifest names it")


def _of_file(archive: Path, file: File, *, is_deep: bool) -> Iterator[Finding]:
    path = archive / file.path
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        yield Finding("missing", file.path, f"{file.rows} rows")
        return
    if size != file.bytes:
        yield Finding("size", file.path, f"{size} bytes; it was written with {file.bytes}")
    try:
        with pq.ParquetFile(path) as parquet:
            if parquet.metadata.num_rows != file.rows:
                what = f"{parquet.metadata.num_rows} rows; it was written with {file.rows}"
                yield Finding("rows", file.path, what)
            if is_deep:
                yield from _of_rows(parquet, file)
    except (pa.ArrowException, OSError) as error:
        yield Finding("unreadable", file.path, str(error).partition("\n")[0])


def _of_rows(parquet: pq.ParquetFile, file: File) -> Iterator[Finding]:
    if parquet.schema_arrow.names != arrow_schema().names:
        yield Finding("place", file.path, "its columns are not those of the row")
        return
    total, places = 0, _Places(file)
    for batch in parquet.iter_batches():
        total = add(total, digest(batch))
        places.check(batch)
    if total != file.digest:
        what = f"the digest of its rows is {total:016x}; they were written with {file.digest:016x}"
        yield Finding("digest", file.path, what)
    if not places.is_right:
        yield Finding("place", file.path, "rows are not in the places that the manifest says")


class _Places:
    """Whether rows are exactly those that a file's ranges name, in their order, in its hour."""

    def __init__(self, file: File) -> None:
        self.is_right = True
        self._file = file
        self._queues = np.repeat([each.queue for each in file.ranges], self._lengths(file.ranges))
        self._offsets = np.concatenate([np.arange(*each[1:]) for each in file.ranges])
        self._at = 0

    @staticmethod
    def _lengths(ranges: tuple[Range, ...]) -> list[int]:
        return [end - start for _, start, end in ranges]

    def check(self, batch: pa.RecordBatch) -> None:
        """Check the next rows of the file."""
        part = slice(self._at, self._at + batch.num_rows)
        self._at += batch.num_rows
        moments = np.asarray(batch["timestamp"].cast(pa.int64()))
        hours = np.unique(moments // HOUR_MICROSECONDS).tolist()
        folders = {folder_of(self._file.topic, hour) for hour in hours}
        self.is_right &= (
            np.array_equal(np.asarray(batch["queue"]), self._queues[part])
            and np.array_equal(np.asarray(batch["offset"]), self._offsets[part])
            and batch["topic"].unique().to_pylist() == [self._file.topic]
            and folders == {self._file.path.rpartition("/")[0]}
        )
