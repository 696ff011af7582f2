"""The byte layouts, against their tables."""

import struct

import google_crc32c
import pytest

from raftmq.log.faults import UnsupportedFormat
from raftmq.log.segment import (
    HEADER_BYTES,
    MARK_BYTES,
    MARK_MAGIC,
    HardState,
    Identity,
    Link,
    Mark,
    decode_header,
    decode_mark,
    encode_header,
    encode_mark,
    file_name,
    parse_name,
)
from raftmq.log.snapshot import SnapshotMeta, encode_snapshot

IDENTITY = Identity("shop", 0x0102030405060708, 9)


def at(data: bytes, offset: int, form: str) -> int:
    value: int = struct.unpack_from("<" + form, data, offset)[0]
    return value


def test_a_segment_header_is_laid_out_as_its_table_says() -> None:
    previous = Link(41, 5, 0xAABBCCDD, 1234)
    data, crc = encode_header(IDENTITY, sequence=3, previous=previous, replaced=True)
    assert len(data) == HEADER_BYTES == 72
    assert data[:8] == b"RAFTMQLG"
    assert at(data, 8, "I") == crc == google_crc32c.value(data[12:72])
    assert (data[12], data[13], at(data, 14, "H")) == (1, 1, 0)
    assert (at(data, 16, "Q"), at(data, 24, "Q")) == (3, 42)
    assert at(data, 32, "Q") == IDENTITY.cluster_hash()
    assert (at(data, 40, "Q"), at(data, 48, "Q")) == (IDENTITY.node, 9)
    assert (at(data, 56, "Q"), at(data, 64, "I"), at(data, 68, "I")) == (5, 0xAABBCCDD, 0)
    header = decode_header(data)
    assert header is not None
    assert (header.sequence, header.first, header.replaced, header.crc) == (3, 42, True, crc)


def test_the_cluster_hash_does_not_change_between_versions() -> None:
    assert Identity("shop", 1, 1).cluster_hash() == 0x6373C1C70462C54


def test_a_mark_is_laid_out_as_its_table_says() -> None:
    state = HardState(7, 3, 40)
    data = encode_mark(seed=99, position=500, durable=436, state=state, last=41)
    assert len(data) == MARK_BYTES == 64
    assert data[:8] == MARK_MAGIC == b"\xf7RQ\xf8SYNC"
    assert at(data, 8, "I") == google_crc32c.extend(99, data[12:64])
    assert (data[12], data[13:16]) == (1, b"\0\0\0")
    assert [at(data, 16 + 8 * i, "Q") for i in range(6)] == [500, 436, 7, 3, 40, 41]
    assert decode_mark(b"xx" + data, 2, seed=99, position=500) == Mark(500, 436, state, 41)


def test_a_mark_holds_in_its_own_file_and_place_only() -> None:
    data = encode_mark(seed=99, position=500, durable=436, state=HardState(), last=41)
    assert decode_mark(data, 0, seed=98, position=500) is None
    assert decode_mark(data, 0, seed=99, position=501) is None
    assert decode_mark(data[:63], 0, seed=99, position=500) is None
    vouching_for_more = encode_mark(seed=9, position=5, durable=6, state=HardState(), last=0)
    assert decode_mark(vouching_for_more, 0, seed=9, position=5) is None


def test_the_magic_of_a_mark_is_no_possible_record_length() -> None:
    assert at(MARK_MAGIC, 4, "I") > 64 * 1024 * 1024


def test_a_newer_mark_is_refused_as_such() -> None:
    data = bytearray(encode_mark(seed=9, position=5, durable=5, state=HardState(), last=0))
    data[12] = 2
    data[8:12] = google_crc32c.extend(9, bytes(data[12:64])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat):
        decode_mark(bytes(data), 0, seed=9, position=5)


def test_a_snapshot_is_laid_out_as_its_table_says() -> None:
    meta = SnapshotMeta(index=41, term=5, crc=0xDDCCBBAA, timestamp=-7, conf_state=b"abc")
    meta = meta._replace(state_version=12)
    data = b"".join(encode_snapshot(IDENTITY, meta, b"the state"))
    assert data[:8] == b"RAFTMQSS"
    assert at(data, 8, "I") == google_crc32c.value(data[12:83])
    assert at(data, 12, "I") == 1
    assert (at(data, 16, "Q"), at(data, 24, "Q"), at(data, 32, "q")) == (41, 5, -7)
    assert (at(data, 40, "Q"), at(data, 48, "Q")) == (IDENTITY.cluster_hash(), 9)
    assert (at(data, 56, "Q"), at(data, 64, "I")) == (9, 0xDDCCBBAA)
    assert at(data, 68, "I") == google_crc32c.value(b"the state")
    assert (at(data, 72, "I"), at(data, 76, "I")) == (3, 12)
    assert data[80:] == b"abc" + b"the state"


def test_names_are_twenty_digits_and_a_suffix() -> None:
    assert file_name(1, ".log") == "00000000000000000001.log"
    assert parse_name("00000000000000000001.log", ".log") == 1
    for stranger in ("1.log", "0000000000000000000x.log", "00000000000000000001.log.new", "LOCK"):
        assert parse_name(stranger, ".log") is None
