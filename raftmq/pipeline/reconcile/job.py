"""Reconcile two sides, and store the result.

| stored | what |
|---|---|
| `differences/*.parquet` | a row a key that differs: see `compare.SCHEMA` |
| `oversold/*.parquet` | with a stock, a row a key that was oversold: see `oversell.SCHEMA` |
| `verdict.json` | `agree`, counts, and both sides with the offsets that they were pinned at |

`verdict.json` is removed first and written last, once the tables are durable: the tables beside a
verdict are whole. A run keeps no state; a run that was killed is started again. The new run reads
the topics as they are by then, unless it is given the offsets of the earlier verdict.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftmq.pipeline import durable

from .compare import compare
from .oversell import oversold
from .sides import Side

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a reconciliation."""

    left: Side
    right: Side | None
    stock: Side | None
    counts: dict[str, int]
    """Rows of both sides, buckets that differ, and how many keys there are of each kind."""
    tables: "dict[str, DataFrame]" = field(default_factory=dict)
    """`differences` and `oversold`, as far as there are any; kept, so that they are made once."""

    @property
    def is_agreed(self) -> bool:
        """Nothing differs, nothing is oversold, and every row could be read."""
        return not any(self.counts[kind] for kind in KINDS if kind in self.counts)

    def as_json(self) -> dict[str, Any]:
        """As `verdict.json` holds it."""
        sides = {"left": self.left, "right": self.right, "stock": self.stock}
        return {
            "agree": self.is_agreed,
            "counts": self.counts,
            **{name: asdict(side) for name, side in sides.items() if side is not None},
        }


TABLES = ("differences", "oversold")
KINDS = (
    "left_only",
    "right_only",
    "amount",
    "duplicate",
    "oversold",
    "left_unreadable",
    "right_unreadable",
)
"""Counts that make the sides disagree."""


def reconcile(
    spark: "SparkSession",
    left: Side,
    right: Side | None,
    *,
    stock: Side | None = None,
    told: Callable[[str], None] = lambda step: None,
) -> Outcome:
    """Compare two sides, and the left one with a stock.

    Args:
        spark: the session that runs it.
        left: one side, pinned.
        right: the other one, pinned; None: only the stock is looked at.
        stock: what there was to sell by key; None: overselling is not looked for.
        told: called before each step with a description of the step, for people.

    Raises:
        PipelineError: a side cannot be read.
    """
    assert right is not None or stock is not None, "there is nothing to compare with"
    counts: dict[str, int] = {}
    tables = {}
    if right is not None:
        told(f"digests of {left.name} and {right.name}")
        found = compare(left.load(spark), right.load(spark))
        counts |= {
            "left_rows": found.left_rows,
            "right_rows": found.right_rows,
            "left_unreadable": found.left_unreadable,
            "right_unreadable": found.right_unreadable,
            "differing_buckets": found.buckets,
            **dict.fromkeys(KINDS[:4], 0),
        }
        if found.differences is not None:
            told(f"{found.buckets} buckets differ: their keys")
            tables["differences"] = found.differences.persist()
            by_kind = tables["differences"].groupBy("kind").count().collect()
            counts |= {row.kind: row["count"] for row in by_kind}
    if stock is not None:
        told(f"running sums of {left.name} against {stock.name}")
        tables["oversold"] = oversold(
            left.load(spark, is_ordered=True), stock.load(spark)
        ).persist()
        counts["oversold"] = tables["oversold"].count()
    return Outcome(left, right, stock, counts, tables)


def store(outcome: Outcome, folder: str | Path) -> None:
    """Write the tables and the verdict; durable on return."""
    folder = Path(folder)
    durable.make_folders(folder)
    # An old verdict must not stand beside new tables.
    durable.withdraw(folder / "verdict.json")
    for name in TABLES:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name, table in outcome.tables.items():
        table.coalesce(1).write.mode("overwrite").parquet(str(folder / name))
        durable.sync_files(folder / name)
    content = json.dumps(outcome.as_json(), indent=2) + "\n"
    durable.replace(folder / "verdict.json", content.encode())
