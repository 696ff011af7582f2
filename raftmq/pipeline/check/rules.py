"""The promises that a history is judged by, and the findings against it.

A *finding* is one broken promise, a row of the table of violations; its `kind` is the anomaly's
name in `raftmq chaos list anomalies`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raftmq.checkers import Verdict, key_order, total_queue
from raftmq.checkers.log import anomalies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOTAL_QUEUE, LOG, KEY_ORDER = total_queue.CHECKER, anomalies.CHECKER, key_order.CHECKER
CHECKERS = (TOTAL_QUEUE, LOG, KEY_ORDER)

VALID, INVALID, UNDECIDED = Verdict.VALID.value, Verdict.INVALID.value, Verdict.UNKNOWN.value

SCHEMA = (
    "kind string, row bigint, queue string, process bigint, offset bigint, values array<string>, "
    "operations array<bigint>, fact string"
)
"""The schema of findings for Spark: `row` is the number of the row of the history that shows it,
`values` are its messages as JSON, `operations` those of their rows, `fact` is a sentence on it."""
ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("row", pa.int64()),
        ("queue", pa.string()),
        ("process", pa.int64()),
        ("offset", pa.int64()),
        ("values", pa.list_(pa.string())),
        ("operations", pa.list_(pa.int64())),
        ("fact", pa.string()),
    ]
)
"""`SCHEMA` for Arrow."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Promises beyond the least ones, and the number of findings that are kept."""

    is_exactly_once: bool = False
    """No message is delivered twice."""
    is_drained: bool = True
    """Readers polled until no message came: messages that they never got are lost."""
    is_send_contiguous: bool = False
    """The messages of one send get offsets in a row, as raftmq's batches do."""
    examples_max: int = 1000
    """Findings of each kind that are kept, 100,000 at the most; all are counted."""


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of a checker."""

    checker: str
    findings: "DataFrame | None"
    """Rows of `SCHEMA`; None: nothing could be judged."""
    counts: Mapping[str, int]
    """Figures, and of some kinds the number of occurrences, which then replaces the number of
    findings."""
    kinds: tuple[str, ...] = ()
    """All kinds that it looked for."""
    tolerated: frozenset[str] = frozenset()
    """Kinds that do not make the history invalid."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """By kind: why the verdict is unknown if there is one of these."""
    reason: str = ""
    """Why nothing could be judged."""


class Judged(NamedTuple):
    """A checker's verdict."""

    checker: str
    verdict: str
    """`VALID`, `INVALID` or `UNDECIDED`."""
    reason: str
    """Why it is undecided; empty otherwise."""
    counts: dict[str, int]
    """Figures, and how often each kind occurred."""
    tolerated: tuple[str, ...] = ()
    """Kinds that occurred and do not make it invalid."""
    kinds: tuple[str, ...] = ()
    """All kinds that it looked for; each is in `counts`."""


def undecided(checker: str, reason: str) -> Found:
    """The result of a checker that cannot judge, with the reason."""
    return Found(checker, None, {}, reason=reason)


def finding(
    found: "DataFrame",
    kind: "str | Column",
    *,
    values: "Column",
    operations: "Column",
    fact: "Column",
) -> "DataFrame":
    """Rows of `SCHEMA` from rows with `row`, `queue`, `process` and `offset`."""
    from pyspark.sql import functions as f

    return found.select(
        (f.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        "row",
        "queue",
        "process",
        "offset",
        values.alias("values"),
        f.array_sort(f.array_distinct(operations)).alias("operations"),
        fact.alias("fact"),
    )
