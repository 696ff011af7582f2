"""The sink as Spark drives it: batches, streams, lost commits, failing tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from raftmq.pipeline.errors import cause_of
from tests.pipeline.nodes import Nodes

from .attempts import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient

# The first query of a Spark starts half a dozen processes, which takes minutes on a busy machine.
# A task that fails is tried twice more, by the session of `raftmq.pipeline`.
pytestmark = pytest.mark.timeout(400)


def numbered(spark: "SparkSession", count: int, parts: int = 2) -> "DataFrame":
    """Rows with a body and a key."""
    rows = spark.range(0, count, 1, parts)
    return rows.selectExpr("cast(id as string) body", "concat('k', id % 20) key")


def bodies(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


def test_batch_write_stores_columns_as_they_are(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str
) -> None:
    rows = spark.sql(
        "select encode(cast(id as string), 'UTF-8') body, concat('k', id % 3) key, "
        "if(id < 5, 'a', null) tag, "
        "named_struct('n', id, 'half', id / 2, 'even', id % 2 = 0, 'name', concat('x', id)) props, "
        "int(id % 4) queue from range(10)"
    )
    rows.write.format("raftmq").options(topic=topic, url=nodes.url).mode("append").save()
    with mq.consumer(topic) as consumer:
        found: list[Any] = []
        while len(found) < 10:
            found += consumer.fetch(wait=10)
    for m in found:
        n = int(m.body)
        assert (m.queue, m.key, m.tag) == (n % 4, f"k{n % 3}", "a" if n < 5 else None)
        assert m.props == {"n": n, "half": n / 2, "even": n % 2 == 0, "name": f"x{n}"}


def test_task_that_fails_half_way_and_brings_rows_in_another_order(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str
) -> None:
    from pyspark import TaskContext

    def shuffled(batches: Any) -> Any:
        """After a shuffle the order of rows depends on which task was done first."""
        context = TaskContext.get()
        assert context is not None
        rows = [batch.slice(at, 1000) for batch in batches for at in range(0, batch.num_rows, 1000)]
        if context.attemptNumber() == 0:
            yield from rows[: len(rows) // 2]
            # More than the sink gathers at once, so that some of it is stored by now.
            raise RuntimeError("the machine is gone")
        yield from reversed(rows)

    rows = numbered(spark, 160_000, 2).mapInArrow(shuffled, "body string, key string")
    rows.write.format("raftmq").options(topic=topic, url=nodes.url).mode("append").save()
    assert stored(mq, topic) == bodies(160_000)


def test_named_write_is_done_once_however_often_it_is_run(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str
) -> None:
    for compression in ("zstd", "lz4", "none"):
        writer = numbered(spark, 1000).write.format("raftmq").options(topic=topic, url=nodes.url)
        writer.options(writeId="import-1", partitions="2", compression=compression)
        writer.mode("append").save()
    for rows, why in ((numbered(spark, 1000, 3), "part 3"), (numbered(spark, 1000, 1), "says 2")):
        writer = rows.write.format("raftmq").options(topic=topic, url=nodes.url)
        writer.options(writeId=f"cut-{why}", partitions="2").mode("append")
        with pytest.raises(PySparkException) as failed:
            writer.save()
        assert why in cause_of(failed.value).message
    with pytest.raises(PySparkException) as failed:
        numbered(spark, 1000, 3).write.format("raftmq").options(
            topic=topic, url=nodes.url, writeId="import-1", partitions="3"
        ).mode("append").save()
    assert "begun in 2 parts, and comes in 3 now" in cause_of(failed.value).message
    assert len(set(stored(mq, topic))) == 1000


@pytest.mark.parametrize(
    ("columns", "mode", "why"),
    [
        (["id as body"], "append", "column body is bigint"),
        (["'x' as body", "id"], "append", "no column 'id'"),
        (["'x' as body"], "overwrite", "cannot be overwritten"),
        (["if(id = 7, null, 'x') as body"], "append", "row 7 of partition 0 cannot be sent: its"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    columns: list[str],
    mode: str,
    why: str,
) -> None:
    rows = spark.range(0, 10, 1, 1).selectExpr(*columns)
    write = rows.write.format("raftmq").options(topic=topic, url=nodes.url).mode(mode)
    with pytest.raises(PySparkException) as failed:
        write.save()
    cause = cause_of(failed.value)
    assert why in cause.message
    assert "Spark's output" not in cause.fix
    assert stored(mq, topic) == []


def run_stream(rows: "DataFrame", nodes: Nodes, topic: str, checkpoint: str) -> None:
    """All that there is, in micro-batches."""
    writer = rows.writeStream.format("raftmq").options(topic=topic, url=nodes.url)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(100)
    assert not query.isActive


def test_stream_whose_last_commit_is_lost_stores_nothing_twice(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    tmp_path: Path,
    checkpoint: str,
) -> None:
    source = tmp_path / "in"
    for part in range(3):
        numbered(spark, 900).where(f"int(body) % 3 = {part}").coalesce(1).write.json(
            str(source / f"p{part}")
        )
    files = spark.readStream.schema("body string, key string").option("maxFilesPerTrigger", 1)
    rows = files.json(f"{source}/*")
    run_stream(rows, nodes, topic, checkpoint)
    assert stored(mq, topic) == bodies(900)
    commits = Path(checkpoint) / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    assert last >= 2
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    # The shuffle gives each partition's rows in an order that may differ.
    run_stream(rows, nodes, topic, checkpoint)
    assert (commits / str(last)).exists()
    assert stored(mq, topic) == bodies(900)
