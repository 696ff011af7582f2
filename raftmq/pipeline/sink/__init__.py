"""The sink: rows of a Spark query become messages, each once.

    df.write.format("raftmq").option("topic", "orders").mode("append").save()
    df.writeStream.format("raftmq").option("topic", "orders").start(checkpointLocation="…")

Start reading at `task` (the work of one task, and why a row is stored once), then `stored` (the
rows of an earlier attempt), `columns` (the columns of rows), `options` and `writers` (the classes
that Spark calls).

| option | default | meaning |
|---|---|---|
| topic | needed | the topic, which must exist |
| url | `RAFTMQ_URL` | `raftmq://host:port[,host:port...]` |
| compression | none | of the bodies: `none`, `lz4`, `zstd` |
| timeout | 60 | seconds without an answer until an error |
| writeId | | batch: a name under which this write is done once, however often it is run |
| partitions | with writeId | how many partitions the rows have, the same in each run of the write |
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .options import parse

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(
    options: Mapping[str, str], schema: "StructType", *, overwrite: bool = False
) -> "DataSourceArrowWriter":
    """The writer that `DataSource.writer` returns.

    Raises:
        PipelineError: an option, a column or the mode cannot be used.
    """
    from .writers import BatchWriter, check

    check(schema, overwrite=overwrite)
    return BatchWriter(parse(options, is_stream=False))


def stream_writer(
    options: Mapping[str, str], schema: "StructType", *, overwrite: bool = False
) -> "DataSourceStreamArrowWriter":
    """The writer that `DataSource.streamWriter` returns; raises as `batch_writer`."""
    from .writers import StreamWriter, check

    check(schema, overwrite=overwrite)
    return StreamWriter(parse(options, is_stream=True))
