"""A batch encoded from Arrow holds what the same messages hold that are encoded one by one."""

from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.batch import Batch, Compression, Limits, Sealed, encode
from raftmq.batch.arrow_encode import ArrowColumns, crc32c_of, encode_arrow, hashes_of
from raftmq.errors import Reason, Rejected

TEXT = st.text(max_size=6)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["a", "b", "ü"]) | TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=4),
}
NAMES = st.sampled_from(["a", "b", "size", "ß"])


def messages_of(sealed: Sealed) -> list[Any]:
    batch = Batch.decode(sealed.to_bytes(queue=1))
    batch.validate()
    batch.check_columns()
    return batch.messages()


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[dict[str, Any]], pa.RecordBatch]:
    """Rows, and the same as Arrow."""
    kind = draw(st.sampled_from(list(VALUES)))
    is_map = draw(st.booleans())
    values = st.dictionaries(NAMES, st.none() | VALUES[kind], max_size=4)
    row: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {
            "body": st.binary(max_size=20),
            "key": st.none() | TEXT,
            "tag": st.none() | st.sampled_from(["x", "y", ""]) | TEXT,
            "props": st.none() | values,
            "due": st.integers(0, 3),
        }
    )
    made = draw(st.lists(row, min_size=1, max_size=30))
    large = draw(st.booleans())
    props: Any = pa.map_(pa.string(), kind)
    stored: list[Any] = [None if r["props"] is None else list(r["props"].items()) for r in made]
    if not is_map:
        props = pa.struct([(name, kind) for name in ("a", "b", "size", "ß")])
        stored = [r["props"] for r in made]
    text = pa.large_string() if large else pa.string()
    return made, pa.RecordBatch.from_pydict(
        {
            "body": pa.array([r["body"] for r in made], pa.large_binary() if large else None),
            "key": pa.array([r["key"] for r in made], text),
            "tag": pa.array([r["tag"] for r in made], text),
            "props": pa.array(stored, props),
        }
    )


@settings(max_examples=300)
@given(rows(), st.data())
def test_arrow_equals_rows_also_in_slices(
    drawn: tuple[list[dict[str, Any]], pa.RecordBatch], data: st.DataObject
) -> None:
    made, batch = drawn
    start = data.draw(st.integers(0, len(made) - 1))
    stop = data.draw(st.integers(start + 1, len(made)))
    compression = data.draw(st.sampled_from(Compression))
    columns = ArrowColumns(
        batch.column("body"),
        batch.column("key"),
        batch.column("tag"),
        batch.column("props"),
        np.array([r["due"] for r in made]),
        data.draw(st.sampled_from([None, hashes_of(batch.column("key"))])),
    )
    found = encode_arrow(columns.between(start, stop), base_ms=7, compression=compression)
    part = made[start:stop]
    expected = encode(
        [r["body"] for r in part],
        keys=[r["key"] for r in part],
        tags=[r["tag"] for r in part],
        props=[r["props"] for r in part],
        deliver_at_ms=[r["due"] for r in part],
        base_ms=7,
        compression=compression,
    )
    assert messages_of(found) == messages_of(expected)
    positions = np.arange(start, stop)[::-1]
    assert [m.body for m in messages_of(encode_arrow(columns.take(positions)))] == [
        made[at]["body"] for at in positions
    ]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_crc32c_of_many_equals_that_of_each(texts: list[bytes]) -> None:
    sizes = np.array([len(text) for text in texts])
    assert crc32c_of(b"".join(texts), sizes).tolist() == list(map(google_crc32c.value, texts))


def test_crc32c_of_the_longest_key() -> None:
    text = bytes(range(256)) * 16
    assert crc32c_of(text, np.array([len(text)])).tolist() == [google_crc32c.value(text)]


BODY = pa.array([b"x", b"y"])


@pytest.mark.parametrize(
    ("columns", "reason", "why"),
    [
        (ArrowColumns(pa.array([], pa.binary())), Reason.BAD_ARGUMENT, "not 0"),
        (ArrowColumns(BODY, keys=pa.array(["k" * 5000, None])), Reason.TOO_LARGE, "a key"),
        (ArrowColumns(BODY, tags=pa.array(["t" * 256, None])), Reason.TOO_LARGE, "a tag"),
        (ArrowColumns(BODY, props=pa.array(["a", "b"])), Reason.BAD_ARGUMENT, "a map or a struct"),
        (
            ArrowColumns(BODY, props=pa.array([{"d": {"x": 1}}, None])),
            Reason.BAD_ARGUMENT,
            "property 'd' is of Arrow's type struct",
        ),
        (
            ArrowColumns(BODY, props=pa.array([{"u": 2**63}, None], pa.struct({"u": pa.uint64()}))),
            Reason.BAD_ARGUMENT,
            "does not fit into 64 bits",
        ),
        (
            ArrowColumns(
                BODY, props=pa.array([[("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int64()))
            ),
            Reason.BAD_ARGUMENT,
            "two values",
        ),
        (ArrowColumns(BODY, props=pa.array([{"": 1}, None])), Reason.BAD_ARGUMENT, "is empty"),
        (ArrowColumns(BODY, dues=np.array([-1, 0])), Reason.BAD_ARGUMENT, "deliver_at_ms"),
        (
            ArrowColumns(BODY, props=pa.array([{f"p{n}": n for n in range(257)}, None])),
            Reason.BAD_ARGUMENT,
            "256 property columns",
        ),
        (ArrowColumns(pa.array([b"x" * 200, b""])), Reason.TOO_LARGE, "the batch"),
    ],
)
def test_what_no_batch_can_hold_is_refused(columns: ArrowColumns, reason: Reason, why: str) -> None:
    limits = Limits(batch_bytes_max=200) if reason is Reason.TOO_LARGE else Limits()
    with pytest.raises(Rejected, match=why) as refused:
        encode_arrow(columns, limits=limits)
    assert refused.value.reason is reason


def test_text_that_is_not_unicode_is_refused() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    props = pa.StructArray.from_arrays([broken], ["p"])
    with pytest.raises(Rejected, match="not Unicode text"):
        encode_arrow(ArrowColumns(pa.array([b"x"]), props=props))
