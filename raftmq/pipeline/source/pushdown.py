"""Filters that Spark hands over in a batch read: which ones, which rows they keep, and which
messages need not be read for them.

The source evaluates the filters that it takes on every record batch, exactly as Spark would; a
`Bound`, which rules out queues and ranges of offsets without such rows, only saves time.

| filter | columns | also saves reading |
|---|---|---|
| =, <=>, IN, <, <=, >, >= | all but body and props | of queue, offset and timestamp |
| IS NULL, IS NOT NULL | all | |
| LIKE 'a%', '%a', '%a%' | key, tag, topic | |

Left out: NOT and OR; Spark evaluates those itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from .options import EPOCH

if TYPE_CHECKING:
    import pyarrow as pa

_COMPARED = ("topic", "queue", "offset", "key", "tag", "created", "timestamp")
_TEXTS = ("topic", "key", "tag")
_COMPARISONS = {
    "EqualTo": "equal",
    "EqualNullSafe": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_MATCHES = {
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter on one column; it travels to the workers."""

    column: str
    """Name of the column."""
    kind: str
    """The name of Spark's class: `EqualTo`, `In`, …."""
    value: Any = None
    """The value that the column is compared with."""


def condition_of(found: Any) -> Condition | None:
    """One of Spark's filters as a condition; None: Spark has to evaluate it."""
    kind, path = type(found).__name__, tuple(getattr(found, "attribute", ()))
    if len(path) != 1:
        return None
    column, value = path[0], getattr(found, "value", None)
    match kind:
        case "IsNull" | "IsNotNull":
            return Condition(column, kind)
        case (
            "EqualTo"
            | "EqualNullSafe"
            | "LessThan"
            | "LessThanOrEqual"
            | "GreaterThan"
            | ("GreaterThanOrEqual")
        ):
            return Condition(column, kind, value) if column in _COMPARED else None
        case "In":
            return Condition(column, kind, tuple(found.value)) if column in _COMPARED else None
        case _ if kind in _MATCHES:
            return Condition(column, kind, value) if column in _TEXTS else None
    return None


def keeper(
    conditions: tuple[Condition, ...],
) -> "Callable[[pa.RecordBatch], pa.RecordBatch] | None":
    """A function that drops the rows that a condition does not keep; None: no conditions."""
    if not conditions:
        return None

    def keep(rows: "pa.RecordBatch") -> "pa.RecordBatch":
        import pyarrow.compute as pc

        # A null is not true: `filter` drops it as Spark does.
        masks = [_mask(each, rows.column(each.column)) for each in conditions]
        return rows.filter(reduce(pc.and_kleene, masks))

    return keep


def _mask(condition: Condition, values: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, value = condition.kind, condition.value
    if kind == "IsNull" or (kind == "EqualNullSafe" and value is None):
        return values.is_null()
    if kind == "IsNotNull":
        return values.is_valid()
    if kind == "In":
        wanted = [each for each in value if each is not None]
        return pc.is_in(values, value_set=pa.array(wanted, values.type))
    if kind in _MATCHES:
        return getattr(pc, _MATCHES[kind])(values, value)
    return getattr(pc, _COMPARISONS[kind])(values, pa.scalar(value, values.type))


@dataclass(frozen=True, slots=True)
class Bound:
    """The numbers that the messages of some conditions lie between, both included."""

    low: int | None = None
    """The least number; None: no lower bound."""
    high: int | None = None
    """The greatest number; None: no upper bound."""

    def with_condition(self, condition: Condition, low: int | None, high: int | None) -> "Bound":
        """Narrowed by a condition whose value lies between `low` and `high` as whole numbers."""
        match condition.kind:
            case "EqualTo" | "EqualNullSafe":
                pass
            case "GreaterThan" | "GreaterThanOrEqual":
                high = None
            case "LessThan" | "LessThanOrEqual":
                low = None
            case _:
                return self
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return Bound(max(lows, default=None), min(highs, default=None))


def whole_bound(conditions: tuple[Condition, ...], column: str) -> Bound:
    """Between which numbers a whole-number column lies.

    >>> whole_bound((Condition("queue", "GreaterThan", 3),), "queue")
    Bound(low=4, high=None)
    """
    bound = Bound()
    for each in conditions:
        value = each.value
        if each.column != column or type(value) is not int:
            continue
        low = value + (each.kind == "GreaterThan")
        bound = bound.with_condition(each, low, value - (each.kind == "LessThan"))
    return bound


def time_bound(conditions: tuple[Condition, ...]) -> Bound:
    """Between which milliseconds since 1970 the `timestamp` lies; wide rather than narrow."""
    bound = Bound()
    for each in conditions:
        if each.column != "timestamp" or not isinstance(each.value, datetime):
            continue
        milliseconds = (each.value - EPOCH) // _MILLISECOND
        bound = bound.with_condition(each, milliseconds, milliseconds)
    return bound
