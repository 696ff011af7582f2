"""Order by key: a sender's messages for a key are delivered in the order of sends, one at a time.

The rules are those of `raftmq.checkers.key_order`; the row's key is the ordering key.

- `order-inversion`: the first deliveries of one sender's messages for a key come in the order of
  their sends.
- `order-overtake`: while a message is out for delivery and not acked, no later one of its sender
  and key is delivered; of messages that were acked in the end.
"""

from typing import TYPE_CHECKING

from raftmq.checkers.key_order import NO_KEYS

from .bag import doubt_of
from .messages import Case
from .rules import KEY_ORDER, Found, finding, undecided

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = ("order-inversion", "order-overtake")


def check_key_order(case: Case) -> Found:
    """Judge sends, polls and acks by key."""
    from pyspark.sql import functions as f

    every = case.keep(case.messages("send", "got", "acking", "acked"))
    sends = every.where("kind = 'send'")
    why, _ = doubt_of(case, sends)
    if why:
        return undecided(KEY_ORDER, why)
    lives = case.keep(_lives(every, has_acks=case.seen.has_acks))
    (figures,) = lives.agg(
        f.countDistinct("process", "queue").alias("keys and senders"),
        f.count("*").alias("messages"),
    ).collect()
    if not figures["messages"]:
        return undecided(KEY_ORDER, NO_KEYS)
    findings = _behind(lives, "order-inversion", "first.row").unionByName(
        _behind(lives, "order-overtake", "acking")
    )
    return Found(KEY_ORDER, findings, figures.asDict(), KINDS)


def _lives(every: "DataFrame", *, has_acks: bool) -> "DataFrame":
    """One row a message with a key that was delivered: its send, its first delivery, and the row
    where the first of its acks that were answered began."""
    from pyspark.sql import functions as f

    got = every.where("kind = 'got'").groupBy("value")
    first = got.agg(f.min(f.struct("row", "operation")).alias("first"))
    lives = every.where("kind = 'send' and queue is not null").join(first, "value")
    if not has_acks:
        return lives.withColumn("acking", f.lit(None).cast("bigint"))
    acked = every.where("kind = 'acked'").groupBy("value")
    acks = acked.agg(f.min_by("operation", "row").alias("ack"))
    acking = every.where("kind = 'acking'").groupBy(f.col("operation").alias("ack"))
    begun = acks.join(acking.agg(f.min("row").alias("acking")), "ack")
    return lives.join(begun.select("value", "acking"), "value", "left")


def _behind(lives: "DataFrame", kind: str, earlier: str) -> "DataFrame":
    """Messages first delivered before the latest `earlier` of those sent before them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_key = Window.partitionBy("process", "queue").orderBy("row")
    sent_before = of_key.rowsBetween(Window.unboundedPreceding, -1)
    moment = f.when(
        f.col(earlier).isNotNull(),
        f.struct(f.col(earlier).alias("at"), "value", "operation", f.col("first.operation")
                 .alias("delivery")),
    )  # fmt: skip
    pairs = lives.withColumn("before", f.max(moment).over(sent_before))
    why = "delivered after it" if kind == "order-inversion" else "acked after it was delivered"
    return finding(
        pairs.where("before.at > first.row"),
        kind,
        values=f.array("before.value", "value"),
        operations=f.array("before.operation", "before.delivery", "operation", "first.operation"),
        fact=f.format_string(
            "%s of key %s was sent before %s and " + why, "before.value", "queue", "value"
        ),
    )
