"""Total queue: all sent messages are delivered, and no others, in any order.

The rules are those of `raftmq.checkers.total_queue`, and so are the names: `lost-prefix`,
`lost-middle`, `lost-postfix`, `unexpected`, `aborted-read`, `duplicated`, `redelivered-after-ack`.

If values are numbers, the sets of messages are bitmaps already (`survey`), and a few operations on
them here find lost, unexpected and aborted messages. A second reading looks only for the rows of
these messages; of duplicates, which the bitmaps count, only for those in the first buckets that
hold some, as examples. If values are texts, the same rules are joins by value.

Left out: what chaos shows beside an anomaly (the neighbours of a loss). Consumer groups judged each
by itself: polls that name a group are one bag here.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raftmq.checkers import traffic
from raftmq.checkers.total_queue import NOT_DRAINED

from .bitmaps import Bitmap
from .history import FAIL, INVOKE, OK, POLL, SEND, Recorded, Rows, scan
from .messages import Case
from .rules import SCHEMA, TOTAL_QUEUE, Found, finding, undecided
from .survey import Values, numbers_of, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = (
    "lost-prefix",
    "lost-middle",
    "lost-postfix",
    "unexpected",
    "aborted-read",
    "duplicated",
    "redelivered-after-ack",
)
EDGE_PARTS = 2
"""Row groups a core, at the begin and at the end, that are looked at before all others."""


def check_bag(case: Case) -> Found:
    """Judge sends and polls as one bag of messages."""
    found = values(case.spark, case.recorded, case.seen.outcomes)
    return _by_joins(case) if found is None else _by_bitmaps(case, found)


def doubt(sent: int, acknowledged: int, answered_polls: int, distinct: int) -> str:
    """The reason why a history's messages cannot be judged; empty: they can."""
    return traffic.doubt_of(
        is_sent=sent > 0,
        is_acknowledged=acknowledged > 0,
        is_polled=answered_polls > 0,
        is_unique=distinct == sent,
    )


def doubt_of(case: Case, sends: "DataFrame") -> tuple[str, int]:
    """The reason why these sends cannot be judged, or ""; and how many were acknowledged."""
    from pyspark.sql import functions as f

    (row,) = sends.agg(
        f.count("*").alias("sent"),
        f.countDistinct("value").alias("distinct"),
        f.count_if(f.col("outcome") == OK).alias("acknowledged"),
    ).collect()
    polls = case.seen.rows_of(POLL, OK)
    return doubt(row.sent, row.acknowledged, polls, row.distinct), row.acknowledged


def _by_bitmaps(case: Case, found: Values) -> Found:
    sent, acknowledged, failed, delivered = (
        found.sent, found.acknowledged, found.failed, found.delivered,
    )  # fmt: skip
    polls = case.seen.rows_of(POLL, OK)
    why = doubt(sent.added, acknowledged.added, polls, len(sent))
    if why:
        return undecided(TOTAL_QUEUE, why)
    lost = acknowledged - delivered
    strange = (delivered - sent) | (delivered & failed)
    again = delivered.repeated()
    counts = {
        "attempts": len(sent),
        "acknowledged": len(acknowledged),
        "delivered": len(delivered & sent),
        "recovered": len((delivered & sent) - acknowledged - failed),
        "duplicated": int(again.sum()),
    }
    parts = []
    if len(lost) or len(strange):
        rows = case.keep(case.chosen("send", "got", values=found, chosen=lost | strange))
        parts += _strange(rows)
        if len(lost):
            sends = rows.where("kind = 'send'")
            losses = sends.where(f"outcome = {OK}").join(_got(rows), "value", "left_anti")
            parts.append(_parts(losses, _reach(case, delivered, losses)))
    if again.any():
        # As many buckets as it takes for the examples that are kept.
        enough = int(np.searchsorted(np.cumsum(again), case.rules.examples_max)) + 1
        doubled = delivered.buckets(np.flatnonzero(again[:enough]))
        parts.append(_duplicated(case.chosen("got", values=found, chosen=doubled)))
    if case.seen.has_acks:
        parts.append(_after_ack(case.messages("poll", "got", "acked")))
    return _found(case, parts, counts)


def _by_joins(case: Case) -> Found:
    from pyspark.sql import functions as f

    every = case.keep(case.messages("send", "poll", "got", "acked"))
    sends, got = every.where("kind = 'send'"), every.where("kind = 'got'")
    is_got = sends.join(got.select("value").distinct().withColumn("n", f.lit(1)), "value", "left")
    (row,) = is_got.agg(
        f.count("*").alias("attempts"),
        f.countDistinct("value").alias("distinct"),
        f.count_if(f.col("outcome") == OK).alias("acknowledged"),
        f.count("n").alias("delivered"),
        f.count_if(f.col("n").isNotNull() & ~f.col("outcome").isin(OK, FAIL)).alias("recovered"),
    ).collect()
    counts = row.asDict()
    distinct = counts.pop("distinct")
    why = doubt(counts["attempts"], counts["acknowledged"], case.seen.rows_of(POLL, OK), distinct)
    if why:
        return undecided(TOTAL_QUEUE, why)
    losses = sends.where(f"outcome = {OK}").join(got, "value", "left_anti")
    delivered = sends.join(got, "value", "left_semi")
    reach = delivered.groupBy("process").agg(f.min("row").alias("low"), f.max("row").alias("high"))
    parts = [*_strange(every), _parts(losses, reach), _duplicated(got)]
    if case.seen.has_acks:
        parts.append(_after_ack(every))
    return _found(case, parts, counts)


def _found(case: Case, parts: "list[DataFrame]", counts: dict[str, int]) -> Found:
    nothing = case.spark.createDataFrame([], SCHEMA)
    findings = reduce(lambda one, other: one.unionByName(other), parts, nothing)
    tolerated = set() if case.rules.is_exactly_once else {"duplicated"}
    doubts = {}
    if not case.rules.is_drained:
        tolerated.add("lost-postfix")
        doubts["lost-postfix"] = NOT_DRAINED
    return Found(TOTAL_QUEUE, findings, counts, KINDS, frozenset(tolerated), doubts)


def _got(rows: "DataFrame") -> "DataFrame":
    return rows.where("kind = 'got'")


def strange(rows: "DataFrame", kind: str) -> "DataFrame":
    """Deliveries of messages that were not sent (`unexpected`), or whose send failed
    (`aborted-read`)."""
    from pyspark.sql import functions as f

    sends = rows.where("kind = 'send'").select(
        "value", f.col("operation").alias("send"), f.col("outcome").alias("ended")
    )
    got = _got(rows)
    if kind == "unexpected":
        words = "process %d was delivered %s, which was never sent"
        fact = f.format_string(words, "process", "value")
        return finding(
            got.join(sends, "value", "left_anti"),
            kind,
            values=f.array("value"),
            operations=f.array("operation"),
            fact=fact,
        )
    return finding(
        got.join(sends.where(f"ended = {FAIL}"), "value"),
        kind,
        values=f.array("value"),
        operations=f.array("send", "operation"),
        fact=f.format_string("%s was delivered, and its send failed", "value"),
    )


def _strange(rows: "DataFrame") -> "list[DataFrame]":
    return [strange(rows, kind) for kind in ("unexpected", "aborted-read")]


def _parts(losses: "DataFrame", reach: "DataFrame") -> "DataFrame":
    """Losses, by their place among the delivered messages of the same sender."""
    from pyspark.sql import functions as f

    found = losses.join(f.broadcast(reach), "process", "left")
    kind = (
        f.when(f.col("row") > f.col("high"), "lost-postfix")
        .when(f.col("low").isNull(), "lost-postfix")
        .when(f.col("row") < f.col("low"), "lost-prefix")
        .otherwise("lost-middle")
    )
    fact = f.format_string("%s of process %d was acknowledged, never delivered", "value", "process")
    return finding(found, kind, values=f.array("value"), operations=f.array("operation"), fact=fact)


def _reach(case: Case, delivered: Bitmap, losses: "DataFrame") -> "DataFrame":
    """By sender: the first and the last row at which it began to send a delivered message."""
    parts = case.recorded.parts
    senders = losses.select("process").distinct()
    edge = case.spark.sparkContext.defaultParallelism * EDGE_PARTS
    if len(parts) > 2 * edge:
        # Most senders have both rows near the edges of the history, so the edges are read first.
        edges = replace(case.recorded, parts=parts[:edge] + parts[-edge:])
        reach = _reach_in(case, edges, delivered).persist()
        middle = f"low < {parts[edge].first_row} and high >= {parts[-edge].first_row}"
        if senders.join(reach.where(middle), "process", "left_anti").isEmpty():
            return case.keep(reach)
        reach.unpersist()
    return _reach_in(case, case.recorded, delivered)


def _reach_in(case: Case, recorded: Recorded, delivered: Bitmap) -> "DataFrame":
    from pyspark.sql import functions as f

    told = case.spark.sparkContext.broadcast(delivered)

    def kernel(batches: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            is_sent = (rows.function == SEND) & (rows.type == INVOKE)
            numbers = numbers_of(rows, is_sent, np.iinfo(np.int64).max)
            assert numbers is not None
            is_sent[is_sent] = told.value.has(numbers)
            process, first, place = np.unique(
                rows.process[is_sent], return_index=True, return_inverse=True
            )
            row = rows.row[is_sent]
            last = np.zeros(len(process), np.int64)
            np.maximum.at(last, place, row)
            yield pa.RecordBatch.from_pydict({"process": process, "low": row[first], "high": last})

    schema = "process bigint, low bigint, high bigint"
    found = scan(case.spark, recorded, kernel, schema, "process", "value")
    return found.groupBy("process").agg(f.min("low").alias("low"), f.max("high").alias("high"))


def _duplicated(got: "DataFrame") -> "DataFrame":
    """Each delivery of a message after its first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    by_value = Window.partitionBy("value").orderBy("row")
    found = got.withColumn("first", f.first("operation").over(by_value))
    found = found.withColumn("number", f.row_number().over(by_value)).where("number > 1")
    return finding(
        found,
        "duplicated",
        values=f.array("value"),
        operations=f.array("first", "operation"),
        fact=f.format_string("%s was delivered again", "value"),
    )


def _after_ack(rows: "DataFrame") -> "DataFrame":
    """Deliveries by a poll that began after an ack of the message had completed."""
    from pyspark.sql import functions as f

    acked = rows.where("kind = 'acked'")
    acks = acked.groupBy("value").agg(f.min(f.struct("row", "operation")).alias("ack"))
    # A delivery before the ack, as nearly all are, needs no look at its poll.
    late = _got(rows).join(acks, "value").where("row > ack.row")
    starts = rows.where("kind = 'poll'").groupBy("operation").agg(f.min("row").alias("start"))
    return finding(
        late.join(starts, "operation").where("start > ack.row"),
        "redelivered-after-ack",
        values=f.array("value"),
        operations=f.array("ack.operation", "operation"),
        fact=f.format_string("%s was acked, and a later poll brought it again", "value"),
    )
