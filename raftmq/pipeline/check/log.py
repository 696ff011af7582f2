"""The anomalies of a log that is written and read by offset.

The rules are those of `raftmq.checkers.log.anomalies`, and so are the names. The answers of sends
and polls show the log: which message stood at which offset of which queue. Most rules are "sort,
then look at neighbours": a window over a queue, or over the operations of one process on one queue.

"The next message" is counted over the offsets that are known to hold one (the *rank*). A queue
whose known offsets have no holes needs no counting: there an offset is its own rank; so only queues
with holes are ranked.

Left out: `realtime-lag`, which has a bound that depends on the workload.
"""

from functools import reduce
from typing import TYPE_CHECKING

from raftmq.checkers.log.anomalies import NO_OFFSETS

from .bag import doubt_of, strange
from .history import OK
from .messages import Case
from .rules import LOG, Found, finding, undecided

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = (
    "unexpected",
    "aborted-read",
    "inconsistent-offset",
    "duplicate",
    "lost-write",
    "unseen",
    "poll-skip",
    "nonmonotonic-poll",
    "internal-poll-skip",
    "internal-nonmonotonic-poll",
    "nonmonotonic-send",
    "internal-nonmonotonic-send",
    "internal-send-skip",
    "realtime-send",
)


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
    ranks, holes = _ranks(places)
    unread = _unread(sends, got)
    parts = [
        strange(every, "unexpected"),
        strange(every, "aborted-read"),
        _inconsistent(places),
        _duplicate(places),
        unread if rules.is_drained else unread.where("kind = 'lost-write'"),
        _polls(every, ranks, has_assigns=seen.has_assigns),
        _send_order(placed, ranks, is_contiguous=rules.is_send_contiguous),
        _backdated(placed),
    ]
    counts = {"acknowledged": acknowledged, "deliveries": got.count(), "offset holes": holes}
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


def _ranks(places: "DataFrame") -> "tuple[DataFrame | None, int]":
    """Of queues with holes: the rank of each offset; and how many offsets were never seen."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    distinct = places.select("queue", "offset").distinct()
    of_queue = distinct.where("queue is not null").groupBy("queue")
    spans = of_queue.agg((f.max("offset") - f.min("offset") + 1 - f.count("*")).alias("holes"))
    holed = spans.where("holes > 0")
    (holes,) = holed.agg(f.coalesce(f.sum("holes"), f.lit(0))).first() or (0,)
    if not holes:
        return None, 0
    rank = f.row_number().over(Window.partitionBy("queue").orderBy("offset"))
    return distinct.join(holed, "queue", "left_semi").withColumn("rank", rank), holes


def _ranked(rows: "DataFrame", ranks: "DataFrame | None") -> "DataFrame":
    """The rows with the rank of their offset; only differences within a queue mean something."""
    from pyspark.sql import functions as f

    if ranks is None:
        return rows.withColumn("rank", f.col("offset"))
    joined = rows.join(ranks, ["queue", "offset"], "left")
    return joined.withColumn("rank", f.coalesce("rank", "offset"))


def _pair(kind: "str | Column", pairs: "DataFrame", fact: "Column") -> "DataFrame":
    """Findings of two neighbours: the row itself, and `before`."""
    from pyspark.sql import functions as f

    return finding(
        pairs,
        kind,
        values=f.array("before.value", "value"),
        operations=f.array("before.operation", "operation"),
        fact=fact,
    )


def _before(*columns: str) -> "Column":
    from pyspark.sql import functions as f

    return f.struct(*columns)


def _inconsistent(places: "DataFrame") -> "DataFrame":
    """One offset, two messages."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    at_place = Window.partitionBy("queue", "offset").orderBy("value")
    pairs = places.withColumn("before", f.lag(_before("value", "operation")).over(at_place))
    fact = f.format_string(
        "offset %d of %s held %s and %s", "offset", _queue(), "before.value", "value"
    )
    return _pair("inconsistent-offset", pairs.where("before is not null"), fact)


def _duplicate(places: "DataFrame") -> "DataFrame":
    """One message, two offsets."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_value = Window.partitionBy("value").orderBy("queue", "offset")
    before = f.lag(_before("value", "operation", "queue", "offset")).over(of_value)
    pairs = places.withColumn("before", before).where("before is not null")
    fact = f.format_string(
        "%s stands at %s/%d and at %s/%d",
        "value",
        f.coalesce("before.queue", f.lit("-")),
        "before.offset",
        _queue(),
        "offset",
    )
    return _pair("duplicate", pairs, fact)


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


def _polls(every: "DataFrame", ranks: "DataFrame | None", *, has_assigns: bool) -> "DataFrame":
    """Ranks of deliveries in a row: rising by one, or something was skipped or seen again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if has_assigns:
        # `assign` begins another stretch: the number of calls before a row names its stretch.
        in_order = Window.partitionBy("process").orderBy("row")
        rows = every.where("kind in ('got', 'assigned')")
        is_assigned = f.when(f.col("kind") == "assigned", 1).otherwise(0)
        rows = rows.withColumn("epoch", f.sum(is_assigned).over(in_order)).where("kind = 'got'")
    else:
        rows = every.where("kind = 'got'").withColumn("epoch", f.lit(0))
    rows = _ranked(rows.where("queue is not null and offset is not null"), ranks)
    reading = Window.partitionBy("process", "queue", "epoch").orderBy("row")
    before = f.lag(_before("value", "operation", "offset", "rank")).over(reading)
    pairs = rows.withColumn("before", before).where("rank - before.rank <> 1")
    is_inside = f.col("operation") == f.col("before.operation")
    is_skip = f.col("rank") > f.col("before.rank")
    kind = (
        f.when(is_inside & is_skip, "internal-poll-skip")
        .when(is_inside, "internal-nonmonotonic-poll")
        .when(is_skip, "poll-skip")
        .otherwise("nonmonotonic-poll")
    )
    fact = f.format_string(
        "process %d read %s/%d, then %s/%d",
        "process",
        "queue",
        "before.offset",
        "queue",
        "offset",
    )
    return _pair(kind, pairs, fact)


def _send_order(
    placed: "DataFrame", ranks: "DataFrame | None", *, is_contiguous: bool
) -> "DataFrame":
    """Offsets of one process's acknowledged sends rise, in the order in which they were called."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    sending = Window.partitionBy("process", "queue").orderBy("row")
    before = f.lag(_before("value", "operation", "offset", "rank")).over(sending)
    pairs = _ranked(placed, ranks).withColumn("before", before).where("before is not null")
    is_inside = f.col("operation") == f.col("before.operation")
    is_back = f.col("offset") <= f.col("before.offset")
    kind = f.when(is_back & is_inside, "internal-nonmonotonic-send").when(
        is_back, "nonmonotonic-send"
    )
    if is_contiguous:
        is_torn = is_inside & (f.col("rank") - f.col("before.rank") > 1)
        kind = kind.when(is_torn, "internal-send-skip")
    fact = f.format_string(
        "process %d sent %s to %s/%d and %s to %s/%d",
        "process",
        "before.value",
        _queue(),
        "before.offset",
        "value",
        _queue(),
        "offset",
    )
    return _pair(kind, pairs, fact).where("kind is not null")


def _backdated(placed: "DataFrame") -> "DataFrame":
    """Sends whose offset is not above all that were acknowledged before the send began."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # Each send has two moments on one line: its begin, which is compared with the offsets
    # acknowledged before it, and its end, which adds its own offset to them.
    told = placed.select("queue", f.col("end").alias("at"), f.struct("offset", "value", "operation")
                         .alias("told"))  # fmt: skip
    asked = placed.withColumn("at", f.col("start"))
    before = Window.partitionBy("queue").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    line = asked.unionByName(told, allowMissingColumns=True)
    line = line.withColumn("before", f.max("told").over(before))
    pairs = line.where("told is null and before.offset >= offset")
    fact = f.format_string(
        "%s was acknowledged at offset %d of %s before the send of %s began, which got offset %d",
        "before.value",
        "before.offset",
        _queue(),
        "value",
        "offset",
    )
    return _pair("realtime-send", pairs, fact)
