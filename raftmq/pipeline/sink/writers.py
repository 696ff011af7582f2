"""Spark's writers: a writer is made in the driver, pickled, and runs in a task for each partition.

When a task returns, its rows are on the disks of a majority, and they stay there when another task
of the batch fails. Spark then runs the batch again, which finds these rows. So `abort` has nothing
to do, and `commit` only compares the number of tasks with that of earlier tries of the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from raftmq import blocking
from raftmq.pipeline.errors import PipelineError

from .columns import check_columns
from .options import Options
from .task import Work, Written, check_partitions, write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Done(WriterCommitMessage):
    """The result of a task."""

    partition: int
    """Spark's number of the partition."""
    written: Written
    """Counts of the rows of the partition."""


def check(schema: "StructType", *, overwrite: bool) -> None:
    """Refuse a mode or columns that cannot be written, before a row is.

    Raises:
        PipelineError: the mode or a column is refused.
    """
    if overwrite:
        message = "a topic cannot be overwritten: its messages stay until retention takes them"
        raise PipelineError(message, 'write with .mode("append")')
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields])


class BatchWriter(DataSourceArrowWriter):
    """The writer of one `df.write`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # The name is made once, in the driver, so all attempts of all tasks have the same.
        self._name = f"write/{options.write_id}" if options.write_id else str(uuid4())

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        """Store the rows of one partition; see `task`."""
        work = Work(self._name, _partition(), 1, is_cut_once=not self._options.write_id)
        return _run(self._options, work, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Raise if the rows have another number of partitions than the option; see `task`."""
        _check(messages, self._options.partitions)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a streaming query."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        """Store the rows of one partition of a micro-batch; see `task`."""
        query = _property("sql.streaming.queryId")
        batch = int(_property("streaming.sql.batchId"))
        work = Work(query, _partition(), batch + 1, is_cut_once=False)
        return _run(self._options, work, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:
        """Raise if an earlier try of the batch had more partitions; see `task`."""
        _check(messages, 0)


def _run(options: Options, work: Work, batches: "Iterator[pa.RecordBatch]") -> Done:
    with blocking.connect(options.url, timeout=options.timeout, wait_refused=None) as mq:
        return Done(work.partition, write(mq, work, options, batches))


def _check(messages: "Sequence[WriterCommitMessage | None]", said: int) -> None:
    check_partitions([each.written for each in messages if isinstance(each, Done)], said)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _property(name: str) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        message = f"Spark does not name its {name}, which exactly once needs"
        raise PipelineError(
            message, "use PySpark 4.3; `raftmq pipeline doctor` shows the installed version"
        )
    return value
