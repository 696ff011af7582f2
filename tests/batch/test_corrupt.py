"""Damaged and hostile batches: `CorruptRecord` and nothing else, in bounded time and memory.

All batches here have a right checksum (`resealed`), as those of a hostile producer would.
"""

import random
import struct
import tracemalloc

import cbor2
import numpy as np
import pytest
import zstandard

from raftmq.batch import HEAD_BYTES, Batch, BatchHead, Compression, Flag, Limits, encode, peek
from raftmq.batch.columns import F64, I32, I64, PLAIN, U8, U16, U32, codes, column, joined, vector
from raftmq.batch.layout import (
    CRC,
    FIXED,
    MAGIC,
    STAMP,
    PropertyKind,
    checksum,
    key_hashes_at,
)
from raftmq.errors import CorruptRecord


def resealed(payload: bytes) -> bytes:
    """The batch with the checksum that fits its bytes."""
    return CRC.pack(checksum(payload)) + payload[CRC.size :]


def made(
    columns: list[bytes],
    *,
    flags: int = 0,
    count: int = 2,
    header: bytes = b"\x80",
    body: bytes = b"",
    body_bytes: int | None = None,
) -> bytes:
    """A batch of these parts whose head and checksum are right."""
    content = b"".join(columns)
    size = len(body) if body_bytes is None else body_bytes
    at = key_hashes_at(flags, count, len(header))
    fixed = FIXED.pack(flags, count, len(header), 0, len(content), len(body), size, at)
    stamp = STAMP.pack(MAGIC, 1, 0, 0, 0)
    return resealed(bytes(CRC.size) + stamp + fixed + header + content + body)


def refused(payload: bytes, match: str) -> None:
    """Decoding and reading this batch fails with this message."""
    with pytest.raises(CorruptRecord, match=match):
        Batch.decode(payload).validate()


EMPTY = vector(U32, [0, 0])
"""The body lengths of two empty bodies."""
ONE_PROPERTY = cbor2.dumps([["n", 0, False]])


def with_property(kind: int, *columns: bytes, nullable: bool = False) -> bytes:
    """Two empty messages and one property column."""
    header = cbor2.dumps([["n", kind, nullable]])
    return made([EMPTY, *columns], flags=Flag.PROPERTIES, header=header)


def test_batch_made_by_hand_decodes() -> None:
    Batch.decode(made([EMPTY])).validate()
    Batch.decode(with_property(0, vector(I64, [1, 2]))).validate()


HASHES = vector(U32, [0, 0])
KEYS, TAGS = Flag.KEYS.value, Flag.TAGS.value
TWO_TAGS = joined([b"a", b"b"])


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (made([]), "no column of tag 70"),
        (made([vector(U32, [0])]), "4 bytes where 8 are needed"),
        (made([vector(U32, [0, 0, 0])]), "12 bytes where 8 are needed"),
        (made([column(U32, bytes(7))]), "not a vector"),
        (made([vector(U16, [0, 0, 0, 0])]), "no column of tag 70"),
        (made([column(PLAIN, bytes(8))]), "no column of tag 70"),
        (made([EMPTY, b"x"]), "1 bytes follow the last column"),
        (made([EMPTY, EMPTY]), "follow the last column"),
        (made([EMPTY[:-1]]), "column of 8 bytes, 7 are left"),
        (made([b"\xd8\x46\x58\x08" + bytes(8)]), "shortest form"),
        (made([b"\xd8\x46\x5b" + bytes(16)]), "no byte string"),
        (made([b"\xd8\x46\x5a\xff\xff\xff\xff"]), "4294967295 bytes, 0 are left"),
        (made([b"\xd8\x46\x5f\x48" + bytes(8) + b"\xff"]), "no byte string"),
        (made([b"\xd8\x46"]), "no column of tag 70"),
        (made([b"\xd8\x46\x59"]), "no byte string"),
        (made([vector(U32, [1, 0])]), "add up to 1, the content has 0"),
        (made([vector(U32, [2**32 - 1, 1])]), "add up to 4294967296"),
        (made([vector(U32, [1, 0])], body=b"two"), "add up to 1, the content has 3"),
        (made([HASHES, EMPTY, vector(U32, [1, 1]), column(PLAIN, b"a")], flags=KEYS), "add up"),
        (made([HASHES, EMPTY, vector(U32, [5000, 0]), column(PLAIN, b"a")], flags=KEYS), "limit"),
        (made([HASHES, EMPTY, vector(U32, [1, 0]), column(PLAIN, b"\xff")], flags=KEYS), "UTF-8"),
        (made([HASHES, EMPTY, joined([b"\xc3", b"\xa4"])], flags=KEYS), "UTF-8"),
        (made([HASHES, EMPTY, joined([b"a", b"b"])], flags=KEYS), "key hashes are not"),
        (made([EMPTY, TWO_TAGS, codes([1, 3], 4)], flags=TAGS), "tag code 3, and 2 tags"),
        (made([EMPTY, TWO_TAGS, vector(U32, [0, 2**32 - 1])], flags=TAGS), "tag code 4294967295"),
        (made([EMPTY, joined([b"a", b"a"]), codes([1, 2], 3)], flags=TAGS), "stands twice"),
        (made([EMPTY, joined([b""] * 3), codes([1, 2], 4)], flags=TAGS), "more entries"),
        (made([EMPTY, joined([b"x" * 256]), codes([1, 1], 2)], flags=TAGS), "tag of 256 bytes"),
        (made([EMPTY, joined([b"\xff"]), codes([1, 1], 2)], flags=TAGS), "UTF-8"),
        (made([EMPTY, TWO_TAGS, vector(I64, [0, 1])], flags=TAGS), "no column of tag 64"),
        (made([EMPTY, vector(I64, [0, -1])], flags=Flag.DELIVERY), "time is out of range"),
        (made([EMPTY, vector(I64, [0, 2**62])], flags=Flag.DELIVERY), "time is out of range"),
        (made([EMPTY, vector(I64, [0, -(2**63)])], flags=Flag.CREATED), "time is out of range"),
        (made([EMPTY, vector(I32, [0])], flags=Flag.CREATED), "4 bytes where 8"),
        (made([EMPTY, vector(U32, [0, 0])], flags=Flag.CREATED), "no column of tag 78"),
        (made([EMPTY], header=ONE_PROPERTY), "header and flags do not agree"),
        (made([EMPTY], flags=Flag.PROPERTIES), "header and flags do not agree"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b""), "not CBOR"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\x80\x80"), "not one CBOR array"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\xa0"), "not one CBOR array"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\x9f\xff"), "not CBOR"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\xd8\x23\x61a"), "not CBOR"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\x9b" + b"\xff" * 8), "not CBOR"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=b"\x81" * 40 + b"\x80"), "not CBOR"),
        (made([EMPTY], flags=Flag.PROPERTIES, header=ONE_PROPERTY), "no column of tag 79"),
        (with_property(0, vector(I64, [1])), "8 bytes where 16"),
        (with_property(0, vector(F64, [1.0, 2.0])), "no column of tag 79"),
        (with_property(1, vector(I64, [1, 2])), "no column of tag 86"),
        (with_property(2, column(U8, b"\x00\x02")), "code 2 where 1 is the highest"),
        (with_property(3, joined([b"a", b"\xff"])), "UTF-8"),
        (with_property(3, vector(U32, [1, 1]), column(PLAIN, b"a")), "add up"),
        (with_property(4, joined([b"a"]), codes([0, 1], 2)), "code 1 where 0 is the highest"),
        (with_property(4, joined([b"a"] * 3), codes([0, 1], 3)), "more entries"),
        (with_property(4, joined([]), codes([0, 0], 1)), "code 0 where -1 is the highest"),
        (with_property(5, vector(U32, [9, 9]), column(PLAIN, b"a")), "add up"),
        (with_property(0, column(PLAIN, b"\x04"), vector(I64, [1]), nullable=True), "beyond"),
        (with_property(0, column(PLAIN, b"\x01"), vector(I64, [1, 2]), nullable=True), "needed"),
        (with_property(0, column(PLAIN, b"\x01\x00"), vector(I64, [1]), nullable=True), "needed"),
    ],
)
def test_hostile_columns_are_refused(payload: bytes, match: str) -> None:
    refused(payload, match)


@pytest.mark.parametrize(
    "entry",
    [
        ["n", 6, False],
        ["n", -1, False],
        ["n", True, False],
        ["n", 0, 1],
        ["n", 0],
        ["n", 0, False, 0],
        ["", 0, False],
        ["x" * 128, 0, False],
        ["ä" * 64, 0, False],
        [b"n", 0, False],
        [None, 0, False],
        [["n"], 0, False],
        {"n": 0},
        0,
        2**64 - 1,
    ],
)
def test_hostile_description_of_a_property_is_refused(entry: object) -> None:
    header = cbor2.dumps([entry])
    payload = made([EMPTY, vector(I64, [1, 2])], flags=Flag.PROPERTIES, header=header)
    refused(payload, "does not describe")


def test_two_values_of_one_property_in_one_message_are_refused() -> None:
    both = cbor2.dumps([["n", 0, False], ["n", 1, False]])
    columns = [EMPTY, vector(I64, [1, 2]), vector(F64, [1.0, 2.0])]
    refused(made(columns, flags=Flag.PROPERTIES, header=both), "two values in one message")
    nullable = cbor2.dumps([["n", 0, True], ["n", 0, True]])
    columns = [EMPTY, *(column(PLAIN, bytes((bit,))) + vector(I64, [1]) for bit in (1, 2))]
    refused(made(columns, flags=Flag.PROPERTIES, header=nullable), "two values in one message")


def test_too_many_property_columns_are_refused() -> None:
    header = cbor2.dumps([[f"n{i}", 2, True] for i in range(257)])
    columns = [EMPTY, *[column(PLAIN, b"\0") + column(U8, b"")] * 257]
    refused(made(columns, flags=Flag.PROPERTIES, header=header), "257 property columns")


def packed(body: bytes, flag: Flag) -> bytes:
    """A compressed batch of one body."""
    compression = Compression.LZ4 if flag is Flag.LZ4 else Compression.ZSTD
    return encode([body], compression=compression).to_bytes(queue=1)


@pytest.mark.parametrize("flag", [Flag.LZ4, Flag.ZSTD])
@pytest.mark.parametrize("body_bytes", [0, 9_999, 10_001, 32 * 1024 * 1024 - 200])
def test_compressed_bodies_of_another_size_are_refused(flag: Flag, body_bytes: int) -> None:
    good = packed(b"abcd" * 2_500, flag)
    stored = good[-peek(good).stored_bytes :]
    lengths = [vector(U32, [body_bytes])]
    bad = made(lengths, flags=flag, count=1, body=stored, body_bytes=body_bytes)
    refused(bad, "do not decompress to the stated")


@pytest.mark.parametrize("flag", [Flag.LZ4, Flag.ZSTD])
def test_damaged_compressed_bodies_give_an_error_or_other_bytes(flag: Flag) -> None:
    good = packed(b"abcdefgh" * 100, flag)
    start = len(good) - peek(good).stored_bytes
    errors = 0
    for position in range(start, len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x55
        try:
            Batch.decode(resealed(bytes(damaged))).validate()
        except CorruptRecord:
            errors += 1
    assert errors > 0


def peak_bytes(payload: bytes) -> int:
    """The most memory that decoding and reading the batch takes, refused or not."""
    tracemalloc.start()
    try:
        Batch.decode(payload).validate()
    except CorruptRecord:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_decompression_bomb_takes_no_more_than_the_stated_size() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(256 * 1024 * 1024))
    assert len(bomb) < 32 * 1024
    for stated in (1000, 1024 * 1024):
        payload = made(
            [vector(U32, [stated])], flags=Flag.ZSTD, count=1, body=bomb, body_bytes=stated
        )
        assert peak_bytes(payload) < 2 * 1024 * 1024
        refused(payload, "do not decompress")


def test_zstd_frame_that_hides_its_size_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    payload = made([vector(U32, [1000])], flags=Flag.ZSTD, count=1, body=hidden, body_bytes=1000)
    refused(payload, "do not decompress")


def test_second_zstd_frame_is_refused() -> None:
    twice = zstandard.ZstdCompressor().compress(bytes(1000)) * 2
    payload = made([vector(U32, [1000])], flags=Flag.ZSTD, count=1, body=twice, body_bytes=1000)
    refused(payload, "do not decompress")


def test_hostile_header_takes_bounded_memory() -> None:
    for item in (b"\x80", b"\xa0", b"\x81\x80", b"\x60"):
        count = 65_000 // len(item)
        header = b"\x9a" + struct.pack(">I", count) + item * count
        payload = made([EMPTY], flags=Flag.PROPERTIES, header=header)
        assert peak_bytes(payload) < 8 * 1024 * 1024


def test_absent_properties_take_no_memory() -> None:
    # 256 columns of 65,536 messages, all absent: 17 million nulls in 2 MiB.
    count = 65_536
    header = cbor2.dumps([[f"n{i}", 2, True] for i in range(256)])
    columns = [vector(U32, [0] * count)]
    columns += [column(PLAIN, bytes(count // 8)) + column(U8, b"")] * 256
    payload = made(columns, flags=Flag.PROPERTIES, header=header, count=count)
    tracemalloc.start()
    batch = Batch.decode(payload)
    assert all(not m.props for m in batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 1024 * 1024


def samples() -> list[bytes]:
    """Batches that between them have every kind of column."""
    count = 70
    everything = {
        "keys": [None if i % 5 == 0 else f"key-{i}" for i in range(count)],
        "tags": [None if i % 7 == 0 else f"tag {i % 3}" for i in range(count)],
        "props": [
            {"i": i, "f": i / 2, "b": i % 2 == 0, "t": f"ä{i}", "c": "xy"[i % 2], "y": b"\xff"}
            if i % 3
            else {"i": f"mixed {i}"}
            for i in range(count)
        ],
        "deliver_at_ms": [i % 2 * 10**12 for i in range(count)],
        "created_ms": [10**12 + i for i in range(count)],
        "base_ms": 10**12,
    }
    bodies = [b"body %d " % i * (i % 4) for i in range(count)]
    small = {name: values[:3] for name, values in everything.items() if isinstance(values, list)}
    return [
        encode(bodies, **everything).to_bytes(queue=1),  # type: ignore[arg-type]
        encode(bodies[:3], **small).to_bytes(queue=1),  # type: ignore[arg-type]
        encode([b"x"]).to_bytes(queue=1),
        encode(bodies, compression=Compression.ZSTD, tags=["t"] * count).to_bytes(queue=1),
        encode(bodies, compression=Compression.LZ4, keys=["k"] * count).to_bytes(queue=1),
    ]


HOSTILE = [b"\0", b"\xff" * 4, b"\xff" * 8, b"\x5a\xff\xff\xff\xff", b"\x9b" + b"\xff" * 8, b"\x80"]


def mutated(random_: random.Random, payload: bytes) -> bytes:
    """One to three damages behind the stamp, and often lengths that hide them."""
    data = bytearray(payload)
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(36, len(data))
        match random_.randrange(6):
            case 0:
                data[at] ^= 1 << random_.randrange(8)
            case 1:
                data[at] = random_.randrange(256)
            case 2:
                del data[at : at + random_.randint(1, 9)]
            case 3:
                data[at:at] = random_.randbytes(random_.randint(1, 9))
            case 4:
                hostile = random_.choice(HOSTILE)
                data[at : at + len(hostile)] = hostile
            case _:
                start = random_.randrange(36, len(data))
                data[at:at] = data[start : start + random_.randint(1, 40)]
    # Let the columns take up the difference, so that the sum alone does not show the damage.
    difference = len(data) - len(payload)
    if difference and len(data) >= HEAD_BYTES and random_.random() < 0.8:
        (columns_bytes,) = struct.unpack_from("<I", payload, 56)
        struct.pack_into("<I", data, 56, max(0, columns_bytes + difference))
    return resealed(bytes(data))


def read_all(payload: bytes) -> bool:
    """Use every accessor; False if the batch was refused."""
    try:
        batch = Batch.decode(payload)
        batch.validate()
        for accessor in (batch.tags, batch.key_hashes, batch.created_ms, batch.deliver_at_ms):
            assert accessor is None or isinstance(accessor, tuple | np.ndarray)
        for property_column in batch.columns:
            assert len(property_column.to_list()) == len(batch)
            assert property_column.values is not None
        for position in (0, len(batch) - 1):
            batch.body(position), batch.key(position), batch.tag(position), batch.props(position)
    except CorruptRecord:
        return False
    return True


def test_mutated_batches_are_refused_or_read() -> None:
    random_ = random.Random(20_261_120)
    originals = samples()
    assert all(map(read_all, originals))
    survived = sum(read_all(mutated(random_, random_.choice(originals))) for _ in range(12_000))
    # Damage to a body or a value is not an error once the checksum fits; to lengths it is.
    assert 500 < survived < 9_000


def test_each_accessor_alone_gives_only_typed_errors() -> None:
    random_ = random.Random(7)
    originals = samples()
    accessors = ("bodies", "keys", "tags", "columns", "created_ms", "deliver_at_ms", "key_hashes")
    refusals = 0
    for _ in range(6_000):
        payload = mutated(random_, random_.choice(originals))
        try:
            batch = Batch.decode(payload)
            getattr(batch, random_.choice(accessors))
            for property_column in batch.columns:
                _ = property_column.values, property_column.present, property_column.dictionary
        except CorruptRecord:
            refusals += 1
    assert refusals > 1_000


def test_verdict_does_not_depend_on_how_the_bytes_are_held() -> None:
    random_ = random.Random(3)
    originals = samples()
    for _ in range(300):
        payload = mutated(random_, random_.choice(originals))
        assert read_all(payload) == read_all(memoryview(payload))  # type: ignore[arg-type]


def test_peek_reads_only_the_head() -> None:
    good = samples()[0]
    columns_gone = good[:HEAD_BYTES] + bytes(len(good) - HEAD_BYTES)
    assert isinstance(peek(columns_gone), BatchHead)
    assert not read_all(columns_gone)


def test_tighter_limits_refuse_what_wider_ones_take() -> None:
    payload = encode([b""], keys=["k" * 10], tags=["t" * 10], props=[{"name": 1}]).to_bytes(queue=1)
    Batch.decode(payload, limits=Limits()).validate()
    for limits in (
        Limits(key_bytes_max=9),
        Limits(tag_bytes_max=9),
        Limits(name_bytes_max=3),
        Limits(property_columns_max=0),
        Limits(batch_bytes_max=len(payload) - 1),
    ):
        with pytest.raises(CorruptRecord):
            Batch.decode(payload, limits=limits).validate()


def test_property_that_cannot_be_read_is_refused_each_time_and_bodies_are_read() -> None:
    batch = Batch.decode(with_property(PropertyKind.INTEGER, vector(F64, [0.5, 1.5])))
    assert batch.bodies == [b"", b""]
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="no column of tag"):
            batch.props(0)
