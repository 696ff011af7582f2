"""The batch read: plans ranges from a start to an end, and has the workers read them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftmq.pipeline.errors import PipelineError

from .cluster import Bounds, Cluster, lost
from .gaps import report
from .offsets import Places, Range, ranges, split
from .options import EPOCH, Options
from .pushdown import Condition, condition_of, keeper, time_bound, whole_bound
from .range_reader import Reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True)
class Part(InputPartition):
    """The part of a read that one task does."""

    range: Range
    """Neighbouring messages of one queue."""


def reading_of(options: Options, columns: tuple[str, ...]) -> Reading:
    """How the workers read."""
    return Reading(
        url=options.url,
        timeout=options.timeout,
        columns=columns,
        filter=options.filter,
        fails_on_loss=options.fails_on_loss,
        gaps=options.gaps,
    )


class BatchReader(DataSourceReader):
    """Reads what lies between two places of each queue. Connects when it plans, not before."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        if options.start == "latest":
            message = "a batch that begins at the end is empty"
            raise PipelineError(message, "set startingOffsets to earliest, or to offsets as JSON")
        self._options = options
        self._reading = reading_of(options, columns)
        self._conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Take over what `pushdown` can evaluate; Spark gets back the rest."""
        for each in filters:
            condition = condition_of(each)
            if condition is None:
                yield each
            else:
                self._conditions += (condition,)

    def partitions(self) -> list[InputPartition]:
        """Ask the cluster how far queues go, and plan.

        Raises:
            PipelineError: retention took messages away, or the options do not fit the topics.
            Unavailable: a leader was not found in time.
        """
        options = self._options
        cluster = Cluster(options)
        bounds = cluster.bounds()
        start = cluster.resolve(options.start, bounds, is_start=True)
        end = cluster.resolve(options.end, bounds, is_start=False)
        gone, left = lost(ranges(start, end), bounds.earliest)
        report(gone, fails=options.fails_on_loss, folder=options.gaps)
        wanted = split(self._narrowed(left, cluster, bounds), options.parts_min)
        # Spark would call `read` with None if there were nothing at all.
        return [Part(each) for each in wanted] or [Part(_NOTHING)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """In a worker: the messages of one range."""
        assert isinstance(partition, Part)
        if partition.range == _NOTHING:
            return iter(())
        return self._reading.read(partition.range, keeper(self._conditions))

    def _narrowed(self, found: list[Range], cluster: Cluster, bounds: Bounds) -> list[Range]:
        """The parts of the ranges that can hold rows that all conditions keep."""
        conditions = self._conditions
        queue, offset = whole_bound(conditions, "queue"), whole_bound(conditions, "offset")
        time = time_bound(conditions)
        first = _at(cluster, bounds, time.low, bounds.earliest)
        last = _at(cluster, bounds, None if time.high is None else time.high + 1, bounds.end)
        narrowed = []
        for each in found:
            start = max(each.start, offset.low or 0, first[each.topic].queues[each.queue])
            end = min(each.end, last[each.topic].queues[each.queue])
            end = end if offset.high is None else min(end, offset.high + 1)
            is_wanted = (queue.low or 0) <= each.queue and (
                queue.high is None or each.queue <= queue.high
            )
            if start < end and is_wanted:
                narrowed.append(each._replace(start=start, end=end))
        return narrowed


_NOTHING = Range("", 0, 0, 0, 0)


def _at(cluster: Cluster, bounds: Bounds, time_ms: int | None, otherwise: Places) -> Places:
    if time_ms is None or time_ms < 0:
        return otherwise
    time = EPOCH + timedelta(milliseconds=time_ms)
    return {topic: cluster.at_time(topic, time, bounds) for topic in bounds.end}
