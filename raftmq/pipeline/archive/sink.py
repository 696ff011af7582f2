"""Spark's sink of an archive: tasks write files, the driver commits them. Only Spark loads it.

    task 0 ──> b000017-p0000-00-….parquet ┐
    task 1 ──> b000017-p0001-00-….parquet ├─> commit: version 42 of the manifest
    task 2 ──> b000017-p0002-00-….parquet ┘

Each task looks at the newest version first and leaves out rows that the archive has. A task's files
have a name of their own for each attempt, so an attempt that was given up, or a driver that was
killed and is not quite dead, does no harm: its files are in no version, and the next driver removes
them.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import COLUMNS, DDL

from .commit import commit
from .manifest import File, newest
from .parts import write

NAME = "raftmq-archive"
"""The name for `writeStream.format`."""


class ArchiveSink(DataSource):
    """Writes the row of the pipeline into an archive.

    Options: `path`, the archive's folder; `topics`, topic → id as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `writeStream.format`."""
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":
        """A writer of rows of this schema.

        Raises:
            PipelineError: a column is missing, or has another type.
        """
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields})
        topics = json.loads(self.options["topics"])
        return ArchiveWriter(Path(self.options["path"]), topics)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The files that a task has written."""

    files: tuple[File, ...]
    """Whole and durable, in no version yet."""
    query: str
    """Spark's id of the query, which outlives restarts."""


class ArchiveWriter(DataSourceStreamArrowWriter):
    """`write` runs in each task, `commit` in the driver."""

    def __init__(self, archive: Path, topics: dict[str, int]) -> None:
        """Args: the archive's folder; topic → its id."""
        self._archive = archive
        self._topics = topics

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; on return they are durable, and not yet in the archive."""
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        name = f"b{batch:06}-p{context.partitionId():04}-{secrets.token_hex(4)}"
        files = write(self._archive, iterator, name=name, after=newest(self._archive))
        return Written(tuple(files), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add a version with the files of all tasks; a batch that has a version adds none."""
        written = [message for message in messages if isinstance(message, Written)]
        files = sorted(
            (file for message in written for file in message.files),
            key=lambda file: (file.topic, file.ranges),
        )
        query = written[0].query if written else None
        commit(self._archive, files, topics=self._topics, query=query, batch=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the files: a commit that failed late may have been durable nevertheless."""


def check_schema(columns: Mapping[str, str]) -> None:
    """Refuse a schema without the row of the pipeline.

    Args:
        columns: name → type in Spark's words.

    Raises:
        PipelineError: a column is missing, or has another type.
    """
    for name, kind in COLUMNS.items():
        if columns.get(name) != kind:
            found = columns.get(name, "missing")
            raise PipelineError(
                f"column {name} is {found}, and an archive holds it as {kind}",
                f"archive the columns of the source: {DDL}",
            )
