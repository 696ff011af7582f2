"""The first two looks at a history: how each operation ended, and which messages came.

Both are sets, so both are bitmaps (`bitmaps`). The first look gives the operations that were
acknowledged and those that failed; the second look, which needs these, gives the messages that were
sent, acknowledged, failed and delivered. A value identifies its message; if all values are whole
numbers that are not too far apart, a value is its own place in a bitmap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftmq.checkers.history import NONE, Flags, Integers
from raftmq.pipeline.errors import PipelineError

from .bitmaps import DENSE, SCHEMA, Bitmap, Gathered, Tally, gather
from .history import (
    ACK,
    ASSIGN,
    FAIL,
    FUNCTIONS,
    INVOKE,
    OK,
    POLL,
    SEND,
    TYPES,
    UNKNOWN,
    Recorded,
    Rows,
    plain,
    scan,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OTHER = "function "
_TEXTS = "values that are no numbers"
_LOW, _HIGH = "lowest value of the part at row ", "highest value of the part at row "
_DIGITS = 10 ** np.arange(1, 19, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How operations ended; those in neither set may have happened or not."""

    ok: Bitmap
    failed: Bitmap

    def of(self, operations: Integers) -> "np.ndarray[tuple[int], np.dtype[np.int8]]":
        """By operation: `OK`, `FAIL` or `UNKNOWN`."""
        found = np.full(len(operations), UNKNOWN, np.int8)
        found[self.ok.has(operations)] = OK
        found[self.failed.has(operations)] = FAIL
        return found


@dataclass(frozen=True, slots=True)
class Survey:
    """The results of the first look."""

    rows: int
    operations: int
    outcomes: Outcomes
    counts: Gathered

    @property
    def others(self) -> list[str]:
        """Functions that are not judged here."""
        names = (name for name in self.counts.counters if name.startswith(_OTHER))
        return sorted(name.removeprefix(_OTHER) for name in names)

    def rows_of(self, function: int, row_type: int) -> int:
        """How many rows there are of a function and type."""
        return self.counts.count(f"{FUNCTIONS[function]} {TYPES[row_type]}")

    @property
    def has_offsets(self) -> bool:
        """Whether an answer to a send or a poll names an offset."""
        return self.counts.count("offsets") > 0

    @property
    def has_acks(self) -> bool:
        """Whether a consumer acknowledged a message."""
        return self.rows_of(ACK, OK) > 0

    @property
    def has_assigns(self) -> bool:
        """Whether a reader was sent to another place."""
        return self.rows_of(ASSIGN, OK) > 0


def survey(spark: "SparkSession", recorded: Recorded) -> Survey:
    """Look at all operations of a history.

    Raises:
        PipelineError: an operation has no invoke, or two ends, or its number is far too high.
    """
    highest = _highest(recorded.rows)

    def kernel(batches: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
        tally = Tally()
        for rows in batches:
            _require_dense(rows.operation, highest)
            for code, name in enumerate(TYPES):
                tally.add(name, rows.operation[rows.type == code])
            _count(tally, rows)
        return tally.batches()

    found = gather(scan(spark, recorded, kernel, SCHEMA, "offset"))
    invoked, ok, failed, unknown = (found.set(name) for name in TYPES)
    _refuse(recorded, (ok | failed | unknown) - invoked, "has no invoke")
    _refuse(recorded, (ok & failed) | (ok & unknown) | (failed & unknown), "ended in two ways")
    return Survey(recorded.rows, len(invoked), Outcomes(ok, failed), found)


def _highest(rows: int) -> int:
    return DENSE * rows + (1 << 20)


def _require_dense(operations: Integers, highest: int) -> None:
    if len(operations) and (operations.min() < 0 or operations.max() > highest):
        raise PipelineError(
            f"operations are numbered from {operations.min()} to {operations.max()}",
            "number the operations of a history from 0, without gaps",
        )


def _refuse(recorded: Recorded, found: Bitmap, what: str) -> None:
    for operation in found.first(1):
        raise PipelineError(
            f"{recorded.name}: operation {operation} {what}",
            "an operation begins with `invoke` and has one end: ok, fail or unknown",
        )


def _count(tally: Tally, rows: Rows) -> None:
    both = rows.function.astype(np.int64) * len(TYPES) + rows.type
    counts = np.bincount(both, minlength=len(FUNCTIONS) * len(TYPES))
    for place in np.flatnonzero(counts[: len(FUNCTIONS) * len(TYPES)]):
        function, row_type = divmod(int(place), len(TYPES))
        tally.counters[f"{FUNCTIONS[function]} {TYPES[row_type]}"] += int(counts[place])
    for name in rows.others:
        tally.counters[_OTHER + name] += 1
    is_answer = (rows.type == OK) & (rows.function <= POLL)
    tally.counters["offsets"] += int((rows.offset[is_answer] != NONE).sum())


@dataclass(frozen=True, slots=True)
class Values:
    """The messages that are in a history, as sets of their values."""

    sent: Bitmap
    acknowledged: Bitmap
    failed: Bitmap
    delivered: Bitmap
    spans: Mapping[int, tuple[int, int]]
    """By the first row of a row group: the lowest and the highest value of a message in it."""

    def parts_with(self, recorded: Recorded, chosen: Bitmap) -> Recorded:
        """The history without the row groups that cannot hold a message of these values."""
        spans = ((part, self.spans.get(part.first_row)) for part in recorded.parts)
        parts = (part for part, span in spans if span is not None and chosen.has_any(*span))
        return replace(recorded, parts=tuple(parts))


def values(spark: "SparkSession", recorded: Recorded, outcomes: Outcomes) -> Values | None:
    """The messages of a history; None if their values are no numbers, or too far apart."""
    highest = _highest(recorded.rows)
    told = spark.sparkContext.broadcast(outcomes)

    def kernel(batches: Iterator[Rows]) -> Iterator[pa.RecordBatch]:
        tally = Tally()
        for rows in batches:
            if not _add_values(tally, rows, told.value, highest):
                tally = Tally()
                tally.counters[_TEXTS] += 1
                break
        return tally.batches()

    found = gather(scan(spark, recorded, kernel, SCHEMA, "value"))
    told.destroy()
    if found.count(_TEXTS):
        return None
    sent, acknowledged = found.set("sent"), found.set("acknowledged")
    spans = {
        part.first_row: (found.count(f"{_LOW}{part.first_row}"), found.counters[high])
        for part in recorded.parts
        if (high := f"{_HIGH}{part.first_row}") in found.counters
    }
    return Values(sent, acknowledged, found.set("failed"), found.set("delivered"), spans)


def _add_values(tally: Tally, rows: Rows, outcomes: Outcomes, highest: int) -> bool:
    """Add the values of messages; False: one of them is no number that a bitmap takes."""
    is_sent = (rows.function == SEND) & (rows.type == INVOKE)
    is_got = (rows.function == POLL) & (rows.type == OK)
    chosen = is_sent | is_got
    numbers = numbers_of(rows, chosen, highest)
    if numbers is None:
        return False
    is_value = numbers != NONE
    chosen[chosen] = is_value
    numbers, is_sent = numbers[is_value], is_sent[chosen]
    sent = numbers[is_sent]
    outcome = outcomes.of(rows.operation[chosen][is_sent])
    tally.add("sent", sent)
    tally.add("acknowledged", sent[outcome == OK])
    tally.add("failed", sent[outcome == FAIL])
    tally.add("delivered", numbers[~is_sent])
    if len(numbers):
        low, high = f"{_LOW}{rows.part}", f"{_HIGH}{rows.part}"
        lowest, highest = int(numbers.min()), int(numbers.max())
        tally.counters[low] = min(lowest, tally.counters.get(low, lowest))
        tally.counters[high] = max(highest, tally.counters.get(high, highest))
    return True


def numbers_of(rows: Rows, chosen: Flags, highest: int) -> Integers | None:
    """The values of the chosen rows as numbers, `NONE` where there is no value.

    None if one of them is anything else than a whole number from 0 to `highest`, written as JSON
    writes it.
    """
    column = rows.value
    if not chosen.all():
        column = column.filter(pa.array(chosen))
    texts = plain(column)
    try:
        numbers = pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        return None
    found: Integers = pc.fill_null(numbers, NONE).to_numpy()
    known = found[found != NONE] if texts.null_count else found
    if len(known) and (known.min() < 0 or known.max() > highest):
        return None
    # A number may be written in other ways, and is another value then: "-0", or "07".
    digits = len(known) + np.searchsorted(_DIGITS, known, side="right").sum()
    return found if digits == pc.sum(pc.binary_length(texts)).as_py() or not len(known) else None
