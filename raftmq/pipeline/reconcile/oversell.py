"""Keys of which more was sold than there was: running sums by key against a stock.

The moves of a key are added up in their order; the first one that brings the sum above the stock is
shown. A key that the stock does not have has a stock of 0. A negative amount gives back.

Only keys can be oversold whose positive amounts together are above the stock: these few are sorted,
the others are only summed.
"""

from typing import TYPE_CHECKING

from .compare import SUM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = (
    "key string, stock decimal(37,9), sold decimal(37,9), sold_in_the_end decimal(37,9), "
    "place string, at string"
)
"""The schema of oversold keys: `sold` is the sum at the move that brought it above `stock`; the
move stands at `place` (null for tables) and came `at`."""


def oversold(moves: "DataFrame", stock: "DataFrame") -> "DataFrame":
    """The keys of which more was sold than there was, one row each, of `SCHEMA`.

    Args:
        moves: `key`, `amount`, `at`, `place`.
        stock: `key`, `amount`; of several rows of a key the sum counts.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    have = stock.groupBy("key").agg(f.sum("amount").cast(SUM).alias("stock"))
    sold = moves.where("key is not null and amount > 0").groupBy("key")
    taken = sold.agg(f.sum("amount").alias("taken")).join(have, "key", "left")
    zero = f.lit(0).cast(SUM)
    suspects = taken.withColumn("stock", f.coalesce("stock", zero)).where("taken > stock")
    in_order = Window.partitionBy("key").orderBy("at", "place")
    upto = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sums = moves.where("amount is not null").join(suspects.select("key", "stock"), "key")
    sums = sums.withColumn("sold", f.sum("amount").over(upto).cast(SUM))
    whole = f.sum("amount").over(Window.partitionBy("key")).cast(SUM)
    above = sums.withColumn("sold_in_the_end", whole).where("sold > stock")
    first = f.row_number().over(in_order)
    found = above.withColumn("number", first).where("number = 1")
    at = f.col("at").cast("string").alias("at")
    return found.select("key", "stock", "sold", "sold_in_the_end", "place", at)
