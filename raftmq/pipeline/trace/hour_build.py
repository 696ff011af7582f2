"""Timelines and quantiles of hours, from all events about their messages.

The messages of an hour are cut into blocks of `BLOCK` offsets a queue; the events about a block are
one group of Spark's, and `life.timelines` makes its rows.

Invariants:
- An hour is made from its events alone, all of them: building it again gives the same rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.pipeline.source.events import DDL

from .files import HourFiles
from .folder import EVENTS, QUANTILES, TIMELINES, State, built, files
from .timelines import TIMELINE, timelines

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BLOCK = 65_536
"""Messages of a queue that are made into timelines at once; no timeline is about more."""

_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in TIMELINE.items())
_BLOCKS = "block_topic bigint, block_queue int, low bigint, high bigint"
_NEEDED = (
    "index", "step", "timestamp", "what", "topic", "topic_id", "queue", "offset", "count",
    "group", "attachment", "consumer", "attempt", "until",
)  # fmt: skip


def build(spark: "SparkSession", folder: Path, state: State, hours: list[str]) -> State:
    """Build these hours; returns the next state. The files count once that state is saved."""
    from pyspark.sql.functions import broadcast, col

    paths = files(folder, EVENTS, state, since=min(hours))
    blocks = [block for hour in hours for block in blocks_of(state, hour)]
    if paths and blocks:
        events = spark.read.schema(DDL).parquet(*paths).select(*(col(f"`{n}`") for n in _NEEDED))
        wanted = broadcast(spark.createDataFrame(blocks, _BLOCKS))
        is_about = (
            (col("topic_id") == col("block_topic"))
            & (col("queue") == col("block_queue"))
            & (col("offset") < col("high"))
            & (col("count").isNull() | (col("offset") + col("count") > col("low")))
        )
        grouped = events.join(wanted, is_about).groupBy("topic_id", "queue", "low")
        lives = grouped.applyInArrow(_timelines, _SCHEMA)
        _write(lives, folder / TIMELINES, state.runs, "stored")
    after = built(state, hours)
    made = [path for path in files(folder, TIMELINES, after) if f"r{state.runs:05}-" in path]
    if made:
        lives = spark.read.schema(_SCHEMA).parquet(*made)
        _write(quantiles_of(lives), folder / QUANTILES, state.runs, "minute")
    return after


def blocks_of(state: State, hour: str) -> Iterator[tuple[int, int, int, int]]:
    """The messages of an hour in blocks: topic's id, queue, first, after the last."""
    for place, (low, high) in sorted(state.hours[hour].ranges.items()):
        topic_id, queue = map(int, place.split("/"))
        for first in range(low, high, BLOCK):
            yield topic_id, queue, first, min(first + BLOCK, high)


def quantiles_of(lives: "DataFrame") -> "DataFrame":
    """Sketches a minute, topic and group, in which each message counts."""
    from pyspark.sql import functions as f

    # A sketch has no weights, so each message is added by itself; a run is at most a block.
    each = lives.select(
        f.date_trunc("minute", "stored").alias("minute"),
        "topic",
        "group",
        "wait_ms",
        "service_ms",
        f.explode(f.sequence(f.lit(1), f.col("count"))).alias("n"),
    )
    return each.groupBy("minute", "topic", "group").agg(
        f.count("n").alias("messages"),
        f.kll_sketch_agg_bigint("wait_ms").alias("waits"),
        f.kll_sketch_agg_bigint("service_ms").alias("services"),
    )


def _timelines(table: "pa.Table") -> "pa.Table":
    return timelines(table, table["low"][0].as_py(), table["high"][0].as_py())


def _write(rows: "DataFrame", root: Path, run: int, column: str) -> None:
    """Write rows into files by the hour of a column."""

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with HourFiles(root, run=run, part=context.partitionId(), column=column) as files:
            for batch in batches:
                files.write(batch)
        yield pa.RecordBatch.from_pydict({"done": [True]})

    rows.mapInArrow(write, "done boolean").collect()
