"""Differences between two sides, and oversold items, on tables made by hand and by chance."""

import random
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline.reconcile import compare, oversold
from raftmq.pipeline.reconcile.compare import by_join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "key string, amount decimal(38,9)"
Rows = list[tuple[str | None, Decimal | None]]


def side(spark: "SparkSession", rows: Rows) -> "DataFrame":
    return spark.createDataFrame(rows, ROWS)


def money(text: str) -> Decimal:
    return Decimal(text)


def found(differences: "DataFrame | None") -> dict[str, tuple[str, Decimal]]:
    assert differences is not None
    return {row.key: (row.kind, row.difference) for row in differences.collect()}


def by_hand(left: Rows, right: Rows) -> dict[str, Decimal]:
    """The keys that differ: in Python."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    keys: list[set[str]] = [set(), set()]
    for place, rows in enumerate((left, right)):
        for key, amount in rows:
            assert key is not None
            assert amount is not None
            keys[place].add(key)
            sums[key] += amount if place == 0 else -amount
    return {key: sum_ for key, sum_ in sums.items() if sum_ or key in keys[0] ^ keys[1]}


def test_kinds_of_differences(spark: "SparkSession") -> None:
    left: Rows = [
        ("same", money("10.5")), ("split", money("3")), ("left", money("0")),
        ("more", money("7")), ("twice", money("4")), ("twice", money("4")), (None, money("1")),
    ]  # fmt: skip
    right: Rows = [
        ("same", money("10.50")), ("split", money("1")), ("split", money("2")),
        ("right", money("2")), ("more", money("7.000000001")), ("twice", money("4")),
        ("unread", None),
    ]  # fmt: skip
    compared = compare(side(spark, left), side(spark, right))
    assert found(compared.differences) == {
        "left": ("left_only", 0),
        "right": ("right_only", -2),
        "more": ("amount", money("-0.000000001")),
        "twice": ("duplicate", 4),
    }
    assert (compared.left_rows, compared.right_rows) == (6, 6)
    assert (compared.left_unreadable, compared.right_unreadable) == (1, 1)


def test_sides_with_the_same_rows_are_not_joined(spark: "SparkSession") -> None:
    rng = random.Random(1)
    rows: Rows = [(str(rng.randrange(50)), Decimal(rng.randrange(9))) for _ in range(300)]
    shuffled = rng.sample(rows, len(rows))
    assert compare(side(spark, rows), side(spark, shuffled)).differences is None
    # A row that is there twice does not cancel out.
    doubled = compare(side(spark, rows), side(spark, [*rows, rows[0], rows[0]]))
    assert doubled.buckets == 1


@pytest.mark.parametrize("seed", range(2))
def test_differing_buckets_give_what_the_whole_join_gives(spark: "SparkSession", seed: int) -> None:
    rng = random.Random(seed)
    left: Rows = [(f"k{rng.randrange(200)}", Decimal(rng.randrange(-3, 9))) for _ in range(400)]
    right = [row for row in rng.sample(left, len(left)) if rng.random() > 0.02]
    right += [(f"k{rng.randrange(220)}", Decimal(rng.randrange(-3, 9))) for _ in range(5)]
    whole = found(by_join(side(spark, left), side(spark, right)))
    assert found(compare(side(spark, left), side(spark, right)).differences) == whole
    assert {key: difference for key, (_, difference) in whole.items()} == by_hand(left, right)
    assert len(whole) > 3


def test_oversold_is_what_a_running_sum_says(spark: "SparkSession") -> None:
    moves = [
        ("book", "3", 1), ("book", "-2", 2), ("book", "4", 3), ("book", "-1", 4),
        ("pen", "2", 1), ("pen", "-2", 2), ("pen", "2", 3),
        ("ghost", "1", 9), ("ghost", "1", 12), ("cup", "5", 1),
    ]  # fmt: skip
    rows = [(key, Decimal(amount), at, f"orders/0/{at}") for key, amount, at in moves]
    table = spark.createDataFrame(rows, f"{ROWS}, at int, place string")
    stock = side(spark, [("book", money("2")), ("book", money("2")), ("pen", money("2")),
                         ("cup", money("5")), ("idle", money("1"))])  # fmt: skip
    assert {tuple(row) for row in oversold(table, stock).collect()} == {
        ("book", 4, 5, 4, "orders/0/3", "3"),
        ("ghost", 0, 1, 2, "orders/0/9", "9"),
    }
