"""`format("raftmq")`: readers and writers for Spark, from the options and a schema."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import COLUMNS, ddl

from .events import DDL as EVENTS
from .events import parse as parse_events
from .options import check_kind, parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class MessageSource(DataSource):
    """Topics of a cluster as a table."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "raftmq"

    def schema(self) -> str:
        """The row, or the columns of it that the options name; or that of events."""
        if self._is_of_events():
            return EVENTS
        return ddl(parse(self.options).columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """See `BatchReader`, and `EventReader`."""
        if self._is_of_events():
            from .event_readers import EventReader

            return EventReader(parse_events(self.options))
        from .batch import BatchReader

        check_kind(self.options, is_stream=False)
        return BatchReader(parse(self.options), columns_of(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """See `StreamReader`, and `EventStreamReader`."""
        if self._is_of_events():
            from .event_readers import EventStreamReader

            return EventStreamReader(parse_events(self.options))
        from .stream import StreamReader

        check_kind(self.options, is_stream=True)
        return StreamReader(parse(self.options), columns_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:
        """See `raftmq.pipeline.sink`."""
        from raftmq.pipeline.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:
        """See `raftmq.pipeline.sink`."""
        from raftmq.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _is_of_events(self) -> bool:
        table = self.options.get("table", "messages")
        if table not in ("messages", "events"):
            raise PipelineError(f"there is no table {table!r}", "it is messages, or events")
        return table == "events"


def columns_of(schema: "StructType") -> tuple[str, ...]:
    """The columns of a schema, which are some of the row.

    Raises:
        PipelineError: a user gave a schema of other columns or types.
    """
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            message = f"the source has no column {field.name} {kind}"
            raise PipelineError(message, f"leave out the schema, or take some of: {ddl()}")
    return tuple(field.name for field in schema.fields)
