"""The rows of a history that concern messages, as a table for Spark: all of them, or a chosen few.

| kind | row of | value |
|---|---|---|
| `send` | a send's invoke | the message |
| `sent` | a send's `ok` | the message, with its offset |
| `poll` | a poll's invoke | - |
| `got` | a poll's `ok` | the message, with its offset |
| `acking` | an ack's invoke | - |
| `acked` | an ack's `ok` | the message |
| `assigned` | an assign's `ok` | - |

Columns: `kind`, `row`, `operation`, `process`, `queue` (the row's key), `value` (JSON), `offset`
(null: none), and of a `send` the `outcome` of its operation (`OK`, `FAIL` or `UNKNOWN`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raftmq.checkers.history import NONE, Flags

from .bitmaps import Bitmap
from .history import ACK, ASSIGN, INVOKE, MORE, OK, POLL, SEND, Recorded, Rows, plain, scan
from .rules import Rules
from .survey import Outcomes, Survey, Values, numbers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "kind string, row bigint, operation bigint, process bigint, queue string, value string, "
    "offset bigint, outcome tinyint"
)


class Kind(NamedTuple):
    """The rows of a kind, by function and type."""

    function: int
    type: int
    has_value: bool


KINDS = {
    "send": Kind(SEND, INVOKE, True),
    "sent": Kind(SEND, OK, True),
    "poll": Kind(POLL, INVOKE, False),
    "got": Kind(POLL, OK, True),
    "acking": Kind(ACK, INVOKE, False),
    "acked": Kind(ACK, OK, True),
    "assigned": Kind(ASSIGN, OK, False),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One history to judge, with what all checkers need."""

    spark: "SparkSession"
    recorded: Recorded
    seen: Survey
    rules: Rules
    kept: "list[DataFrame]" = field(default_factory=list)
    """Tables that are read several times; `close` drops them."""

    def messages(self, *kinds: str) -> "DataFrame":
        """The rows of these kinds (see the module's table)."""
        return self._messages(kinds, self.recorded, None)

    def chosen(self, *kinds: str, values: Values, chosen: Bitmap) -> "DataFrame":
        """The rows of these kinds whose values are chosen.

        Only the row groups that may hold them are read.
        """
        return self._messages(kinds, values.parts_with(self.recorded, chosen), chosen)

    def _messages(
        self, kinds: tuple[str, ...], recorded: Recorded, chosen: Bitmap | None
    ) -> "DataFrame":
        told = self.spark.sparkContext.broadcast((self.seen.outcomes, chosen))

        def kernel(batches: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
            outcomes, chosen = told.value
            for rows in batches:
                for name in kinds:
                    is_kind = _of_kind(rows, KINDS[name], chosen)
                    if is_kind.any():
                        yield _batch(name, rows, is_kind, outcomes)

        return scan(self.spark, recorded, kernel, SCHEMA, *MORE)

    def keep(self, table: "DataFrame") -> "DataFrame":
        """The same table, which is now made once and kept, in memory or on disk."""
        self.kept.append(table.persist())
        return table

    def close(self) -> None:
        """Drop the kept tables."""
        while self.kept:
            self.kept.pop().unpersist()


def _of_kind(rows: Rows, kind: Kind, chosen: Bitmap | None) -> Flags:
    found: Flags = (rows.function == kind.function) & (rows.type == kind.type)
    if not kind.has_value or not found.any():
        return found
    if chosen is None:
        found &= rows.value.is_valid().to_numpy(zero_copy_only=False)
        return found
    numbers = numbers_of(rows, found, np.iinfo(np.int64).max)
    assert numbers is not None, "values are chosen by number only where all are numbers"
    found[found] = chosen.has(numbers)
    return found


def _batch(name: str, rows: Rows, is_kind: Flags, outcomes: Outcomes) -> pa.RecordBatch:
    mask = pa.array(is_kind)
    count = int(is_kind.sum())
    operation, offset = rows.operation[is_kind], rows.offset[is_kind]
    outcome = pa.array(outcomes.of(operation)) if name == "send" else pa.nulls(count, pa.int8())
    return pa.RecordBatch.from_pydict(
        {
            "kind": pa.repeat(pa.scalar(name), count),
            "row": rows.row[is_kind],
            "operation": operation,
            "process": rows.process[is_kind],
            "queue": plain(rows.key.filter(mask)),
            "value": plain(rows.value.filter(mask)),
            "offset": pa.array(offset, mask=offset == NONE),
            "outcome": outcome,
        }
    )
