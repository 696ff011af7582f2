"""The anomalies of a log that is written and read by offset.

The rules are those of `raftmq.checkers.log.anomalies`, and so are the names. The answers of sends
and polls show the log: which message stood at which offset of which queue. Rules that look at one
queue are run by these checkers (`queues`). A message may be sent to one queue and come from
another, so the rules that follow a message are joins by its value here.

Left out: `realtime-lag`, which has a bound that depends on the workload.
"""

from functools import reduce
from typing import TYPE_CHECKING

from raftmq.checkers.log.anomalies import NO_OFFSETS

from . import queues
from .bag import doubt_of, strange
from .history import OK
from .messages import Case
from .rules import LOG, Found, finding, undecided

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = ("unexpected", "aborted-read", "duplicate", "lost-write", "unseen", *queues.KINDS)


def check_log(case: Case) -> Found:
    """Judge sends and polls as logs with offsets."""
    seen, rules = case.seen, case.rules
    every = case.keep(case.messages("send", "sent", "got", "assigned"))
    got = every.where("kind = 'got'")
    sends = case.keep(_sends(every))
    why, acknowledged = doubt_of(case, sends)
    if why or not seen.has_offsets:
        return undecided(LOG, why or NO_OFFSETS)
    placed = sends.where(f"outcome = {OK} and offset is not null")
    places = case.keep(_places(placed, got))
    unread = _unread(sends, got)
    deliveries = got.count()
    in_queues = queues.judge_queues(
        placed.unionByName(_read(every, has_assigns=seen.has_assigns), allowMissingColumns=True),
        rows=acknowledged + deliveries,
        is_send_contiguous=rules.is_send_contiguous,
    )
    parts = [
        strange(every, "unexpected"),
        strange(every, "aborted-read"),
        _duplicate(places),
        unread if rules.is_drained else unread.where("kind = 'lost-write'"),
        in_queues,
    ]
    counts = {
        "acknowledged": acknowledged,
        "deliveries": deliveries,
        "offset holes": _holes(places),
    }
    if not rules.is_drained:
        counts["unseen yet"] = unread.where("kind = 'unseen'").count()
    findings = reduce(lambda one, other: one.unionByName(other), parts)
    return Found(LOG, findings, counts, KINDS)


def _sends(every: "DataFrame") -> "DataFrame":
    """One row a message that was sent: with the offset and the row of its answer, if there is one,
    and the row at which its operation began."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    sends = every.where("kind = 'send'").drop("offset")
    of_operation = Window.partitionBy("operation")
    sends = sends.withColumn("start", f.min("row").over(of_operation))
    answers = every.where("kind = 'sent'").groupBy("value")
    last = answers.agg(f.max(f.struct("row", "offset")).alias("answer"))
    joined = sends.join(last, "value", "left")
    return joined.select(*sends.columns, "answer.offset", f.col("answer.row").alias("end"))


def _places(placed: "DataFrame", got: "DataFrame") -> "DataFrame":
    """Each message at each place it was seen at: `queue`, `offset`, `value`, an answer's `row`."""
    from pyspark.sql import functions as f

    columns = ["queue", "offset", "value", "process", "operation"]
    shown = placed.select(*columns, f.col("end").alias("row")).unionByName(
        got.where("offset is not null").select(*columns, "row")
    )
    first = f.min(f.struct("row", "process", "operation")).alias("shown")
    places = shown.groupBy("queue", "offset", "value").agg(first)
    return places.select("queue", "offset", "value", "shown.*")


def _holes(places: "DataFrame") -> int:
    """How many offsets below the highest and above the lowest of their queue were not seen."""
    from pyspark.sql import functions as f

    of_queue = places.where("queue is not null").groupBy("queue")
    spans = of_queue.agg(
        (f.max("offset") - f.min("offset") + 1 - f.countDistinct("offset")).alias("holes")
    )
    row = spans.agg(f.coalesce(f.sum("holes"), f.lit(0)).alias("holes")).first()
    assert row is not None
    return int(row["holes"])


def _read(every: "DataFrame", *, has_assigns: bool) -> "DataFrame":
    """The deliveries with the stretch (`epoch`) of their process's reading: `assign` begins one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not has_assigns:
        return every.where("kind = 'got'").withColumn("epoch", f.lit(0))
    in_order = Window.partitionBy("process").orderBy("row")
    rows = every.where("kind in ('got', 'assigned')")
    is_assigned = f.when(f.col("kind") == "assigned", 1).otherwise(0)
    return rows.withColumn("epoch", f.sum(is_assigned).over(in_order)).where("kind = 'got'")


def _duplicate(places: "DataFrame") -> "DataFrame":
    """One message, two offsets."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_value = Window.partitionBy("value").orderBy("queue", "offset")
    before = f.lag(f.struct("value", "operation", "queue", "offset")).over(of_value)
    pairs = places.withColumn("before", before).where("before is not null")
    fact = f.format_string(
        "%s stands at %s/%d and at %s/%d",
        "value",
        f.coalesce("before.queue", f.lit("-")),
        "before.offset",
        _queue(),
        "offset",
    )
    return finding(
        pairs,
        "duplicate",
        values=f.array("before.value", "value"),
        operations=f.array("before.operation", "operation"),
        fact=fact,
    )


def _queue() -> "Column":
    from pyspark.sql import functions as f

    return f.coalesce("queue", f.lit("-"))


def _unread(sends: "DataFrame", got: "DataFrame") -> "DataFrame":
    """Acknowledged and never read: lost if that offset or a later one was read, else unseen."""
    from pyspark.sql import functions as f

    bounds = got.groupBy(f.col("queue").alias("of")).agg(f.max("offset").alias("bound"))
    missing = sends.where(f"outcome = {OK}").join(got, "value", "left_anti")
    missing = missing.join(f.broadcast(bounds), f.col("queue").eqNullSafe(f.col("of")), "left")
    is_below = f.coalesce(f.col("offset") <= f.col("bound"), f.lit(False))
    place = f.concat_ws("/", _queue(), f.col("offset").cast("string"))
    fact = f.when(
        is_below,
        f.format_string(
            "%s was acknowledged at %s, offset %d was read, it never was", "value", place, "bound"
        ),
    ).otherwise(
        f.format_string("%s was acknowledged and no reader came as far as its offset", "value")
    )
    return finding(
        missing,
        f.when(is_below, "lost-write").otherwise("unseen"),
        values=f.array("value"),
        operations=f.array("operation"),
        fact=fact,
    )
