"""The archive as a stream: queues by offset, at a chosen speed. Spark alone loads this module.

    latestOffset ──> how far each queue has come: {"0": 480, "3": 495}
    partitions   ──> one a queue: what of it, and the files that hold it
    read         ──> in a worker: its rows, in order

Spark keeps the ends in its checkpoint; the rows between two ends never change, even if the archive
is compacted meanwhile, so a batch that is repeated has the same rows in the same partitions. With a
speed, `latestOffset` looks at the clock: a message is due once its distance in time from the first
message, divided by the speed, has passed. After a restart the clock starts again with the next
message.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from raftmq.pipeline.archive.manifest import File, Range, Version, load, versions
from raftmq.pipeline.archive.reader import files_of, rows_of
from raftmq.pipeline.rows import DDL

from .plan import Plan, read
from .timeline import Timeline

NAME = "raftmq-replay"
"""The name for `readStream.format`."""

CHUNK_ROWS = 10_000
"""Rows that are handed to Spark at once."""


class ReplaySource(DataSource):
    """Reads the messages that a replay sends.

    Options: `archive`, its folder; `replay`, that of the replay; `speed` and `rowsMax`, as
    `ReplayReader` has them.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `readStream.format`."""
        return NAME

    def schema(self) -> str:
        """The row of the pipeline."""
        return DDL

    def streamReader(self, schema: StructType) -> "ReplayReader":
        """See `ReplayReader`."""
        options = self.options
        plan = read(Path(options["replay"]))
        speed, rows_max = float(options["speed"]), int(options["rowsMax"])
        return ReplayReader(Path(options["archive"]), plan, speed=speed, rows_max=rows_max)


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """The part of a queue that one task reads."""

    range: Range
    """The offsets."""
    files: tuple[File, ...]
    """The files that hold these offsets."""


class ReplayReader(DataSourceStreamReader):
    """All but `read` runs in one process beside the driver."""

    def __init__(self, archive: Path, plan: Plan, *, speed: float, rows_max: int) -> None:
        """Keep the arguments; reading begins later.

        Args:
            archive: its folder.
            plan: what to send.
            speed: recorded seconds a second; 0: no limit.
            rows_max: messages of a batch at most, over all queues, but at least one of each.
        """
        self._archive = archive
        self._plan = plan
        self._speed = speed
        self._rows_max = rows_max
        self._state: Version | None = None
        self._pace: _Pace | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The first offset of each queue."""
        return {str(part.queue): part.start for part in self._plan.ranges}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes: to what is due, and not beyond the end."""
        left = [each for each in self._left(start) if each.start < each.end]
        if not left:
            return start
        share = max(1, self._rows_max // len(left))
        ends = {each.queue: min(each.end, each.start + share) for each in left}
        if self._speed:
            due = self._paced(left).due(self._speed)
            ends = {queue: min(end, due[queue]) for queue, end in ends.items()}
        after = dict(start)
        for each in left:
            # Messages that were due and did not fit in a batch stay due: an end never falls.
            after[str(each.queue)] = max(each.start, ends[each.queue])
        return after

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One partition a queue."""
        found: list[InputPartition] = []
        for queue, first in start.items():
            part = Range(int(queue), first, end[queue])
            if part.start < part.end:
                files = (file for file, _ in files_of(self._files(), self._plan.topic, part))
                # A file may hold two ranges of one queue.
                found.append(Part(part, tuple(dict.fromkeys(files))))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a worker: a queue's rows, by their offsets."""
        assert isinstance(partition, Part)
        for rows in rows_of(self._archive, partition.files, self._plan.topic, partition.range):
            for start in range(0, rows.num_rows, CHUNK_ROWS):
                yield rows.slice(start, CHUNK_ROWS)

    def _paced(self, left: list[Range]) -> "_Pace":
        files = self._files()
        if self._pace is None or self._pace.files is not files:
            # The archive was compacted: its old files go away, and the clock runs on.
            topic = self._plan.topic
            lines = {each.queue: Timeline(self._archive, files, topic, each) for each in left}
            self._pace = _Pace(files, lines, self._pace)
        return self._pace

    def _left(self, start: dict[str, Any]) -> list[Range]:
        return [part._replace(start=start[str(part.queue)]) for part in self._plan.ranges]

    def _files(self) -> tuple[File, ...]:
        """The archive's files now; the manifest is read again only if it has changed."""
        if self._state is None or versions(self._archive)[-1] != self._state.version:
            self._state = load(self._archive)
        return self._state.files


class _Pace:
    """The messages that are due, by a clock that started with the first `_Pace`."""

    def __init__(
        self, files: tuple[File, ...], lines: dict[int, Timeline], before: "_Pace | None"
    ) -> None:
        self.files = files
        self._lines = lines
        self._recorded: int
        self._started: float
        if before is not None:
            self._recorded, self._started = before._recorded, before._started
            return
        moments = [line.moment for line in lines.values() if line.moment is not None]
        self._recorded = min(moments, default=0)
        self._started = time.monotonic()

    def due(self, speed: float) -> dict[int, int]:
        """Queue → the offset after the last message that is due."""
        passed = (time.monotonic() - self._started) * speed
        moment = self._recorded + round(passed * 1e6) + 1
        return {queue: line.due(moment) for queue, line in self._lines.items()}
