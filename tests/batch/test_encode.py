"""Encoders refuse bad messages with a reason, and a refused message leaves no trace."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import Batch, BatchBuilder, Compression, Limits, encode, peek
from raftmq.errors import Reason, Rejected

BAD_ARGUMENTS: list[dict[str, Any]] = [
    {"key": 5},
    {"key": "\ud800"},
    {"key": b"\xff"},
    {"tag": 5},
    {"tag": b"bytes"},
    {"tag": ["unhashable"]},
    {"tag": "\ud800"},
    {"props": {"": 1}},
    {"props": {5: 1}},
    {"props": {b"name": 1}},
    {"props": {"\ud800": 1}},
    {"props": {"n": 2**63}},
    {"props": {"n": -(2**63) - 1}},
    {"props": {"n": "\ud800"}},
    {"props": {"n": [1]}},
    {"props": {"n": memoryview(b"x")}},
    {"props": {"n": np.int64(1)}},
    {"props": {"n": 1j}},
    {"props": {f"n{i}": 1 for i in range(257)}},
    {"deliver_at_ms": -1},
    {"deliver_at_ms": 2**62},
    {"deliver_at_ms": 1.5},
    {"created_ms": -1},
    {"created_ms": 2**62},
    {"created_ms": "now"},
    {"body": "text"},
    {"body": None},
    {"body": 5},
]
TOO_LARGE: list[dict[str, Any]] = [
    {"key": "k" * 4097},
    {"key": "ä" * 2049},
    {"key": b"k" * 4097},
    {"tag": "t" * 256},
    {"props": {"n" * 128: 1}},
    {"props": {"n": "x" * 20_000}},
    {"props": {"n": b"x" * 20_000}},
    {"body": bytes(20_000)},
]
LIMITS = Limits(batch_bytes_max=10_000)
PLURALS = {
    "key": "keys",
    "tag": "tags",
    "props": "props",
    "deliver_at_ms": "deliver_at_ms",
    "created_ms": "created_ms",
}


def encode_one(arguments: dict[str, Any]) -> None:
    """Encode one message given as the arguments of `append`."""
    rest: dict[str, Any] = {
        PLURALS[name]: [value] for name, value in arguments.items() if name != "body"
    }
    encode([arguments.get("body", b"")], limits=LIMITS, **rest)


def append_one(builder: BatchBuilder, arguments: dict[str, Any]) -> None:
    """Append a message given as the arguments of `append`."""
    builder.append(**{"body": b"", **arguments})


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=lambda a: repr(a)[:24])
def test_bad_argument_is_rejected_by_encode_and_append(arguments: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as caught:
        encode_one(arguments)
    assert caught.value.reason is Reason.BAD_ARGUMENT
    with pytest.raises(Rejected) as caught:
        append_one(BatchBuilder(LIMITS), arguments)
    assert caught.value.reason is Reason.BAD_ARGUMENT


@pytest.mark.parametrize("arguments", TOO_LARGE, ids=lambda arguments: repr(arguments)[:30])
def test_too_large_is_rejected_by_encode_and_append(arguments: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as caught:
        encode_one(arguments)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(Rejected) as caught:
        append_one(BatchBuilder(LIMITS), arguments)
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("arguments", [*BAD_ARGUMENTS, *TOO_LARGE], ids=lambda a: repr(a)[:24])
def test_rejected_message_leaves_no_trace_in_the_builder(arguments: dict[str, Any]) -> None:
    def append_good(builder: BatchBuilder) -> None:
        builder.append(b"body", key="k", tag="t", props={"n": 1}, deliver_at_ms=5)

    tried, clean = BatchBuilder(LIMITS), BatchBuilder(LIMITS)
    for builder in (tried, clean):
        append_good(builder)
    # Good parts beside the bad one: they must not stay behind.
    bad = {"key": "other", "tag": "other", "props": {"other": "x"}, **arguments}
    if "props" in arguments:
        bad["props"] = {"other": "x", **arguments["props"]}
    with pytest.raises(Rejected):
        append_one(tried, bad)
    assert tried.size == clean.size
    for builder in (tried, clean):
        append_good(builder)
    assert tried.build(queue=1, base_ms=0) == clean.build(queue=1, base_ms=0)


@pytest.mark.parametrize("name", PLURALS.values())
def test_sequences_of_other_lengths_are_rejected(name: str) -> None:
    given_: dict[str, Any] = {name: [None]}
    with pytest.raises(Rejected, match=f"2 bodies and 1 {name}"):
        encode([b"", b""], **given_)


def test_empty_batch_is_rejected() -> None:
    with pytest.raises(Rejected):
        encode([])
    with pytest.raises(Rejected):
        BatchBuilder().seal(base_ms=0)


def test_too_many_messages_are_rejected() -> None:
    limits = Limits(messages_max=2)
    with pytest.raises(Rejected, match="1 to 2 messages, not 3"):
        encode([b""] * 3, limits=limits)
    builder = BatchBuilder(limits)
    builder.append(b"")
    assert builder.has_room(0)
    builder.append(b"")
    assert not builder.has_room(0)
    with pytest.raises(Rejected, match="2 messages at most"):
        builder.append(b"")


def test_base_time_out_of_range_is_rejected() -> None:
    for base_ms in (-1, 2**62):
        with pytest.raises(Rejected):
            encode([b""], base_ms=base_ms)


@given(st.data())
def test_full_builder_refuses_and_what_it_took_fits(data: st.DataObject) -> None:
    limits = Limits(batch_bytes_max=data.draw(st.integers(200, 2_000)))
    builder = BatchBuilder(limits)
    words = st.sampled_from(["", "a", "word", "x" * 50, "größe" * 9])
    appended = []
    for _ in range(40):
        body = bytes(data.draw(st.integers(0, 80)))
        key, tag = data.draw(st.none() | words), data.draw(st.none() | words)
        props = data.draw(
            st.dictionaries(words.filter(bool), words | st.integers(0, 9), max_size=3)
        )
        parts = [body, (key or "").encode(), (tag or "").encode()]
        message_bytes = sum(map(len, parts))
        had_room = builder.has_room(message_bytes) and not props
        try:
            builder.append(body, key=key, tag=tag, props=props)
        except Rejected:
            assert not had_room
            break
        appended.append((body, key, tag, props))
        assert builder.size <= limits.batch_bytes_max
    if appended:
        payload = builder.build(queue=1, base_ms=0)
        assert len(payload) <= limits.batch_bytes_max
        batch = Batch.decode(payload, limits=limits)
        assert [(m.body, m.key, m.tag, m.props) for m in batch] == appended


def test_size_estimate_is_close_for_common_batches() -> None:
    builder = BatchBuilder()
    for i in range(500):
        builder.append(bytes(100), key=f"order-{i}", tag="paid", props={"n": i, "city": "Köln"})
    sealed = builder.seal(base_ms=0)
    assert sealed.size <= builder.size < 1.1 * sealed.size


@pytest.mark.parametrize(
    "column",
    [
        lambda i: {"key": f"{i:040}"},
        lambda i: {"tag": f"{i:040}"},
        lambda i: {"props": {"text": f"{i:040}"}},
        lambda i: {"props": {"bytes": bytes(40)}},
        lambda i: {"props": {f"{i:040}": i}},
        lambda i: {"props": {"umlauts": f"{i} " + "ä" * 40}},
        lambda i: {"deliver_at_ms": i, "created_ms": i},
    ],
)
def test_size_covers_each_column_when_it_is_large(column: Callable[[int], dict[str, Any]]) -> None:
    builder = BatchBuilder()
    for i in range(256):
        builder.append(b"", **column(i))
    sealed = builder.seal(base_ms=2**60)
    assert sealed.size <= builder.size < 2 * sealed.size


def test_compressed_batch_must_fit_uncompressed() -> None:
    # Or a consumer would have to take memory beyond the limit to read it.
    with pytest.raises(Rejected):
        encode([bytes(20_000)], compression=Compression.ZSTD, limits=LIMITS)


def test_columns_without_content_are_left_out() -> None:
    plain = encode([b"a", b"b"], base_ms=5).to_bytes(queue=1)
    empty = encode(
        [b"a", b"b"],
        keys=[None, None],
        tags=[None, None],
        props=[{}, {"x": None}],
        deliver_at_ms=[0, 0],
        created_ms=[5, 5],
        base_ms=5,
    ).to_bytes(queue=1)
    assert plain == empty
    assert peek(plain).flags == 0


def test_single_plain_message_costs_few_bytes() -> None:
    assert encode([bytes(100)]).size == 100 + 72 + 1 + 7
