"""The run in which Java writes Spark's classes down.

    RAFTMQ_URL=... python -m raftmq.pipeline.class_archive_run FILE

The run has a batch, a stream and a sink on the cluster that `RAFTMQ_URL` names, in two new topics;
Java writes the file when it ends.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import raftmq

from .class_archive import QUIET
from .session import session

_ROWS = 1000


def run(written: Path) -> None:
    """Run what pipelines run, in a Java that writes its classes to a file when it ends."""
    options = {"spark.driver.extraJavaOptions": f'-XX:ArchiveClassesAtExit="{written}" {QUIET}'}
    with raftmq.blocking.connect(os.environ["RAFTMQ_URL"]) as mq:
        mq.admin.create_topic("read")
        mq.admin.create_topic("written")
        with mq.producer("read") as producer:
            producer.send_many(bodies=[b"%d" % n for n in range(_ROWS)])
    with (
        tempfile.TemporaryDirectory() as folder,
        session("raftmq-classes", settings=options) as spark,
    ):
        _batch(spark, Path(folder))
        _stream(spark, Path(folder))


def _batch(spark: SparkSession, folder: Path) -> None:
    rows = spark.read.format("raftmq").option("subscribe", "read").load()
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(str(folder / "rows"))
    stored = spark.read.parquet(str(folder / "rows"))
    both = rows.select("queue", "offset").join(stored, ["queue", "offset"])
    assert both.groupBy("queue").count().orderBy("queue").toArrow()["count"].to_pylist() != []
    rows.select("body").write.format("raftmq").option("topic", "written").mode("append").save()


def _stream(spark: SparkSession, folder: Path) -> None:
    rows = spark.readStream.format("raftmq").option("subscribe", "read").load()
    by_second = f.window("timestamp", "1 second")
    counted = rows.withWatermark("timestamp", "1 second").groupBy(by_second, "tag").count()
    writer = counted.writeStream.outputMode("append").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.format("parquet").option("path", str(folder / "windows")).start().awaitTermination()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
