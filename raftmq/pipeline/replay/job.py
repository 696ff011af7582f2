"""The job that replays: a stream from the archive into the sink.

Each message keeps its key, tag, body and properties, which are text, as the archive has them. The
replay adds these properties, which replace those of an earlier replay:

| property | meaning |
|---|---|
| orig_topic, orig_queue, orig_offset | which message it was |
| orig_timestamp | when the leader stored that, milliseconds since 1970 |
| replay_id | which replay sent it |

Queue q goes to queue q modulo the target's number of queues, in order; so all messages of a key,
which are in one queue, stay in one queue.

A replay that was killed goes on at the next start: Spark keeps the batches, and the sink knows
which rows of a batch are stored already (`raftmq.pipeline.sink`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline import durable
from raftmq.pipeline.archive.checkpoint import committed
from raftmq.pipeline.archive.manifest import now

from .plan import CHECKPOINT, Plan, Planned, begun, folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 1
"""Seconds between two looks at the progress."""
PACED_MILLISECONDS = 250
"""Time between two looks at the clock, of a replay with a speed."""

ROWS_MAX = 200_000
"""Messages of a batch, unless told otherwise."""

_ADDED = {
    "orig_topic": "topic",
    "orig_queue": "cast(queue as string)",
    "orig_offset": "cast(offset as string)",
    "orig_timestamp": "cast(unix_millis(timestamp) as string)",
}


class Progress(NamedTuple):
    """A batch is stored."""

    batch: int
    """Spark's number of it."""
    rows: int
    """Messages that were read for it, before `where`."""
    left: int
    """Messages that are still to be read."""


def run(
    spark: "SparkSession",
    archive: Path,
    planned: Planned,
    *,
    url: str,
    speed: float = 0,
    rows_max: int = ROWS_MAX,
) -> Iterator[Progress]:
    """Replay, and yield each batch once it is stored; a replay that is done ends at once.

    Args:
        spark: a session; its workers must see the archive's folder.
        archive: its folder.
        planned: the plan; a new one is made durable first.
        url: the cluster that gets the messages.
        speed: 1 as they were recorded, 2 twice as fast, …; 0: as fast as they can be sent.
        rows_max: messages of a batch at most.

    Raises:
        PipelineError: another driver runs this replay.
        StreamingQueryException: the query failed; `cause_of` tells why.
    """
    plan = planned.plan
    with begun(archive, plan) as folder:
        if (folder / "done.json").exists():
            return
        # A kill between the last batch and `done.json` has left nothing to read.
        if left(plan, committed(folder / CHECKPOINT)):
            rows = _rows(spark, archive, plan, speed=speed, rows_max=rows_max)
            query = _start(shaped(rows, plan), folder, plan, url=url, is_paced=speed > 0)
            try:
                yield from _followed(query, plan)
            finally:
                query.stop()
        durable.create(folder / "done.json", json.dumps({"ended": now()}).encode())


def shaped(frame: "DataFrame", plan: Plan) -> "DataFrame":
    """Rows of the archive as the sink takes them, without those that `where` leaves out."""
    from pyspark.sql import functions as sql

    if plan.where is not None:
        frame = frame.where(plan.where)
    names = ", ".join(f"'{name}'" for name in (*_ADDED, "replay_id"))
    kept = sql.expr(f"map_filter(props, (name, value) -> name NOT IN ({names}))")
    pairs = [part for name, of in _ADDED.items() for part in (sql.lit(name), sql.expr(of))]
    added = sql.create_map(*pairs, sql.lit("replay_id"), sql.lit(plan.id))
    return frame.select(
        "key",
        "tag",
        "body",
        sql.map_concat(kept, added).alias("props"),
        (sql.col("queue") % plan.queues).alias("queue"),
    )


def left(plan: Plan, ends: dict[str, int] | None) -> int:
    """Messages that are still to be read.

    Args:
        plan: of the replay.
        ends: queue → the offset after the last one that is stored; None: nothing is.
    """
    if ends is None:
        return plan.rows
    return sum(part.end - ends[str(part.queue)] for part in plan.ranges)


def _rows(
    spark: "SparkSession", archive: Path, plan: Plan, *, speed: float, rows_max: int
) -> "DataFrame":
    from .source import NAME, ReplaySource

    spark.dataSource.register(ReplaySource)
    options = {
        "archive": str(archive.absolute()),
        "replay": str(folder_of(archive, plan.id).absolute()),
        "speed": str(speed),
        "rowsMax": str(rows_max),
    }
    return spark.readStream.format(NAME).options(**options).load()


def _start(
    frame: "DataFrame", folder: Path, plan: Plan, *, url: str, is_paced: bool
) -> "StreamingQuery":
    writer = (
        frame.writeStream.format("raftmq")
        .queryName(f"replay-{plan.id}")
        .option("url", url)
        .option("topic", plan.into)
        .option("checkpointLocation", str((folder / CHECKPOINT).absolute()))
    )
    if is_paced:
        writer = writer.trigger(processingTime=f"{PACED_MILLISECONDS} milliseconds")
    return writer.start()


def _followed(query: "StreamingQuery", plan: Plan) -> Iterator[Progress]:
    """Each batch, until all queues have come to their ends."""
    told, rest = -1, plan.rows
    while rest:
        query.awaitTermination(LOOK_SECONDS)
        for progress in query.recentProgress:
            if progress["batchId"] > told and progress["numInputRows"]:
                told = progress["batchId"]
                rest = left(plan, json.loads(progress["sources"][0]["endOffset"]))
                yield Progress(told, progress["numInputRows"], rest)
