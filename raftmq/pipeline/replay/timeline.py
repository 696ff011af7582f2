"""The storing times of a queue's offsets, from the files of an archive.

Times of a queue never fall from one offset to the next, so statistics rule out files and row
groups, and the rest is a search in sorted numbers. One row group's offsets and times are in memory
at a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftmq.pipeline.archive.manifest import File, Range
from raftmq.pipeline.archive.reader import files_of, groups_with, opened


class _Stretch(NamedTuple):
    """Neighbouring messages of a queue."""

    offsets: np.ndarray
    """Rising."""
    moments: np.ndarray
    """When they were stored, microseconds since 1970; never falling."""


class Timeline:
    """A queue's offsets by time, forward only."""

    def __init__(self, archive: Path, files: Sequence[File], topic: str, part: Range) -> None:
        """Args: the archive's folder and files, the topic, and the part of a queue."""
        self._end = part.end
        self._stretches = _stretches(archive, files, topic, part)
        self._stretch = next(self._stretches, None)

    @property
    def moment(self) -> int | None:
        """When the first message that is left was stored, microseconds; None: none is left."""
        return None if self._stretch is None else int(self._stretch.moments[0])

    def due(self, moment: int) -> int:
        """The offset after the last message that was stored before `moment`.

        Args:
            moment: microseconds since 1970; not less than at the call before.
        """
        while self._stretch is not None:
            count = int(np.searchsorted(self._stretch.moments, moment))
            offsets, moments = self._stretch
            if count < len(offsets):
                self._stretch = _Stretch(offsets[count:], moments[count:])
                return int(offsets[count])
            self._stretch = next(self._stretches, None)
        return self._end


def first_offset(archive: Path, files: Sequence[File], topic: str, part: Range, moment: int) -> int:
    """The first offset of a part that was stored at `moment` or later; its end if none was."""
    late = [file for file in files if file.last >= moment]
    start = min((each.start for _, each in files_of(late, topic, part)), default=part.end)
    return Timeline(archive, late, topic, part._replace(start=start)).due(moment)


def _stretches(archive: Path, files: Sequence[File], topic: str, part: Range) -> Iterator[_Stretch]:
    for file, found in files_of(files, topic, part):
        with opened(archive, file) as parquet:
            for group in groups_with(parquet, found):
                rows = parquet.read_row_group(group, columns=["queue", "offset", "timestamp"])
                offsets = np.asarray(rows["offset"])
                is_ours = np.asarray(rows["queue"]) == found.queue
                is_ours &= (offsets >= found.start) & (offsets < found.end)
                moments = np.asarray(rows["timestamp"].cast(pa.int64()))
                if is_ours.any():
                    yield _Stretch(offsets[is_ours], moments[is_ours])
