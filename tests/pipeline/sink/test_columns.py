"""Columns of rows, options of the sink, and the errors for wrong ones."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from raftmq.batch import Batch
from raftmq.batch.arrow_encode import ArrowColumns, encode_arrow
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.sink.columns import check_columns, divided, with_times
from raftmq.pipeline.sink.options import Options, parse
from raftmq.pipeline.sink.stored import digest, digests_of

BODY = ("body", "binary")


@pytest.mark.parametrize(
    "fields",
    [
        [BODY],
        [("body", "string"), ("key", "string"), ("tag", "string"), ("queue", "int")],
        [BODY, ("props", "map<string,string>"), ("delay", "double")],
        [BODY, ("props", "map<string,bigint>"), ("deliver_at", "timestamp")],
        [BODY, ("props", "struct<a:int,b:string>")],
    ],
)
def test_columns_that_can_be_written(fields: list[tuple[str, str]]) -> None:
    check_columns(fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([("value", "binary")], "no column 'value'.*body, key, tag, props, delay"),
        ([("key", "string")], "there is no column body"),
        ([("body", "int")], "column body is int.*cast it to binary or string"),
        ([BODY, ("key", "bigint")], "column key is bigint.*cast it to string"),
        ([BODY, BODY], "stands twice"),
        ([BODY, ("props", "map<int,string>")], "column props is map<int,string>"),
        ([BODY, ("props", "map<string,array<int>>")], "column props is map"),
        ([BODY, ("delay", "double"), ("deliver_at", "timestamp")], "both delay and deliver_at"),
        ([BODY, ("deliver_at", "string")], "cast it to timestamp"),
    ],
)
def test_columns_that_cannot_are_named(fields: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        check_columns(fields)


def test_options_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_URL", "raftmq://a:1")
    given = {"TOPIC": "t", "compression": "ZSTD", "timeout": "5", "path": "x"}
    given |= {"writeid": "w", "partitions": "4"}
    assert parse(given, is_stream=False) == Options("t", "raftmq://a:1", "zstd", 5.0, "w", 4)
    assert parse({"topic": "t", "url": "raftmq://b:1"}, is_stream=True).url == "raftmq://b:1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no topic is named"),
        ({"topic": "t", "compresion": "lz4"}, "no option 'compresion'.*did you mean compression"),
        ({"topic": "t", "compression": "gzip"}, "one of none, lz4, zstd"),
        ({"topic": "t", "timeout": "soon"}, "no number of seconds"),
        ({"topic": "t", "timeout": "-1"}, "no number of seconds"),
        ({"topic": "t", "writeId": "w"}, "for a batch write"),
    ],
)
def test_options_that_make_no_sense_are_told(given: dict[str, str], why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        parse({"url": "raftmq://a:1"} | given, is_stream=True)


def test_no_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTMQ_URL", raising=False)
    with pytest.raises(PipelineError, match="no cluster is named"):
        parse({"topic": "t"}, is_stream=False)


def test_rows_with_a_delay_are_put_apart() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"body": ["a", "b", "c", "d"], "delay": pa.array([None, 1.5, 0.0, 2.0])}
    )
    parts = divided(rows)
    assert parts.at_once.to_pydict() == {"body": ["a", "c"]}
    assert parts.positions.tolist() == [0, 2]
    assert parts.later is not None
    assert with_times(parts.later, 1_000).to_pydict() == {
        "body": ["b", "d"],
        "deliver_at": [datetime.fromtimestamp(s, UTC) for s in (2.5, 3)],
    }


def test_time_in_the_past_is_for_later_too_or_a_retry_would_take_it_elsewhere() -> None:
    times = pa.array([datetime(2001, 1, 1, tzinfo=UTC), None])
    parts = divided(pa.RecordBatch.from_pydict({"body": ["a", "b"], "deliver_at": times}))
    assert parts.later is not None
    assert parts.later.num_rows == 1


def test_digest_of_a_row_is_that_of_its_message() -> None:
    props = pa.array([{"f": 0.1, "n": 7, "s": "ü", "b": True, "x": b"\0"}, {"f": None}, None])
    props = props.cast(
        pa.struct(
            [
                ("f", pa.float32()),
                ("n", pa.int16()),
                ("s", pa.string()),
                ("b", pa.bool_()),
                ("x", pa.binary()),
            ]
        )
    )
    rows = pa.RecordBatch.from_pydict(
        {"body": ["a", "b", "c"], "key": ["k", None, ""], "tag": [None, "t", ""], "props": props}
    )
    columns = ArrowColumns(rows["body"].cast(pa.binary()), rows["key"], rows["tag"], props)
    batch = Batch.decode(encode_arrow(columns).to_bytes(queue=1))
    expected = [digest(m.body, m.key, m.tag, m.props) for m in batch.messages()]
    assert digests_of(rows) == expected
    assert len(set(expected)) == 3


def test_digest_tells_what_is_alike_apart() -> None:
    rows = [
        digest(b"1", None, None, {}),
        digest(b"1", "", None, {}),
        digest(b"1", None, "", {}),
        digest(b"1", None, None, {"a": 1}),
        digest(b"1", None, None, {"a": "1"}),
        digest(b"1", None, None, {"a": True}),
        digest(b"1", None, None, {"a": 1.0}),
    ]
    assert len(set(rows)) == len(rows)


def test_digest_does_not_change_between_releases() -> None:
    # Rows for later have the order of their digests, before an update and after it.
    props = {"n": 1, "s": "ü", "b": True, "f": 0.5, "x": b"\0", "gone": None}
    assert digest(b"body", "key", None, props, 7).hex() == "b06008a189ab3ef5a9cfbe8499fa6c39"
