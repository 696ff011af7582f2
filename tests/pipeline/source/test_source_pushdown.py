"""Filters that Spark hands over: they keep the rows that Spark would keep, and no others."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource

from raftmq.client.arrow import SCHEMA
from raftmq.pipeline.source.pushdown import condition_of, keeper, time_bound, whole_bound

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
WORDS = st.sampled_from(["", "a", "ab", "b", "größe"])
TIMES = st.integers(0, 3000).map(lambda n: BEGIN + timedelta(microseconds=500 * n))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "queue": st.integers(0, 4),
    "offset": st.integers(0, 9),
    "key": WORDS,
    "tag": WORDS,
    "timestamp": TIMES,
}
COMPARED = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}
MATCHED = {
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": str.__contains__,
}


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(VALUES)))
    kinds = [*COMPARED, "In", "IsNull", "IsNotNull"]
    kind = draw(st.sampled_from(kinds + (list(MATCHED) if column in ("key", "tag") else [])))
    made = getattr(datasource, kind)
    value = VALUES[column]
    if kind in ("IsNull", "IsNotNull"):
        return made((column,))
    if kind == "In":
        return made((column,), tuple(draw(st.lists(st.none() | value, max_size=3))))
    return made((column,), draw(st.none() | value if kind == "EqualNullSafe" else value))


def is_kept(found: Any, value: Any) -> bool:
    """As SQL has it: only what is true is kept, and a comparison with null is not."""
    kind = type(found).__name__
    match kind:
        case "IsNull":
            return value is None
        case "IsNotNull":
            return value is not None
        case "In":
            return value is not None and value in found.value
        case "EqualNullSafe":
            return bool(value == found.value)
    if value is None:
        return False
    compared = COMPARED.get(kind) or MATCHED[kind]
    return bool(compared(value, found.value))


# The broker's times are whole milliseconds.
STAMPS = st.integers(0, 1500).map(lambda n: BEGIN + timedelta(milliseconds=n))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "queue": VALUES["queue"],
            "offset": VALUES["offset"],
            "key": st.none() | WORDS,
            "tag": st.none() | WORDS,
            "timestamp": STAMPS,
        }
    ),
    max_size=12,
)


@given(ROWS, st.lists(filters(), min_size=1, max_size=3))
def test_rows_are_kept_as_spark_keeps_them(rows: list[dict[str, Any]], given: list[Any]) -> None:
    conditions = [condition_of(each) for each in given]
    assert all(conditions)
    taken = tuple(each for each in conditions if each is not None)
    schema = pa.schema([field for field in SCHEMA if field.name in VALUES])
    keep = keeper(taken)
    assert keep is not None
    expected = [row for row in rows if all(is_kept(each, row[each.attribute[0]]) for each in given)]
    table = pa.RecordBatch.from_pylist(rows, schema=schema)
    assert keep(table).to_pylist() == [{n: row[n] for n in schema.names} for row in expected]
    # The parts that need not be read hold none of the rows.
    queue, offset, time = (
        whole_bound(taken, "queue"),
        whole_bound(taken, "offset"),
        time_bound(taken),
    )
    for row in expected:
        at = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        for bound, value in ((queue, row["queue"]), (offset, row["offset"]), (time, at)):
            assert bound.low is None or bound.low <= value
            assert bound.high is None or value <= bound.high


def test_filters_that_are_not_understood_are_left_to_spark() -> None:
    equal = datasource.EqualTo(("key",), "a")
    for each in (
        datasource.Not(equal),
        datasource.EqualTo(("body",), b"x"),
        datasource.EqualTo(("props", "n"), "1"),
        datasource.StringContains(("body",), "x"),
    ):
        assert condition_of(each) is None
    assert keeper(()) is None
