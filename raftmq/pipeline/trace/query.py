"""Questions to a trace: the story of a message, the slowest, quantiles.

All but the quantiles come from the files without Spark.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.client.admin.events import SWEEPING
from raftmq.pipeline.errors import PipelineError

from .files import HOUR_FORMAT
from .folder import EVENTS, QUANTILES, TIMELINES, State, files, load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MEASURES = {"wait": "wait_ms", "service": "service_ms", "total": "total_ms"}
"""Measure → its column: until first handed out, from last handed out to acked, until ended."""
_STORY = ["index", "step", "timestamp", "what", "group", "attempt", "consumer", "until"]


class Slow(NamedTuple):
    """One slow run of messages."""

    timeline: dict[str, Any]
    """The row of the run in the table of timelines; see `raftmq.pipeline.trace`."""
    story: list[dict[str, Any]]
    """The events of its first message in this group, and where it was stored."""


def show(folder: Path, topic: str, queue: int, offset: int, *, since: str = "") -> list[Any]:
    """The story of a message, in the order of the log: rows of the source's table `events`.

    Events about whole stretches are among the rows, whether they concerned the message or not.

    Args:
        folder: the trace's.
        topic: the topic's name, as it was when its events were read.
        queue: the queue.
        offset: the message.
        since: from this hour on (`2026-11-22T10`), if that is known.

    Raises:
        PipelineError: there is no trace there.
    """
    import pyarrow.compute as pc

    is_it = (
        (pc.field("topic") == topic)
        & (pc.field("queue") == queue)
        & (pc.field("offset") <= offset)
        & (pc.field("count").is_null() | (pc.field("offset") + pc.field("count") > offset))
    )
    rows = _read(folder, EVENTS, _STORY, is_it, since)
    if rows is None:
        return []
    found = rows.sort_by([("index", "ascending"), ("step", "ascending")]).to_pylist()
    born = [row["index"] for row in found if row["what"] == "stored"]
    return [row for row in found if not born or row["index"] >= born[0]]


def slowest(
    folder: Path,
    *,
    by: str = "total",
    topic: str | None = None,
    group: str | None = None,
    limit: int = 10,
) -> list[Slow]:
    """The runs of messages that took longest, the slowest first.

    Args:
        folder: the trace's.
        by: one of `MEASURES`; runs without it (`total` of a run that is not over) are left out.
        topic: only of this topic.
        group: only of this consumer group.
        limit: runs at most.

    Raises:
        PipelineError: there is no trace there.
    """
    import pyarrow.compute as pc

    column = MEASURES[by]
    wanted = pc.field(column).is_valid()
    if topic is not None:
        wanted &= pc.field("topic") == topic
    if group is not None:
        wanted &= pc.field("group") == group
    rows = _read(folder, TIMELINES, None, wanted, "")
    if rows is None:
        return []
    order = [(column, "descending"), ("topic", "ascending"), ("offset", "ascending")]
    found = rows.take(pc.select_k_unstable(rows, limit, order)).to_pylist()
    return [Slow(row, _story(folder, row)) for row in found]


def _story(folder: Path, row: dict[str, Any]) -> list[Any]:
    since = row["stored"].strftime(HOUR_FORMAT)
    events = show(folder, row["topic"], row["queue"], row["offset"], since=since)
    mine = (None, row["group"])
    return [each for each in events if each["group"] in mine and each["what"] not in SWEEPING]


def _read(
    folder: Path, table: str, columns: list[str] | None, wanted: Any, since: str
) -> "pa.Table | None":
    """Rows of a table; None if it has no file."""
    import pyarrow.dataset as ds

    paths = files(folder, table, _loaded(folder), since)
    if not paths:
        return None
    return ds.dataset(paths, format="parquet").to_table(columns=columns, filter=wanted)


def _loaded(folder: Path) -> State:
    """The durable state of a trace that was run."""
    state = load(folder)
    if not state.runs:
        fix = f"make one: raftmq pipeline trace run {folder}"
        raise PipelineError(f"{folder} holds no trace", fix)
    return state


def quantiles(
    spark: "SparkSession",
    folder: Path,
    *,
    at: tuple[float, ...] = (0.5, 0.9, 0.99),
    topic: str | None = None,
    group: str | None = None,
    unit: str | None = None,
) -> list[dict[str, Any]]:
    """How long messages waited and were worked on, by topic and group: sketches merged.

    Args:
        spark: the session that merges them.
        folder: the trace's.
        at: which quantiles, from 0 to 1.
        topic: only of this topic.
        group: only of this consumer group.
        unit: `minute`, `hour` or `day`: a row for each that messages were stored in; None: one
            row for all time.

    Returns:
        Rows of time (None without a unit), topic, group, messages, and lists of milliseconds,
        waits and services, as long as `at`; None where there is nothing.

    Raises:
        PipelineError: there is no trace there.
    """
    from pyspark.sql import functions as f

    paths = files(folder, QUANTILES, _loaded(folder))
    if not paths:
        return []
    rows = spark.read.parquet(*paths)
    if topic is not None:
        rows = rows.where(f.col("topic") == topic)
    if group is not None:
        rows = rows.where(f.col("group") == group)
    time = f.lit(None).cast("timestamp") if unit is None else f.date_trunc(unit, "minute")
    merged = rows.groupBy(time.alias("time"), "topic", "group").agg(
        f.sum("messages").alias("messages"),
        f.kll_merge_agg_bigint("waits").alias("waits"),
        f.kll_merge_agg_bigint("services").alias("services"),
    )
    ranks = f.array(*(f.lit(rank) for rank in at))

    def of(name: str) -> Any:
        is_any = f.kll_sketch_get_n_bigint(name) > 0
        return f.when(is_any, f.kll_sketch_get_quantile_bigint(name, ranks)).alias(name)

    found = merged.select("time", "topic", "group", "messages", of("waits"), of("services"))
    return [row.asDict() for row in found.orderBy("time", "topic", "group").collect()]
