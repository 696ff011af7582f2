"""The fixed head: every field is where the table says, and every impossible one is refused."""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import HEAD_BYTES, MESSAGES_MAX, Batch, Limits, encode, peek, verify
from raftmq.batch.layout import BATCH_BYTES_MAX, checksum
from raftmq.errors import CorruptRecord

FIELDS = {
    "crc": (0, "<I"),
    "magic": (4, "<I"),
    "queue": (8, "<Q"),
    "producer": (16, "<Q"),
    "first_sequence": (24, "<Q"),
    "epoch": (32, "<I"),
    "flags": (36, "<I"),
    "count": (40, "<I"),
    "header_bytes": (44, "<I"),
    "base_ms": (48, "<q"),
    "columns_bytes": (56, "<I"),
    "stored_bytes": (60, "<I"),
    "body_bytes": (64, "<I"),
    "key_hashes_at": (68, "<I"),
}
"""Field → where the page of the layout says that it stands."""

SAMPLE = encode(
    [b"one", b"", b"three"],
    keys=["k1", None, "k3"],
    tags=["t", None, "t"],
    props=[{"n": 1}, {"n": -1, "s": "x"}, None],
    deliver_at_ms=[0, 5_000, 0],
    created_ms=[1_000, 1_001, 999],
    base_ms=1_000,
).to_bytes(queue=7, producer=8, epoch=9, first_sequence=10)

GOLDEN = bytes.fromhex(
    "1fe0c12d524d4201070000000000000008000000000000000a00000000000000090000001f00000003000000"
    "0b000000e8030000000000008c0000000800000008000000560000008283616e00f583617303f5d8464c47f3"
    "861a00000000b083bdfbd8464c030000000000000005000000d8464c02000000ffffffff02000000446b316b"
    "33d84644010000004174d84043010001d84f5818000000000000000088130000000000000000000000000000"
    "d84e4c0000000001000000ffffffff4103d84f500100000000000000ffffffffffffffff4102d84644010000"
    "0041786f6e657468726565"
)
"""`SAMPLE` as version 1 of the format writes it, for ever."""


def changed(payload: bytes, field: str, value: int) -> bytes:
    """The batch with one field of its head overwritten; the checksum is left as it is."""
    offset, form = FIELDS[field]
    return payload[:offset] + struct.pack(form, value) + payload[offset + struct.calcsize(form) :]


@pytest.mark.parametrize("field", FIELDS)
def test_field_stands_where_the_table_says(field: str) -> None:
    offset, form = FIELDS[field]
    (value,) = struct.unpack_from(form, SAMPLE, offset)
    assert getattr(peek(SAMPLE), field) == value


def test_format_has_not_changed() -> None:
    assert SAMPLE.hex() == GOLDEN.hex()


def test_golden_batch_decodes() -> None:
    batch = Batch.decode(GOLDEN)
    batch.validate()
    assert batch.bodies == [b"one", b"", b"three"]
    assert batch.keys == ["k1", None, "k3"]
    assert [m.tag for m in batch] == ["t", None, "t"]
    assert [m.props for m in batch] == [{"n": 1}, {"n": -1, "s": "x"}, {}]
    assert [m.deliver_at_ms for m in batch] == [0, 5_000, 0]
    assert [m.created_ms for m in batch] == [1_000, 1_001, 999]


def test_crc_covers_the_stamp_last() -> None:
    crc = google_crc32c.value(SAMPLE[36:] + SAMPLE[4:36])
    assert peek(SAMPLE).crc == crc == checksum(SAMPLE)


@pytest.mark.parametrize("size", [1, 4_000, 5_000, 100_000])
def test_checksum_of_large_and_small_batches_and_views_agree(size: int) -> None:
    payload = encode([bytes(size)]).to_bytes(queue=1)
    shifted = memoryview(b"x" + payload)[1:]
    assert checksum(payload) == checksum(memoryview(payload)) == checksum(shifted)
    assert checksum(payload) == google_crc32c.value(payload[36:] + payload[4:36])


def test_checksum_without_the_c_code_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = encode([bytes(5_000)]).to_bytes(queue=1)
    with_c = checksum(payload)
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    assert checksum(payload) == with_c


def test_any_flipped_bit_is_noticed() -> None:
    for position in range(len(SAMPLE)):
        for bit in (0, 7):
            damaged = bytearray(SAMPLE)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptRecord):
                verify(bytes(damaged))


def test_every_cut_and_every_extension_is_noticed_without_the_crc() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(CorruptRecord):
            peek(SAMPLE[:size])
    with pytest.raises(CorruptRecord, match="add up"):
        peek(SAMPLE + b"\0")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", 0, "not a batch"),
        ("magic", int.from_bytes(b"RMB\x02", "little"), "version 2"),
        ("first_sequence", 2**63, "first sequence"),
        ("flags", 128, "newer format"),
        ("flags", 31 + 32 + 64, "both zstd and lz4"),
        ("count", 0, "0 messages"),
        ("count", MESSAGES_MAX + 1, "65537 messages"),
        ("count", 2**32 - 1, "messages"),
        ("header_bytes", 2**32 - 1, "add up"),
        ("columns_bytes", 2**32 - 1, "add up"),
        ("stored_bytes", 2**32 - 1, "add up"),
        ("body_bytes", 2**32 - 1, "the limit is"),
        ("body_bytes", 1, "stated as 1"),
        ("base_ms", -1, "base time"),
        ("base_ms", 2**62, "base time"),
        ("key_hashes_at", 0, "key hashes"),
        ("key_hashes_at", 80, "key hashes"),
        ("key_hashes_at", 2**32 - 1, "key hashes"),
    ],
)
def test_impossible_field_is_refused_by_peek(field: str, value: int, message: str) -> None:
    with pytest.raises(CorruptRecord, match=message):
        peek(changed(SAMPLE, field, value))


def test_header_over_its_limit_is_refused() -> None:
    plain = encode([b"x" * 70_000]).to_bytes(queue=1)
    moved = changed(changed(plain, "header_bytes", 65_537), "stored_bytes", 70_000 - 65_536)
    moved = changed(moved, "body_bytes", 70_000 - 65_536)
    with pytest.raises(CorruptRecord, match="batch header of 65537 bytes"):
        peek(moved)


def test_key_hashes_that_would_reach_into_the_bodies_are_refused() -> None:
    # Eight messages say that they have keys, and the columns are too short for their hashes.
    plain = encode([b"12345678"] * 8).to_bytes(queue=1)
    keyed = changed(changed(plain, "flags", 1), "columns_bytes", 2)
    keyed = changed(keyed, "stored_bytes", len(plain) - HEAD_BYTES - 3)
    keyed = changed(keyed, "body_bytes", len(plain) - HEAD_BYTES - 3)
    keyed = changed(keyed, "key_hashes_at", HEAD_BYTES + 1 + 4)
    with pytest.raises(CorruptRecord, match="key hashes"):
        peek(keyed)


def test_batch_over_the_given_limit_is_refused() -> None:
    assert peek(SAMPLE, bytes_max=len(SAMPLE))
    with pytest.raises(CorruptRecord, match=f"the limit is {len(SAMPLE) - 1}"):
        peek(SAMPLE, bytes_max=len(SAMPLE) - 1)
    with pytest.raises(CorruptRecord, match="3 messages; the limit is 2"):
        Batch.decode(SAMPLE, limits=Limits(messages_max=2))


def test_limits_can_only_be_lowered() -> None:
    Limits(batch_bytes_max=1)
    with pytest.raises(AssertionError):
        Limits(batch_bytes_max=BATCH_BYTES_MAX + 1)
    with pytest.raises(AssertionError):
        Limits(messages_max=MESSAGES_MAX + 1)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        peek(data)
