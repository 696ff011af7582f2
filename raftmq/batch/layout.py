"""The layout of a record batch, its limits, and the head, which a broker reads without decoding.

A batch holds the messages that one producer sends to one queue at once: a fixed head, a small CBOR
header, columns, and the bodies. Brokers store and forward the bytes as they are.

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 4 | crc | CRC-32C of bytes 36 to the end, continued over bytes 4 to 35 |
| 4 | 4 | magic | `RMB` and the format's version, 1 |
| 8 | 8 | queue | the queue's number |
| 16 | 8 | producer | the producer's id, 0: none |
| 24 | 8 | first_sequence | the producer's number of the first message, below 2^63 |
| 32 | 4 | epoch | the producer's epoch |
| 36 | 4 | flags | see `Flag` |
| 40 | 4 | count | messages, 1 to 65,536 |
| 44 | 4 | header_bytes | length of the CBOR header |
| 48 | 8 | base_ms | milliseconds since 1970, below 2^62: creation times are relative to it |
| 56 | 4 | columns_bytes | length of the columns |
| 60 | 4 | stored_bytes | length of the bodies as they stand in the batch |
| 64 | 4 | body_bytes | length of the bodies decompressed; `stored_bytes` if they are raw |
| 68 | 4 | key_hashes_at | where the u32 vector of key hashes starts, 0: no message has a key |
| 72 | header_bytes | header | one CBOR array: `[* [name, kind, nullable]]`, the property columns |
| | columns_bytes | columns | CBOR byte strings, one after the other: see below |
| | stored_bytes | bodies | joined without a gap, raw |

All integers are little-endian. Bytes 8 to 35 are the *stamp*: fields that are known only when the
batch is sent. The checksum reads them last, so that a new stamp reads 32 bytes and not all.

The columns stand in this order, those of a clear flag left out. `u32` and so on are CBOR byte
strings with the tag of a little-endian typed array (RFC 8746), `bytes` are untagged byte strings;
*text list* is `u32` lengths and `bytes` joined UTF-8; *codes* are u8, u16 or u32.

| flag | columns |
|---|---|
| KEYS | u32 key hashes, `crc32c(key)` or 1 if that is 0; 0 without a key |
| | u32 body lengths (always) |
| KEYS | u32 key lengths, 0xFFFFFFFF without a key; bytes joined keys |
| TAGS | text list of distinct tags; codes: 0 without a tag, else 1 + position in the list |
| DELIVERY | i64 delivery times in milliseconds since 1970, below 2^62; 0: at once |
| CREATED | i32 or i64 creation times, milliseconds after `base_ms` (before: negative) |
| PROPERTIES | for each column of the header: if nullable, bytes of a bitmap; the present values |

In the bitmap, bit i % 8 of byte i // 8 says that message i has a value.

| kind | values of a property column |
|---|---|
| 0 | i64 |
| 1 | f64 |
| 2 | u8, each 0 or 1 |
| 3 | text list, one a value |
| 4 | text list of distinct values; codes: position in the list |
| 5 | u32 lengths; bytes joined |

Values of several kinds under one name make several columns of that name, with disjoint bitmaps.

Invariants:
- The parts that `peek` returns lie within the buffer, and fill it to the last byte.
- No limit of `Limits` can be raised above the constants here, so replicas agree on what a batch is.

Sources: the columnar batches of Arrow; Kafka's record batch v2 (KIP-98) for the producer's stamp.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from raftmq.errors import CorruptRecord

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""No batch is longer, stored or decompressed, whatever the settings: half of the largest record."""
BATCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
"""The longest batch that brokers and producers allow by default."""
MESSAGES_MAX: Final = 65_536
"""Messages in a batch: bounds the work that one small compressed batch can cause."""
TIME_MS_MAX: Final = 2**62 - 1
"""The latest time: the sum of two fits into 64 bits."""
HEADER_BYTES_MAX: Final = 64 * 1024
"""The longest CBOR header: a hostile one of this size decodes to about 4 MiB of objects."""
LENGTH_BYTES: Final = 4
"""Bytes of a body's length in the columns: a batch has these for each message, not compressed."""
HEAD_BYTES: Final = 72
"""Bytes of the fixed head."""
EMPTY_HEADER: Final = b"\x80"
"""The CBOR header of a batch without properties: an empty array."""
NO_KEY: Final = 0xFFFFFFFF
"""The entry in the column of key lengths for a message without a key."""
MAGIC: Final = int.from_bytes(b"RMB\x01", "little")
"""Bytes 4 to 7; the last one is the version."""

STAMP_END: Final = 36
"""Bytes 0 to 35 depend on the stamp; the rest is final once encoded."""
STAMP = struct.Struct("<IQQQI")
"""Magic, queue, producer, first sequence, epoch: bytes 4 to 35."""
PRODUCER_AT: Final = 16
PRODUCER_BYTES: Final = 8
"""Where the producer's id stands in a batch, u64."""
FIXED = struct.Struct("<IIIqIIII")
"""Flags, count, header bytes and so on: bytes 36 to 71."""
_HEAD = struct.Struct("<IIQQQIIIIqIIII")
CRC = struct.Struct("<I")
assert _HEAD.size == HEAD_BYTES
assert STAMP.size == STAMP_END - CRC.size
assert FIXED.size == HEAD_BYTES - STAMP_END


class Flag(IntFlag):
    """Which columns a batch has and how its bodies are stored. Other bits: a newer format."""

    KEYS = 1
    """At least one message has a key."""
    TAGS = 2
    """At least one message has a tag."""
    DELIVERY = 4
    """At least one message is to be delivered later."""
    CREATED = 8
    """Creation times differ from `base_ms`."""
    PROPERTIES = 16
    """At least one message has a property; the header is not empty."""
    ZSTD = 32
    """The bodies are one zstd frame that states its content size."""
    LZ4 = 64
    """The bodies are one raw lz4 block."""


_KEYS: Final = Flag.KEYS.value
FLAGS_KNOWN: Final = 127
COMPRESSED: Final = 96


class PropertyKind(IntEnum):
    """The type of a property column, as it stands in the header."""

    INTEGER = 0
    """64-bit signed integers."""
    FLOAT = 1
    """64-bit floating point numbers."""
    BOOLEAN = 2
    """True and false."""
    TEXT = 3
    """Strings, each stored."""
    TEXT_CODED = 4
    """Strings, each distinct one stored once."""
    BINARY = 5
    """Byte strings."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds that encoders and decoders enforce. Lower them, never raise them."""

    batch_bytes_max: int = BATCH_BYTES_MAX
    """Bytes of a whole batch, both as stored and with its bodies decompressed."""
    messages_max: int = MESSAGES_MAX
    """Messages in a batch."""
    key_bytes_max: int = 4 * 1024
    """Bytes of one key in UTF-8: keys are copied into indexes."""
    tag_bytes_max: int = 255
    """Bytes of one tag in UTF-8."""
    property_columns_max: int = 256
    """Property columns: distinct pairs of name and kind within a batch."""
    name_bytes_max: int = 127
    """Bytes of one property name in UTF-8."""

    def __post_init__(self) -> None:
        assert 0 < self.batch_bytes_max <= BATCH_BYTES_MAX, self
        assert 0 < self.messages_max <= MESSAGES_MAX, self
        # So that the header stays within HEADER_BYTES_MAX.
        assert 0 <= self.property_columns_max <= 256, self
        assert 0 < self.name_bytes_max <= 127, self


class BatchHead(NamedTuple):
    """The fixed head, read by `peek`."""

    crc: int
    """CRC-32C over the whole batch; `verify` checks it."""
    magic: int
    """`MAGIC` in every batch."""
    queue: int
    """The queue's number."""
    producer: int
    """The producer's id; 0: none."""
    first_sequence: int
    """The producer's number of the first message; the others follow by one."""
    epoch: int
    """The producer's epoch."""
    flags: int
    """A sum of `Flag` values, as a plain integer."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use here
    """Messages in the batch, at least 1."""
    header_bytes: int
    """Length of the CBOR header."""
    base_ms: int
    """Milliseconds since 1970 by the producer's clock, at most `TIME_MS_MAX`."""
    columns_bytes: int
    """Length of the columns."""
    stored_bytes: int
    """Length of the bodies as stored."""
    body_bytes: int
    """Length of the bodies when decompressed."""
    key_hashes_at: int
    """Where `count` little-endian u32 key hashes start in the batch; 0: no message has a key."""


def peek(payload: bytes | memoryview, *, bytes_max: int = BATCH_BYTES_MAX) -> BatchHead:
    """Read the fixed head and check that its lengths fill `payload`; neither CRC nor columns.

    The default of `bytes_max` is the hard limit, so that every replica gives the same verdict.

    Raises:
        CorruptRecord: this is not one whole batch within the limits.
    """
    size = len(payload)
    if size < HEAD_BYTES:
        raise CorruptRecord(f"batch of {size} bytes is cut inside its head", position=0)
    head = tuple.__new__(BatchHead, _HEAD.unpack_from(payload))
    (_, magic, _, _, first, _, flags, count, header, base, columns, stored, body, hashes) = head
    if (
        magic != MAGIC
        or HEAD_BYTES + header + columns + stored != size
        or size > bytes_max
        or not 0 < count <= MESSAGES_MAX
        or flags > FLAGS_KNOWN
        or first >> 63
        or not 0 <= base <= TIME_MS_MAX
        or header > HEADER_BYTES_MAX
        or hashes != key_hashes_at(flags, count, header)
        or (hashes and hashes + 4 * count > size - stored)
        or (body > bytes_max or flags & COMPRESSED == COMPRESSED)
        or (body != stored and not flags & COMPRESSED)
    ):
        raise CorruptRecord(_what_is_wrong(head, size, bytes_max), position=0)
    return head


def verify(payload: bytes | memoryview, *, bytes_max: int = BATCH_BYTES_MAX) -> BatchHead:
    """As `peek`, and check the CRC: the bytes are those that the producer encoded.

    Raises:
        CorruptRecord: as `peek`, or the checksum differs.
    """
    head = peek(payload, bytes_max=bytes_max)
    if checksum(payload) != head.crc:
        raise CorruptRecord("batch fails its CRC-32C", position=0)
    return head


def checksum(payload: bytes | memoryview) -> int:
    """The right value of this batch's `crc` field."""
    # google_crc32c refuses a memoryview. A numpy array spares the copy, 12 of 80 us for 1 MiB, but
    # a program that only reads would import numpy for that.
    tail = google_crc32c.value(bytes(payload[STAMP_END:]))
    crc: int = google_crc32c.extend(tail, bytes(payload[CRC.size : STAMP_END]))
    return crc


def key_hashes_at(flags: int, count: int, header_bytes: int) -> int:
    """Byte of the batch where the vector of key hashes starts: the content of the first column."""
    if not flags & _KEYS:
        return 0
    size = 4 * count
    head_bytes = 3 if size < 24 else 4 if size < 0x100 else 5 if size < 0x10000 else 7
    return HEAD_BYTES + header_bytes + head_bytes


def _what_is_wrong(head: BatchHead, size: int, bytes_max: int) -> str:
    if head.magic != MAGIC:
        if head.magic & 0xFFFFFF == MAGIC & 0xFFFFFF:
            return f"batch of format version {head.magic >> 24}; this software reads version 1"
        return "not a batch: the magic bytes differ"
    if max(size, head.body_bytes) > bytes_max:
        return f"batch of {max(size, head.body_bytes)} bytes; the limit is {bytes_max}"
    parts = HEAD_BYTES + head.header_bytes + head.columns_bytes + head.stored_bytes
    if parts != size:
        return f"batch of {size} bytes whose parts add up to {parts}"
    if not 0 < head.count <= MESSAGES_MAX:
        return f"batch of {head.count} messages; the limits are 1 and {MESSAGES_MAX}"
    if head.flags > FLAGS_KNOWN:
        return f"batch of a newer format: flags {head.flags:#x}"
    if head.flags & COMPRESSED == COMPRESSED:
        return "batch whose bodies are both zstd and lz4"
    if head.body_bytes != head.stored_bytes and not head.flags & COMPRESSED:
        return f"bodies of {head.stored_bytes} bytes, stated as {head.body_bytes}"
    if head.first_sequence >> 63:
        return f"first sequence {head.first_sequence} is above 2^63 - 1"
    if not 0 <= head.base_ms <= TIME_MS_MAX:
        return f"base time {head.base_ms} is not within 0 and 2^62 - 1"
    if head.header_bytes > HEADER_BYTES_MAX:
        return f"batch header of {head.header_bytes} bytes; the limit is {HEADER_BYTES_MAX}"
    return f"key hashes at {head.key_hashes_at}, which is not where they belong"
