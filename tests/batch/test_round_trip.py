"""A batch returns the messages that went in: each column, alone and with the others."""

import math
from collections import Counter
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import (
    Batch,
    BatchBuilder,
    Compression,
    Draft,
    Limits,
    PropertyKind,
    Row,
    Value,
    encode,
    key_hash,
    peek,
    queue_of,
    verify,
)
from raftmq.errors import Rejected
from tests.batch.messages import Drawn, drawn_messages, rows_of

U64 = st.integers(0, 2**64 - 1)


@given(drawn_messages(), st.sampled_from(Compression))
def test_a_decoded_batch_has_the_messages_that_were_encoded(
    drawn: Drawn, compression: Compression
) -> None:
    payload = drawn.seal(compression=compression).to_bytes(queue=1)
    batch = Batch.decode(payload, base_offset=5, timestamp=9)
    assert rows_of(batch) == drawn.rows()
    assert [m.offset for m in batch] == list(range(5, 5 + len(drawn.bodies)))
    assert {m.timestamp for m in batch} == {9}
    batch.validate()


@given(st.lists(drawn_messages(), min_size=1, max_size=4))
def test_joined_drafts_are_the_batch_of_all_their_messages(several: list[Drawn]) -> None:
    limits = Limits()
    joined, one_by_one = BatchBuilder(), BatchBuilder()
    for drawn in several:
        joined.extend(Draft(drawn.bodies, keys=drawn.keys, tags=drawn.tags, limits=limits))
        for i, body in enumerate(drawn.bodies):
            key = drawn.keys[i] if drawn.keys else None
            tag = drawn.tags[i] if drawn.tags else None
            one_by_one.append(body, key=key, tag=tag)
        assert joined.size == one_by_one.size
    payload = joined.build(queue=1, base_ms=5)
    assert payload == one_by_one.build(queue=1, base_ms=5)
    assert len(payload) <= joined.size


def test_draft_that_does_not_fit_leaves_the_builder_as_it_was() -> None:
    limits = Limits(batch_bytes_max=1000)
    builder = BatchBuilder(limits)
    builder.append(b"x" * 300, key="k", tag="t", props={"n": 1})
    size = builder.size
    with pytest.raises(Rejected, match="the batch has"):
        builder.extend(Draft([b"y" * 500], tags=["u"], limits=limits))
    assert (len(builder), builder.size) == (1, size)
    builder.extend(Draft([b"y" * 100], limits=limits))
    batch = Batch.decode(builder.build(queue=1, base_ms=5))
    assert [(m.key, m.tag, m.props) for m in batch] == [("k", "t", {"n": 1}), (None, None, {})]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"bodies": []}, "1 to 65536 messages, not 0"),
        ({"bodies": ["text"]}, "a body must be bytes, not str"),
        ({"bodies": [b""], "keys": [7]}, "a key must be text, not int"),
        ({"bodies": [b""], "tags": [["list"]]}, "a tag must be text"),
        ({"bodies": [bytes(1 << 24)] * 5}, "the batch has"),
    ],
)
def test_draft_says_what_cannot_be_encoded(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(Rejected, match=message):
        Draft(limits=Limits(), **columns)


@given(drawn_messages())
def test_single_accessors_agree_with_iteration(drawn: Drawn) -> None:
    payload = drawn.seal().to_bytes(queue=1)
    messages = Batch.decode(payload).messages()
    for i, message in enumerate(messages):
        batch = Batch.decode(memoryview(payload))
        assert batch.body(i) == message.body
        assert batch.key(i) == message.key
        assert batch.tag(i) == message.tag
        assert batch.props(i) == message.props
        assert batch.messages(i) == messages[i:]
        assert batch.body(i) == message.body, "once more, after all bodies were made"


@given(drawn_messages())
def test_columns_agree_with_messages(drawn: Drawn) -> None:
    batch = Batch.decode(drawn.seal().to_bytes(queue=1))
    messages = batch.messages()
    dictionary, codes = batch.tags
    assert [None if c == 0 else dictionary[c - 1] for c in codes] == [m.tag for m in messages]
    hashes = [0 if m.key is None else key_hash(m.key) for m in messages]
    if batch.key_hashes is None:
        assert not any(m.key is not None for m in messages)
    else:
        assert batch.key_hashes.tolist() == hashes
        start = batch.head.key_hashes_at
        payload = drawn.seal().to_bytes(queue=1)
        vector = np.frombuffer(payload, "<u4", count=len(batch), offset=start)
        assert vector.tolist() == hashes, "where the head says that they are"
    for times, name in ((batch.created_ms, "created_ms"), (batch.deliver_at_ms, "deliver_at_ms")):
        if times is not None:
            assert times.tolist() == [getattr(m, name) for m in messages]
    for column in batch.columns:
        present = np.ones(len(batch), bool) if column.present is None else column.present
        values = list(column.values)
        if column.dictionary is not None:
            values = [column.dictionary[code] for code in values]
        assert values == [value for value in column.to_list() if value is not None]
        assert [value is not None for value in column.to_list()] == present.tolist()
        assert column in batch.column(column.name)


@given(drawn_messages())
def test_a_builder_makes_the_same_bytes_as_encode(drawn: Drawn) -> None:
    builder = BatchBuilder()
    for i, body in enumerate(drawn.bodies):
        assert len(builder) == i
        builder.append(
            body,
            key=drawn.keys[i] if drawn.keys else None,
            tag=drawn.tags[i] if drawn.tags else None,
            props=drawn.props[i] if drawn.props else None,
            deliver_at_ms=drawn.deliver_at_ms[i] if drawn.deliver_at_ms else 0,
            created_ms=drawn.created_ms[i] if drawn.created_ms else None,
        )
        assert builder.size >= builder.seal(base_ms=drawn.base_ms).size
    built = builder.build(queue=3, base_ms=drawn.base_ms, producer=2)
    assert built == drawn.seal().to_bytes(queue=3, producer=2)


@given(U64, U64, st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_a_stamp_is_read_back_by_peek(queue: int, producer: int, epoch: int, first: int) -> None:
    sealed = encode([b"one", b"two"], base_ms=77)
    # Stamped twice: the first one must leave no trace.
    sealed.stamp(queue=1, producer=1, epoch=1, first_sequence=1)
    payload = sealed.to_bytes(queue=queue, producer=producer, epoch=epoch, first_sequence=first)
    head = peek(payload)
    assert verify(payload) == verify(memoryview(payload)) == head
    assert (head.queue, head.producer, head.epoch) == (queue, producer, epoch)
    assert (head.first_sequence, head.count, head.base_ms) == (first, 2, 77)
    assert len(payload) == sealed.size


def test_parts_of_a_stamped_batch_share_the_body() -> None:
    body = bytes(1000)
    parts = encode([body]).stamp(queue=1)
    assert parts[-1] is body


def test_one_name_with_values_of_all_kinds_keeps_their_types() -> None:
    values: list[Value | None] = [1, 1.0, True, "1", b"1", None, 2, 2.5, False, "2", b"2", math.inf]
    payload = encode([b""] * 12, props=[{"x": value} for value in values]).to_bytes(queue=1)
    batch = Batch.decode(payload)
    got = [message.props.get("x") for message in batch]
    assert [(type(v), v) for v in got] == [(type(v), v) for v in values]
    assert [column.kind for column in batch.column("x")] == [
        PropertyKind.INTEGER,
        PropertyKind.FLOAT,
        PropertyKind.BOOLEAN,
        PropertyKind.TEXT,
        PropertyKind.BINARY,
    ]


def test_nan_comes_back_as_nan() -> None:
    batch = Batch.decode(encode([b""], props=[{"x": math.nan}]).to_bytes(queue=1))
    assert math.isnan(batch.messages()[0].props["x"])  # type: ignore[arg-type]


def test_repeated_strings_are_stored_once() -> None:
    words = [{"city": f"city {i % 3}"} for i in range(300)]
    batch = Batch.decode(encode([b""] * 300, props=words).to_bytes(queue=1))
    (column,) = batch.columns
    assert column.kind is PropertyKind.TEXT_CODED
    assert column.dictionary == ["city 0", "city 1", "city 2"]
    assert batch.head.columns_bytes < 300 * 4 + 300 + 100


@pytest.mark.parametrize("count", [255, 256, 257, 65_536])
def test_tag_codes_grow_with_the_number_of_tags(count: int) -> None:
    tags = [f"t{i}" for i in range(count)]
    batch = Batch.decode(encode([b""] * count, tags=tags).to_bytes(queue=1))
    assert [m.tag for m in batch] == tags
    assert batch.tags.codes.itemsize == (1 if count <= 255 else 2 if count <= 65_535 else 4)


def test_subclasses_are_stored_as_what_they_are() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Number(IntEnum):
        TWO = 2

    props: list[Row] = [{Colour.RED: Number.TWO, "f": np.float64(0.5), "s": Colour.RED}]
    bodies: list[bytes] = [bytearray(b"b")]  # type: ignore[list-item]
    sealed = encode(bodies, tags=[Colour.RED], keys=[Colour.RED], props=props)
    (message,) = Batch.decode(sealed.to_bytes(queue=1))
    assert message.props == {"red": 2, "f": 0.5, "s": "red"}
    assert [type(value) for value in message.props.values()] == [int, float, str]
    assert (message.body, message.tag, message.key) == (b"b", "red", "red")


def test_bytes_and_text_of_a_key_are_the_same_key() -> None:
    batch = Batch.decode(encode([b""] * 3, keys=["größe", "größe".encode(), b""]).to_bytes(queue=1))
    assert batch.keys == ["größe", "größe", ""]
    assert queue_of("größe", 7) == queue_of("größe".encode(), 7)


def test_queue_of_a_key_never_changes() -> None:
    # Fixed numbers: a change would send keys to other queues than before.
    assert [queue_of(f"order-{i}", 8) for i in range(8)] == [7, 4, 0, 3, 0, 3, 7, 4]
    assert key_hash("123456789") == 0xE3069283, "the check value of CRC-32C"


def test_numbered_keys_spread_evenly() -> None:
    for queues in (3, 8, 16):
        counts = Counter(queue_of(f"order-{i}", queues) for i in range(1000))
        assert max(counts.values()) < 1.2 * 1000 / queues, counts


def test_a_compressed_batch_that_would_grow_stays_raw() -> None:
    for compression in Compression:
        sealed = encode([b"short"], compression=compression)
        assert peek(sealed.to_bytes(queue=1)).stored_bytes == 5


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_compression_makes_repetitive_bodies_smaller(compression: Compression) -> None:
    bodies = [b"the same words again " * 5] * 100
    sealed = encode(bodies, compression=compression)
    head = peek(sealed.to_bytes(queue=1))
    assert head.stored_bytes * 10 < head.body_bytes == sealed.body_bytes == 100 * 105
    assert Batch.decode(sealed.to_bytes(queue=1)).bodies == bodies


def test_mappings_of_messages_are_their_own() -> None:
    batch = Batch.decode(encode([b"", b""], props=[{"a": 1}, None]).to_bytes(queue=1))
    batch.props(0)["a"] = 2
    next(iter(batch)).props["a"] = 3
    assert batch.props(0) == {"a": 1}
    assert batch.messages()[0].props == {"a": 1}
