"""Two sides compared by key: digests of buckets first, then only the buckets that differ.

A key belongs to a *bucket* by its hash. Of each bucket and side a digest is made in one pass and
without moving a row: the number of rows, and sums over two halves of a 64-bit hash of (key,
amount). If digests are equal, so are the rows, but for a chance of about 2^-64 a bucket, whatever
their order. Only rows of other buckets are grouped by key and joined.

A key's rows agree if the sums of their amounts are equal. If not, the difference is of a kind:

| kind | when |
|---|---|
| left_only, right_only | the other side has no row of this key |
| duplicate | one side has the same rows more often: sums are as the numbers of rows |
| amount | anything else |

Invariants:
- The order of rows, and how Spark cuts the sides up, make no difference.
- Equal sides cost no shuffle of rows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = 4096
"""Buckets of a side; the rows of a bucket are compared if one key in it differs."""
SUM = "decimal(37,9)"
"""The type of sums: one digit less than Spark has, or their difference would lose its last one."""
SCHEMA = (
    "key string, kind string, left_rows bigint, left_amount decimal(37,9), right_rows bigint, "
    "right_amount decimal(37,9), difference decimal(38,9)"
)
"""The schema of differences; `difference` is left less right, with 0 for a side without rows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two sides differ."""

    left_rows: int
    right_rows: int
    left_unreadable: int
    """Rows without a key or an amount."""
    right_unreadable: int
    buckets: int
    """Buckets whose digests differ, of `BUCKETS`."""
    differences: "DataFrame | None"
    """Rows of `SCHEMA`; None: the digests are equal, so there is none."""


def compare(left: "DataFrame", right: "DataFrame") -> Comparison:
    """Compare two sides with `key` and `amount`: runs one Spark job, and prepares another one."""
    from pyspark.sql import functions as f

    digests = [_digests(side).collect() for side in (left, right)]
    unread = [sum(row.rows for row in found if row.bucket is None) for found in digests]
    by_bucket = [{row.bucket: row for row in found if row.bucket is not None} for found in digests]
    left_rows, right_rows = (sum(row.rows for row in found.values()) for found in by_bucket)
    buckets = by_bucket[0].keys() | by_bucket[1].keys()
    differing = sorted(one for one in buckets if by_bucket[0].get(one) != by_bucket[1].get(one))
    differences = None
    if differing:
        chosen = f.array_contains(f.lit(differing), _bucket())
        if len(differing) == BUCKETS:
            chosen = f.lit(True)
        differences = by_join(left.where(chosen), right.where(chosen))
    return Comparison(left_rows, right_rows, unread[0], unread[1], len(differing), differences)


def _bucket() -> "Column":
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64("key"), f.lit(BUCKETS)).cast("int")


def _digests(side: "DataFrame") -> "DataFrame":
    """The digest of each bucket, and of the unreadable rows, whose bucket is null."""
    from pyspark.sql import functions as f

    is_readable = f.col("key").isNotNull() & f.col("amount").isNotNull()
    hashed = side.select(
        f.when(is_readable, _bucket()).alias("bucket"),
        f.xxhash64("amount", "key").alias("hash"),
    )
    return hashed.groupBy("bucket").agg(
        f.count("*").alias("rows"),
        # Sums, and not exclusive ors, in which a pair of equal rows would cancel out.
        f.sum(f.col("hash").bitwiseAND(0xFFFFFFFF)).alias("low"),
        f.sum(f.shiftrightunsigned("hash", 32)).alias("high"),
    )


def by_join(left: "DataFrame", right: "DataFrame") -> "DataFrame":
    """All differences, of `SCHEMA`, by grouping both sides and joining them."""
    from pyspark.sql import functions as f

    joined = _by_key(left, "left").join(_by_key(right, "right"), "key", "full_outer")
    zero = f.lit(0).cast(SUM)
    difference = f.coalesce("left_amount", zero) - f.coalesce("right_amount", zero)
    found = joined.withColumn("difference", difference)
    of_left, of_right = f.col("left_rows"), f.col("right_rows")
    # left_amount / left_rows = right_amount / right_rows, without a division.
    is_same = f.try_multiply("left_amount", of_right) == f.try_multiply("right_amount", of_left)
    kind = (
        f.when(of_right.isNull(), "left_only")
        .when(of_left.isNull(), "right_only")
        .when(is_same & (of_left != of_right), "duplicate")
        .otherwise("amount")
    )
    is_wrong = of_left.isNull() | of_right.isNull() | (f.col("difference") != zero)
    columns = ("left_rows", "left_amount", "right_rows", "right_amount", "difference")
    return found.where(is_wrong).select("key", kind.alias("kind"), *columns)


def _by_key(side: "DataFrame", name: str) -> "DataFrame":
    from pyspark.sql import functions as f

    readable = side.where("key is not null and amount is not null")
    return readable.groupBy("key").agg(
        f.count("*").alias(f"{name}_rows"),
        f.sum("amount").cast(SUM).alias(f"{name}_amount"),
    )
