"""Messages as Arrow: the record batch holds what the messages hold, whatever the batches."""

import base64
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import Batch, Compression, Flag, PropertyKind, encode
from raftmq.batch.columns import I64, PLAIN, U32, column, vector
from raftmq.client.arrow import SCHEMA
from raftmq.client.message import Messages
from raftmq.client.slices import Slice
from raftmq.errors import Rejected, UnreadableBatch
from tests.batch.messages import Drawn, drawn_messages
from tests.batch.test_corrupt import made, with_property

QUEUE = 1 << 16 | 3
MS_MAX = (2**63 - 1) // 1000


def sliced(drawn: Drawn, base: int, start: int, stop: int, compression: Compression) -> Slice:
    payload = drawn.seal(compression=compression).to_bytes(queue=QUEUE)
    batch = Batch.decode(payload, base_offset=base, timestamp=1_700_000_000_000 + base)
    return Slice(batch, start, stop, QUEUE)


@st.composite
def slices(draw: st.DrawFn) -> list[Slice]:
    found = []
    for n, drawn in enumerate(draw(st.lists(drawn_messages(), min_size=1, max_size=4))):
        start = draw(st.integers(0, len(drawn.bodies) - 1))
        stop = draw(st.integers(start + 1, len(drawn.bodies)))
        found.append(sliced(drawn, n * 100, start, stop, draw(st.sampled_from(Compression))))
    return found


def means(text: str, value: object) -> bool:
    """Is this the text of a property's value?"""
    match value:
        case bool():
            return text == ("true" if value else "false")
        case int():
            return text == str(value)
        case float():
            return float(text) == value or (math.isnan(value) and text == "nan")
        case bytes():
            return text == base64.b64encode(value).decode()
        case _:
            return text == value


def microseconds(milliseconds: int) -> int:
    return min(milliseconds, MS_MAX) * 1000


@given(slices())
def test_record_batch_holds_what_the_messages_hold(parts: list[Slice]) -> None:
    messages = Messages(parts, "orders")
    found = messages.to_arrow()
    found.validate(full=True)
    assert found.schema == SCHEMA
    rows = found.drop_columns(["created", "timestamp", "props"]).to_pylist()
    assert rows == [
        {"topic": m.topic, "queue": m.queue, "offset": m.offset, "key": m.key, "tag": m.tag}
        | {"body": m.body}
        for m in messages
    ]
    stamps = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert stamps == [microseconds(m.timestamp) for m in messages]
    batches = [(part.batch, at) for part in parts for at in range(part.start, part.stop)]
    created = [batch.messages(at)[0].created_ms for batch, at in batches]
    assert found.column("created").cast(pa.int64()).to_pylist() == list(map(microseconds, created))
    for message, items in zip(messages, found.column("props").to_pylist(), strict=True):
        texts, values = dict(items), message.props
        assert (len(items), list(texts)) == (len(values), list(values))
        assert all(means(texts[name], value) for name, value in values.items()), (items, values)


@given(slices(), st.sets(st.sampled_from(SCHEMA.names), min_size=1))
def test_some_columns_are_those_of_all_columns(parts: list[Slice], columns: set[str]) -> None:
    messages = Messages(parts, "orders")
    in_order = [name for name in SCHEMA.names if name in columns]
    assert messages.to_arrow(columns) == messages.to_arrow().select(in_order)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 1.0, 5e-324, 1e300, 0.1 + 0.2])
def test_a_float_reads_back_as_it_was(value: float) -> None:
    payload = encode([b""], props=[{"x": value}], base_ms=0).to_bytes(queue=QUEUE)
    (items,) = Messages([Slice(Batch.decode(payload), 0, 1, QUEUE)], "t").to_arrow()["props"]
    text = items.as_py()[0][1]
    assert repr(float(text)) == repr(value)


def test_no_messages_are_a_batch_without_rows() -> None:
    found = Messages([], "orders").to_arrow(["offset", "body"])
    assert (found.num_rows, found.schema.names) == (0, ["offset", "body"])


def test_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(Rejected, match=r"no columns \['value'\]: there are topic, queue, offset"):
        Messages([], "orders").to_arrow(["value"])
    with pytest.raises(Rejected, match="there are topic"):
        Messages([], "orders").to_arrow([])


def test_times_past_what_arrow_holds_are_the_last_that_it_holds() -> None:
    payload = encode([b"", b""], created_ms=[2**62 - 1, 1], base_ms=0).to_bytes(queue=QUEUE)
    found = Messages([Slice(Batch.decode(payload), 0, 2, QUEUE)], "t").to_arrow(["created"])
    (late, early) = found["created"].cast(pa.int64()).to_pylist()
    assert (late, early) == (MS_MAX * 1000, 1000)
    assert found["created"][1].as_py() == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1e-3)


def test_column_that_cannot_be_read_is_an_unreadable_batch() -> None:
    # Two keys of one byte each, and one byte of content.
    wrong = made(
        [vector(U32, [1, 1]), vector(U32, [0, 0]), vector(U32, [1, 1]), column(PLAIN, b"a")],
        flags=Flag.KEYS,
    )
    messages = Messages([Slice(Batch.decode(wrong, base_offset=7), 0, 2, QUEUE)], "orders")
    assert messages.to_arrow(["body", "offset"])["offset"].to_pylist() == [7, 8]
    with pytest.raises(UnreadableBatch, match="queue 3 of topic 'orders', batch at offset 7"):
        messages.to_arrow(["key"])


def test_properties_that_cannot_be_found_are_an_unreadable_batch_and_bodies_are_read() -> None:
    # Two integers are two times eight bytes.
    wrong = with_property(PropertyKind.INTEGER, vector(I64, [1]))
    messages = Messages([Slice(Batch.decode(wrong, base_offset=7), 0, 2, QUEUE)], "orders")
    assert messages.to_arrow(["body"])["body"].to_pylist() == messages.bodies == [b"", b""]
    for read in (lambda: messages.to_arrow(["props"]), lambda: messages[1].props):
        with pytest.raises(UnreadableBatch, match="queue 3 of topic 'orders', batch at offset 7"):
            read()


def test_making_rows_loads_no_pandas() -> None:
    # It takes over a second, in each of Spark's workers.
    program = (
        "import sys\n"
        "from raftmq.batch import Batch, encode\n"
        "from raftmq.client.message import Messages\n"
        "from raftmq.client.slices import Slice\n"
        "props = [{'i': 1, 'f': 0.5, 'b': True, 't': 'x', 'r': b'raw'}] * 3\n"
        "made = encode([b'a'] * 3, keys=['k', None, 'k'], tags=['t', None, 'u'], props=props)\n"
        "batch = Batch.decode(made.to_bytes(queue=1))\n"
        "rows = Messages([Slice(batch, 0, 3, 1)], 'orders').to_arrow()\n"
        "print(rows.num_rows, rows.num_columns, 'pandas' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["3", "9", "False"]
