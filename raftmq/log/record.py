"""One record: a Raft entry as bytes, the same on disk, on the wire and in the cache.

The leader encodes a record once; followers check its CRC and write the bytes as they came.

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 4 | crc | CRC-32C of all bytes from offset 4 to the end of the record |
| 4 | 4 | length | bytes of the whole record, this header included |
| 8 | 8 | index | position in the Raft log, from 1 |
| 16 | 8 | term | term of the leader that created it |
| 24 | 8 | timestamp | milliseconds since 1970 by the leader's clock, never falling in a log |
| 32 | 4 | chain | crc of the record at index - 1, zero for the first record of a log |
| 36 | 1 | kind | see `Kind` |
| 37 | 1 | version | of the payload's format; a machine applies no newer one |
| 38 | 2 | reserved | zero |
| 40 | n | payload | opaque bytes |

All integers are little-endian.

Invariants:
- `encoded` holds everything: every other field of a `Record` can be read back from it.
- Two records with the same index and term have the same bytes, and so have all before them: the
  chain makes a record that was copied from elsewhere, or a missing one before it, visible.

Sources: Raft §5.3 (log matching); Kafka's and LevelDB's checksummed records; the hash chain of
Protocol-Aware Recovery (FAST '18) §3.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from raftmq.errors import CorruptRecord

HEADER_BYTES = 40
RECORD_BYTES_MAX = 64 * 1024 * 1024
"""No record is larger: a hostile or damaged length is refused before memory is spent on it."""

_VIEW_BYTES_MIN = 16 * 1024
"""From this size on a view costs less than a copy. The checksum takes no memoryview."""

_HEADER = struct.Struct("<IIQQqIBBH")
_AFTER_CRC = struct.Struct("<IQQqIBBH")
_CRC = struct.Struct("<I")
assert _HEADER.size == HEADER_BYTES


class Kind(IntEnum):
    """The kinds of payloads."""

    NOOP = 0
    """Empty: a new leader's first entry (Raft §8)."""
    BATCH = 1
    """One producer's batch of messages for one queue, as columns (`raftmq.batch`)."""
    COMMANDS = 2
    """Commands to the replicated machine, as CBOR."""
    MEMBERSHIP = 3
    """A change of the group's members, for consensus itself."""
    CHECKSUM = 4
    """The leader's checksum of a snapshot, which other replicas compare with their own."""


class Record(NamedTuple):
    """A decoded header beside the bytes it came from. Make one with `encode` or `decode`."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which has no use here
    term: int
    kind: int
    version: int
    timestamp: int
    crc: int
    chain: int
    encoded: bytes

    @property
    def payload(self) -> memoryview:
        """The opaque bytes after the header, without a copy."""
        return memoryview(self.encoded)[HEADER_BYTES:]

    @property
    def held_payload(self) -> bytes | memoryview:
        """The payload for an answer that may wait to be sent: of a small record a copy, as a view
        of its own takes 200 bytes more than it counts, and holds the record."""
        if len(self.encoded) < _VIEW_BYTES_MIN:
            return self.encoded[HEADER_BYTES:]
        return self.payload


_new = tuple.__new__


def encode(
    payload: bytes,
    *,
    index: int,
    term: int,
    kind: int,
    timestamp: int,
    chain: int,
    version: int = 1,
) -> Record:
    """Build the record of `payload`; its bytes are final.

    >>> record = encode(b"hi", index=1, term=1, kind=Kind.BATCH, timestamp=0, chain=0)
    >>> len(record.encoded), bytes(record.payload)
    (42, b'hi')
    >>> decode(record.encoded) == record
    True
    """
    length = HEADER_BYTES + len(payload)
    assert length <= RECORD_BYTES_MAX, f"record of {length} bytes"
    head = _AFTER_CRC.pack(length, index, term, timestamp, chain, kind, version, 0)
    crc = google_crc32c.extend(google_crc32c.value(head), payload)
    encoded = b"".join((_CRC.pack(crc), head, payload))
    return Record(index, term, kind, version, timestamp, crc, chain, encoded)


def decode(buffer: bytes, position: int = 0) -> Record:
    """Read and check the record that starts at `position`.

    Raises:
        CorruptRecord: the bytes are cut short, the length is impossible, or the CRC differs.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptRecord("cut inside a record's header", position=position)
    crc, length, index, term, timestamp, chain, kind, version, reserved = _HEADER.unpack_from(
        buffer, position
    )
    if not HEADER_BYTES <= length <= RECORD_BYTES_MAX:
        raise CorruptRecord(f"impossible record length {length}", position=position)
    if position + length > len(buffer):
        raise CorruptRecord("cut inside a record's payload", position=position)
    encoded = buffer[position : position + length]
    if _checksum(encoded) != crc:
        raise CorruptRecord("record fails its CRC-32C", position=position)
    if reserved:
        raise CorruptRecord("record of a newer format: reserved bits are set", position=position)
    # Half the time of `Record(...)`, and this runs for each record that a follower receives.
    return _new(Record, (index, term, kind, version, timestamp, crc, chain, encoded))


def _checksum(encoded: bytes) -> int:
    """The right value of a record's `crc` field."""
    if len(encoded) < _VIEW_BYTES_MIN:
        crc: int = google_crc32c.value(encoded[_CRC.size :])
    else:
        import numpy as np  # here, as clients read this module and start without numpy

        crc = google_crc32c.value(np.frombuffer(encoded, np.uint8, offset=_CRC.size))
    return crc


def decode_many(buffer: bytes, position: int = 0) -> list[Record]:
    """Read the records that fill `buffer` from `position` to its end, each checked.

    Raises:
        CorruptRecord: as `decode`; nothing is returned of a damaged buffer.
    """
    records = []
    end = len(buffer)
    while position < end:
        record = decode(buffer, position)
        records.append(record)
        position += len(record.encoded)
    return records
