"""Reading ranges of logs: a task a partition group, on Spark or here.

    (partition group, records, what is carried) ──task──> (what is carried then, facts)

A task asks the group's leader for the events of its range, folds them page by page, and gives back
a few rows; events never leave the task. A task has no effect, so it may fail and run again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import Unavailable
from raftmq.pipeline.errors import cause_of

from .fold_state import Carry
from .minute_facts import Facts
from .minute_fold import Attachment, Folding

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

    from raftmq.blocking import BlockingClient

_SCHEMA = "partition_group int, carry binary, facts binary"


class Task(msgspec.Struct, frozen=True):
    """A range of the log of a partition group."""

    partition_group: int
    """Number of the partition group."""
    start: int
    """The first record."""
    stop: int
    """The record after the last."""
    carry: bytes
    """The memory of all records before `start`: see `Carry`."""
    attachments: tuple[Attachment, ...]
    """The groups that pop."""


class Done(msgspec.Struct, frozen=True):
    """The result of a task."""

    partition_group: int
    """Number of the partition group."""
    carry: bytes
    """The memory after the range."""
    facts: Facts
    """The facts of the range about minutes."""


Reader = Callable[[Sequence[Task]], list[Done]]
"""Runs tasks, in any order."""


def perform(mq: "BlockingClient", task: Task) -> Done:
    """Do one task.

    Raises:
        Rejected: `OFFSET_OUT_OF_RANGE`, the log was trimmed meanwhile.
        Unavailable: the leader was not found in time.
    """
    import pyarrow as pa

    carry = Carry.unpack(task.carry)
    folding = Folding(carry, task.attachments)
    at = task.start
    while at < task.stop:
        page = mq.events(task.partition_group, at, task.stop)
        folding.fold(pa.Table.from_batches([page.to_arrow()]))
        at = page.next
    return Done(task.partition_group, carry.pack(), folding.facts)


def on_spark(spark: "SparkSession", url: str) -> Reader:
    """Tasks run where Spark runs; workers reach the cluster at `url`."""

    def read(tasks: Sequence[Task]) -> list[Done]:
        packed = [msgspec.msgpack.encode(task) for task in tasks]

        def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            # Runs in a worker: everything is imported there.
            import pyarrow as pa

            import raftmq

            with raftmq.blocking.connect(url) as mq:
                for batch in batches:
                    chosen = [packed[n] for n in batch.column("id").to_pylist()]
                    found = [
                        perform(mq, msgspec.msgpack.decode(each, type=Task)) for each in chosen
                    ]
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([each.partition_group for each in found], pa.int32()),
                            pa.array([each.carry for each in found], pa.binary()),
                            pa.array([each.facts.pack() for each in found], pa.binary()),
                        ],
                        ["partition_group", "carry", "facts"],
                    )

        numbers = spark.range(0, len(packed), 1, numPartitions=max(1, len(packed)))
        rows = _collected(numbers.mapInArrow(work, _SCHEMA))
        return [
            Done(row.partition_group, bytes(row.carry), Facts.unpack(bytes(row.facts)))
            for row in rows
        ]

    return read


def _collected(frame: "DataFrame") -> "list[Row]":
    from pyspark.errors import PySparkException

    try:
        return frame.collect()
    except PySparkException as error:
        cause = cause_of(error)
        if cause.message.startswith("Unavailable: "):
            # The error that `here` would raise: a caller that follows the logs handles it.
            raise Unavailable(cause.message.removeprefix("Unavailable: ")) from error
        raise


def here(mq: "BlockingClient") -> Reader:
    """Tasks run in this process, one after the other: for tests, and for very small clusters."""
    return lambda tasks: [perform(mq, task) for task in tasks]
