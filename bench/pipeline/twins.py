"""A source and a sink that work row by row, like most connectors for Spark: for comparison.

All other parts are those of raftmq: the same plan, the same consumer and producer, the same
messages.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

import raftmq
from raftmq.client import Outgoing
from raftmq.client.message import Messages
from raftmq.pipeline.rows import ddl
from raftmq.pipeline.source.batch import BatchReader, Part
from raftmq.pipeline.source.options import Options, parse
from raftmq.pipeline.source.range_reader import Reading
from raftmq.pipeline.source.stream import StreamReader
from raftmq.pipeline.source.table import columns_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHUNK = 5_000
"""Rows in one call of the producer."""


def rows_of(reading: Reading, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    """The messages of a range as tuples, made column by column."""
    assert isinstance(partition, Part)
    wanted = partition.range
    for slices in reading._slices(wanted):
        messages = Messages(slices, wanted.topic)
        columns = {
            "queue": messages.queues,
            "offset": messages.offsets,
            "key": messages.keys,
            "tag": messages.tags,
            "body": messages.bodies,
            "timestamp": [datetime.fromtimestamp(t / 1000, UTC) for t in messages.timestamps],
        }
        yield from zip(*(columns[name] for name in reading.columns), strict=True)


def rows_of_each(reading: Reading, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    """The messages of a range as tuples, made message by message, as in a loop over a consumer."""
    assert isinstance(partition, Part)
    wanted = partition.range
    for slices in reading._slices(wanted):
        for m in Messages(slices, wanted.topic):
            time = datetime.fromtimestamp(m.timestamp / 1000, UTC)
            yield m.queue, m.offset, m.key, m.tag, m.body, time


class RowReader(BatchReader):
    """The batch read, as tuples made column by column."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One tuple a message."""
        return rows_of(self._reading, partition)


class EachReader(BatchReader):
    """The batch read, as tuples made message by message."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One tuple a message."""
        return rows_of_each(self._reading, partition)


class RowStreamReader(StreamReader):
    """The stream read, as tuples made column by column."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One tuple a message."""
        return rows_of(self._reading, partition)


class RowWriter(DataSourceWriter):
    """The sink: a call of the producer for each `CHUNK` rows, without exactly-once writes."""

    def __init__(self, options: dict[str, str]) -> None:
        self._url, self._topic = options["url"], options["topic"]

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send the rows of a task, and wait for all receipts."""
        with raftmq.blocking.connect(self._url) as mq, mq.producer(self._topic) as producer:
            pending = []
            for chunk in _chunks(iterator):
                pending.append(producer.send_many_nowait(chunk))
                if len(pending) > 4:
                    pending.pop(0).wait()
            for each in pending:
                each.wait()
        return WriterCommitMessage()


def _chunks(rows: Iterable[Row]) -> Iterator[list[Outgoing]]:
    chunk: list[Outgoing] = []
    for row in rows:
        chunk.append(Outgoing(bytes(row.body), row.key, row.tag))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class RowSource(DataSource):
    """`format("raftmq-rows")`: the options are those of `raftmq`."""

    @classmethod
    def name(cls) -> str:
        """The argument of `format`."""
        return "raftmq-rows"

    def schema(self) -> str:
        """The schema of the format `raftmq`."""
        return ddl(self._options().columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """See `RowReader`."""
        return RowReader(self._options(), columns_of(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """See `RowStreamReader`."""
        return RowStreamReader(self._options(), columns_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """See `RowWriter`."""
        return RowWriter(dict(self.options))

    def _options(self) -> Options:
        return parse(self.options)


class EachStreamReader(StreamReader):
    """The stream read, as tuples made message by message."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One tuple a message."""
        return rows_of_each(self._reading, partition)


class EachSource(RowSource):
    """`format("raftmq-each")`: with the columns of `rows_of_each` alone."""

    @classmethod
    def name(cls) -> str:
        """The argument of `format`."""
        return "raftmq-each"

    def reader(self, schema: "StructType") -> DataSourceReader:
        """See `EachReader`."""
        return EachReader(self._options(), columns_of(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """See `EachStreamReader`."""
        return EachStreamReader(self._options(), columns_of(schema))
