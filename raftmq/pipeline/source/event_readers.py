"""Spark's readers of the table `events`; only Spark loads this module.

Invariants:
- Readers hold nothing but options until Spark asks them: Spark makes and pickles readers freely.
- `latestOffset` never gives an offset below its `start`: a log that is shorter is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .connection import client
from .events import (
    EventOptions,
    Indexes,
    Span,
    bounds,
    from_json,
    limited,
    read,
    spans,
    split,
    to_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingClient


@dataclass
class EventPartition(InputPartition):
    """The part of a read that one task does."""

    span: Span
    """The records."""


class EventReader(DataSourceReader):
    """A batch."""

    def __init__(self, options: EventOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """One partition for each log, and more if `minPartitions` asks for more."""
        options = self._options
        held = bounds(client(options.url, options.timeout))
        end = {group: span.end for group, span in held.items()} | (options.end or {})
        found = spans(held, options.start or {}, end, fails_on_loss=options.fails_on_loss)
        return [EventPartition(span) for span in split(found, options.parts_min)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one partition."""
        return _read(self._options, partition)


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream."""

    def __init__(self, options: EventOptions) -> None:
        self._options = options
        self._last: Indexes | None = None

    def initialOffset(self) -> dict[str, int]:
        """The first record of each log, or the one that `startingOffsets` names."""
        held = bounds(self._client())
        first = {group: span.start for group, span in held.items()}
        return to_json(first | (self._options.start or {}))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The ends of the logs, or the places that the limit allows."""
        held, begin = bounds(self._client()), from_json(start)
        end = {group: max(span.end, begin.get(group, 0)) for group, span in held.items()}
        if self._last is not None:
            end = {group: min(index, self._last.get(group, 0)) for group, index in end.items()}
        found = spans(held, begin, end, fails_on_loss=self._options.fails_on_loss)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = {span.partition_group: span.end for span in limited(found, most)}
        return to_json(begin | reached)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a micro-batch, in records of the logs."""
        most = self._options.records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: the run does not read records that come later."""
        self._last = {group: span.end for group, span in bounds(self._client()).items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition for each log with records to read, and more for `minPartitions`."""
        options = self._options
        found = spans(
            bounds(self._client()),
            from_json(start),
            from_json(end),
            fails_on_loss=options.fails_on_loss,
        )
        return [EventPartition(span) for span in split(found, options.parts_min)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one partition."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: the checkpoint alone holds the progress."""

    def stop(self) -> None:
        """Does nothing: the process ends."""

    def _client(self) -> "BlockingClient":
        return client(self._options.url, self._options.timeout)


def _read(options: EventOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    # For a batch without partitions Spark passes one that is no `EventPartition`.
    if isinstance(partition, EventPartition):
        yield from read(client(options.url, options.timeout), options, partition.span)
