"""The stream read: the calls of Spark's driver between micro-batches.

    initialOffset() ── latestOffset(start, limit) ── partitions(start, end) ── read ... ──┐
                            ^ what ended at `start` is complete: progress is committed    │
                            └─────────────────────────────────────────────────────────────┘

Spark keeps the end of each micro-batch in its checkpoint, and asks for the same range again after a
crash; so the ranges need nothing else. The group `spark-<job>` serves three purposes:

- *Progress*, for `raftmq group lag`. Spark calls `commit` one micro-batch late, and never for the
  last one; but when Spark asks for the next micro-batch, all before it is complete.
- *`latest`*. Spark does not keep where a query began, and asks again after a crash in the first
  micro-batch. So the reader commits the end that it found first to the group, and finds it there.
- *Loss in the first micro-batch*. For the same reason `earliest` is a later offset after a crash,
  if retention went on. The group holds where the query began, so the messages between are a gap.

Taking the group over fences the driver that had it: the older of two drivers of a job gets an
error. So each micro-batch is planned after a commit, even if nothing changed since the last one.

Left out: a query whose checkpoint loses the completion of its very first micro-batch begins, with
`latest`, after that micro-batch. Sinks that skip a micro-batch they completed lose nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.pipeline.errors import PipelineError

from .batch import Part, reading_of
from .cluster import Bounds, Cluster, lost
from .connection import explained
from .gaps import report
from .offsets import Place, Places, Range, advanced, from_json, limited, ranges, split, to_json
from .options import Options

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingProgress


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Connects at Spark's first question, not before."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        _check_start(options)
        self._options = options
        self._cluster = Cluster(options)
        self._reading = reading_of(options, columns)
        # With AvailableNow: where the query ends.
        self._pinned: Places | None = None
        self._bounds: Bounds | None = None
        self._progress: dict[str, BlockingProgress] = {}
        # Where the query begins; None once `latestOffset` has planned a new micro-batch.
        self._first: Places | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query; the same answer again after a crash in its first micro-batch.

        Raises:
            PipelineError: a topic does not exist, or the options do not fit it.
            Unavailable: a leader was not found in time.
        """
        bounds = self._look()
        if self._options.start == "latest":
            first = {topic: self._named(topic, place) for topic, place in bounds.end.items()}
        else:
            first = self._cluster.resolve(self._options.start, bounds, is_start=True)
        self._first = first
        return to_json(first)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query is to end where the queues end now."""
        self._pinned = self._look().end

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`."""
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; the one that ended at `start` is complete.

        Raises:
            PipelineError: `start` is of other topics, or another driver runs the job.
            Unavailable: a leader was not found in time.
        """
        places = from_json(start)
        bounds = self._look()
        bounds.check(places)
        self._first = None
        end = bounds.end if self._pinned is None else self._pinned
        begun = bounds.earliest | places
        wanted = ranges(begun, end)
        # After a time without messages another driver may have begun, and would plan the same.
        self._report(places, is_planning=bool(wanted))
        if isinstance(limit, ReadMaxRows):
            wanted = limited(wanted, limit.max_rows)
        return to_json(advanced(begun, wanted, end))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The queues' ends when the cluster was last asked, for the query's progress."""
        return None if self._bounds is None else to_json(self._bounds.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges that the tasks of a micro-batch read.

        Raises:
            PipelineError: retention took messages away, or the places are of other topics.
            Unavailable: a leader was not found in time.
        """
        before, after = from_json(start), from_json(end)
        # After a crash Spark calls this first, and this process has not asked for bounds yet.
        bounds = self._bounds if self._bounds is not None else self._look()
        bounds.check(before)
        bounds.check(after)
        gone, left = lost(ranges(bounds.earliest | before, after), bounds.earliest)
        gone = self._lost_at_first(before, after) + gone
        report(gone, fails=self._options.fails_on_loss, folder=self._options.gaps)
        return [Part(each) for each in split(left, self._options.parts_min)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """In a worker: the messages of one range."""
        assert isinstance(partition, Part)
        return self._reading.read(partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        """All before `end` is complete."""
        self._report(from_json(end))

    # Inside.

    def _look(self) -> Bounds:
        self._bounds = self._cluster.bounds()
        return self._bounds

    def _taken(self, topic: str) -> "BlockingProgress":
        """The job's progress in a topic; the first call takes the group over."""
        group = self._options.group
        assert group is not None
        if topic not in self._progress:
            with explained():
                self._progress[topic] = self._cluster.client.progress(topic, group)
        return self._progress[topic]

    def _named(self, topic: str, end: Place) -> Place:
        """The job's committed place; queues without one begin at the end, which is committed."""
        progress = self._taken(topic)
        new = {q: offset for q, offset in end.queues.items() if q not in progress.committed}
        if new:
            # A commit that fails raises here: after a crash the query has to find the same place.
            self._commit(progress, new)
        return Place(end.id, {queue: progress.committed[queue] for queue in end.queues})

    def _lost_at_first(self, before: Places, after: Places) -> list[Range]:
        """The messages that retention took of a repeated first micro-batch; none of others."""
        if self._options.group is None or before != self._first:
            return []
        # The group holds where the micro-batch began; or its end, if it was complete after all.
        begun = {
            topic: Place(place.id, place.queues | self._taken(topic).committed)
            for topic, place in before.items()
        }
        reached = {
            topic: Place(place.id, {q: min(n, end[q]) for q, n in place.queues.items() if q in end})
            for topic, place in before.items()
            if (end := after[topic].queues if topic in after else {})
        }
        return ranges(begun, reached)

    def _report(self, places: Places, *, is_planning: bool = False) -> None:
        """Commit how far the query has come; after a fault the next call commits again.

        Args:
            places: they are committed if they changed.
            is_planning: they are committed even if not: a fenced driver plans no micro-batch.
        """
        if self._options.group is None:
            return
        for topic, place in places.items():
            try:
                progress = self._taken(topic)
                committed = progress.committed
                is_new = any(committed.get(q) != offset for q, offset in place.queues.items())
                if is_new or is_planning:
                    self._commit(progress, place.queues)
            except (Unavailable, OutcomeUnknown):
                # The checkpoint holds the place: the group's progress may lag behind it.
                continue

    def _commit(self, progress: "BlockingProgress", offsets: dict[int, int]) -> None:
        with explained():
            try:
                progress.commit(offsets)
            except Rejected as error:
                if error.reason is not Reason.FENCED:
                    raise
                job = self._options.job
                raise PipelineError(
                    f"another driver runs job {job!r}: it began later, and goes on",
                    "run a job once, or give each its own name with the option job",
                ) from error


def _check_start(options: Options) -> None:
    start = options.start
    is_latest = start == "latest" or (
        isinstance(start, dict) and any(-1 in each.queues.values() for each in start.values())
    )
    if is_latest and (options.job is None or isinstance(start, dict)):
        raise PipelineError(
            "the beginning of a stream must be found again after a crash, and latest has moved by "
            "then",
            "set startingOffsets to latest and job to a name, under which the cluster keeps it; "
            "or begin at earliest, an offset or a time",
        )
    if isinstance(start, datetime) and start > datetime.now(UTC):
        raise PipelineError(
            f"option startingTimestamp is in the future: {start.isoformat()}",
            "begin at a time that has passed, or filter on the column timestamp",
        )
