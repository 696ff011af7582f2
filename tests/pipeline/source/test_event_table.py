"""The events of all messages as a table of Spark: in batches, and in streams that are killed."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client import format_id
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient


def live(mq: "BlockingClient", topic: str, count: int = 40) -> None:
    """Messages that are popped once; two of three are acked, the rest comes again."""
    with mq.producer(topic) as producer:
        producer.send_many(bodies=[b"x"] * count, keys=[str(n) for n in range(count)])
    with mq.consumer(topic, group="billing", mode="pop", prefetch=0) as consumer:
        left = count
        while left:
            some = list(consumer.pop(left, wait=5.0))
            for message in some:
                if message.offset % 3:
                    message.ack()
                else:
                    message.nack(delay=600.0)
            left -= len(some)


def events(spark: "SparkSession", nodes: Nodes, **options: str) -> "DataFrame":
    return (
        spark.read.format("raftmq")
        .option("table", "events")
        .options(url=nodes.url, **options)
        .load()
    )


def told(rows: "list[Any]", queue: int, offset: int) -> list[tuple[int, str, str | None]]:
    return sorted(
        (row["index"], row["what"], row["group"])
        for row in rows
        if row["queue"] == queue and row["offset"] <= offset < row["offset"] + row["count"]
    )


@pytest.mark.process
def test_table_says_of_each_message_what_its_trace_says(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str
) -> None:
    live(mq, topic)
    rows = events(spark, nodes, subscribe=topic, minPartitions="5").collect()
    assert {row["topic"] for row in rows} == {topic}
    info = mq.admin.describe_topic(topic)
    for queue in info.queues:
        for offset in range(queue.end):
            trace = mq.trace(format_id(info.id << 16 | queue.queue, offset))
            expected = [(each.index, each.what, each.group or None) for each in trace.events]
            assert told(rows, queue.queue, offset) == expected
    assert sum(row["count"] for row in rows if row["what"] == "acked") > 20


@pytest.mark.process
def test_stream_has_each_row_once_though_a_batch_is_repeated_and_a_leader_dies(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    checkpoint: str,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"

    def run() -> None:
        stream = spark.readStream.format("raftmq").option("table", "events")
        stream = stream.options(url=nodes.url, subscribe=topic, maxOffsetsPerTrigger="40")

        def keep(batch: "DataFrame", number: int) -> None:
            batch.write.mode("overwrite").parquet(f"{out}/batch={number}")

        query = stream.load().writeStream.foreachBatch(keep)
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start().awaitTermination()

    live(mq, topic)
    run()
    last = max((Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    shutil.rmtree(out / f"batch={last.name}")
    live(mq, topic)
    victim = nodes.leader(1)
    nodes.kill(victim)
    run()
    nodes.restart(victim)
    found = spark.read.parquet(str(out)).drop("batch").collect()
    expected = events(spark, nodes, subscribe=topic).collect()
    key = [(row["partition_group"], row["index"], row["step"]) for row in found]
    assert len(set(key)) == len(key)
    assert {tuple(row) for row in found} == {tuple(row) for row in expected}
