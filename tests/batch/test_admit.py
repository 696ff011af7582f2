"""Consumers can read every batch that a broker admits: the vector checks agree with reading."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import BATCH_BYTES_MAX, Batch, Compression, Flag, admit, encode
from raftmq.batch.columns import PLAIN, U32, codes, column, joined, vector
from raftmq.batch.compression import compress
from raftmq.batch.layout import HEAD_BYTES
from raftmq.errors import CorruptRecord
from tests.batch.test_corrupt import (
    EMPTY,
    KEYS,
    TAGS,
    made,
    mutated,
    resealed,
    samples,
    with_property,
)


def is_admitted(payload: bytes) -> bool:
    """The broker's verdict."""
    try:
        admit(payload, bytes_max=BATCH_BYTES_MAX)
    except CorruptRecord:
        return False
    return True


def is_readable(payload: bytes) -> bool:
    """The consumer's: decode it, and look at all there is."""
    try:
        batch = Batch.decode(payload)
        batch.messages()
        for position in range(len(batch)):
            batch.body(position)
        _ = batch.tags, batch.created_ms, batch.deliver_at_ms
        for property_column in batch.columns:
            property_column.to_list()
            _ = property_column.values
    except CorruptRecord:
        return False
    return True


MANY = 300
WIDE = {
    "keys": [None if i % 5 == 0 else f"ключ-{i}" for i in range(MANY)],
    "tags": [None if i % 7 == 0 else f"tag {i % 3}" for i in range(MANY)],
    "props": [{"t": f"ä{i}", "c": "xy"[i % 2], "y": b"\xff", "b": i % 3 == 0} for i in range(MANY)],
    "deliver_at_ms": [i % 2 * 10**12 for i in range(MANY)],
    "created_ms": [10**12 + i for i in range(MANY)],
    "base_ms": 10**12,
}


def wide_samples() -> list[bytes]:
    """Batches on both sides of the size from which arrays are used."""
    bodies = [b"body %d " % i for i in range(MANY)]
    return [*samples(), encode(bodies, **WIDE).to_bytes(queue=1)]  # type: ignore[arg-type]


def test_whatever_an_encoder_writes_is_admitted() -> None:
    assert all(map(is_admitted, wide_samples()))


def test_mutated_batch_is_admitted_if_and_only_if_it_can_be_read() -> None:
    random_ = random.Random(20_261_121)
    originals = wide_samples()
    admitted = 0
    for _ in range(6_000):
        payload = mutated(random_, random_.choice(originals))
        verdict = is_admitted(payload)
        assert verdict == is_readable(payload), payload.hex()
        admitted += verdict
    assert 300 < admitted < 5_000


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=6)), min_size=1, max_size=130),
    st.data(),
)
def test_moved_borders_between_keys_are_admitted_if_and_only_if_readable(
    keys: list[str | None], data: st.DataObject
) -> None:
    parts = [(key or "").encode() for key in keys]
    lengths = [0xFFFFFFFF if k is None else len(p) for k, p in zip(keys, parts, strict=True)]
    if len(parts) > 1:
        # One byte goes from one key to its neighbour: the sum stays right.
        at = data.draw(st.integers(0, len(parts) - 2))
        if keys[at] is not None and keys[at + 1] is not None and lengths[at]:
            lengths[at] -= 1
            lengths[at + 1] += 1
    count = len(keys)
    columns = [
        vector(U32, [0] * count),
        vector(U32, [0] * count),
        vector(U32, lengths),
        column(PLAIN, b"".join(parts)),
    ]
    payload = made(columns, flags=KEYS, count=count)
    assert is_admitted(payload) == is_readable(payload)


@pytest.mark.parametrize(
    "payload",
    [
        made([vector(U32, [1, 0])], body=b"two"),
        made([EMPTY, EMPTY, joined([b"\xc3", b"\xa4"])], flags=KEYS),
        made([EMPTY, EMPTY, vector(U32, [5000, 0]), column(PLAIN, bytes(5000))], flags=KEYS),
        made([EMPTY, joined([b"a", b"b"]), codes([1, 3], 4)], flags=TAGS),
        with_property(2, column(64, b"\x00\x02")),
        with_property(5, vector(U32, [9, 9]), column(PLAIN, b"a")),
    ],
)
def test_batch_whose_columns_do_not_fit_is_refused(payload: bytes) -> None:
    assert not is_readable(payload)
    assert not is_admitted(payload)


def test_compressed_bodies_that_do_not_decompress_are_refused() -> None:
    good = samples()[3]
    bad = bytearray(good)
    bad[-3:] = b"xyz"
    assert not is_admitted(resealed(bytes(bad)))


def test_checksum_is_checked_first() -> None:
    bad = bytearray(encode([b"x"]).to_bytes(queue=1))
    bad[-1] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        admit(bytes(bad), bytes_max=BATCH_BYTES_MAX)


def test_flag_of_bodies_that_is_not_known_is_refused() -> None:
    assert not is_admitted(made([EMPTY], flags=Flag.ZSTD | Flag.LZ4))


def test_batch_that_would_be_too_long_with_raw_bodies_is_refused() -> None:
    body = bytes(BATCH_BYTES_MAX - HEAD_BYTES - 50)
    flag, stored = compress(body, Compression.ZSTD)
    for text, is_fine in (("", True), ("x" * 100, False)):
        lengths = [vector(U32, [len(body)])]
        tags = [joined([text.encode()]), codes([1], 2)] if text else []
        payload = made(
            lengths + tags,
            flags=flag | (TAGS if text else 0),
            count=1,
            body=stored,
            body_bytes=len(body),
        )
        assert len(Batch.decode(payload)) == 1
        assert is_admitted(payload) is is_fine
