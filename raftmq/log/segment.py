"""The layout of a segment file, byte by byte, and the small values that describe a segment.

A segment is one file, named by the first index it was begun for (`00000000000000004711.log`): a
header, then frames. A frame is a record (`raftmq.log.record`) or a *sync mark*. Files only grow;
nothing in them is overwritten. A record whose index is not above the one before supersedes that
index and all above it, in this segment and in those before (Raft's truncation of a conflicting
suffix, done by writing on).

Header, 72 bytes, integers little-endian:

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | magic | `RAFTMQLG` |
| 8 | 4 | crc | CRC-32C of bytes 12 to 72 |
| 12 | 1 | version | 1 |
| 13 | 1 | flags | bit 0: the log was replaced by a snapshot here; older segments are void |
| 14 | 2 | reserved | zero |
| 16 | 8 | sequence | segments of a log are numbered 1, 2, 3, ... in the order they were begun |
| 24 | 8 | first | the index in the file's name |
| 32 | 8 | cluster | hash of the cluster's id |
| 40 | 8 | node | the node's number |
| 48 | 8 | group | the partition group's number |
| 56 | 8 | previous_term | term of the record at first - 1 |
| 64 | 4 | previous_crc | crc of that record, to which the first record chains |
| 68 | 4 | reserved | zero |

Mark, 64 bytes, the first frame of every write and of every file:

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | magic | `f7 "RQ" f8 "SYNC"`; bytes 4 to 8 are no possible record length |
| 8 | 4 | crc | CRC-32C of bytes 12 to 64, seeded with the header's crc |
| 12 | 1 | version | 1 |
| 13 | 3 | reserved | zero |
| 16 | 8 | position | where in the file this mark stands |
| 24 | 8 | durable | all of the file before this byte was synced when the mark was written |
| 32 | 8 | term | Raft hard state: current term |
| 40 | 8 | vote | the member that this node voted for in that term; 0: none |
| 48 | 8 | commit | committed index, at most that of the last record before this mark |
| 56 | 8 | last | index of the last record before this mark |

Marks tell a crash from damage in a file: see `raftmq.log.recovery`.

Invariants:
- A name ending in `.log` is given (by rename) only after header and first mark are durable.
- A new segment's name is above all other names of the log, so names sort as sequences do, except
  while a snapshot is replacing the log; the sequence decides then.
- A mark holds only in its own file and place: its crc is seeded by the header, and it names its
  position. In another place it is evidence that bytes before it are missing.

Left out: preallocation. An extending `fdatasync` costs a journal commit either way on ext4.

Sources: etcd's WAL (superseding by writing on); Kafka (files named by base offset); "Redundancy
Does Not Imply Fault Tolerance" (FAST '17) and Protocol-Aware Recovery (FAST '18) §3.4 (telling a
crash from corruption by a later persistent record).
"""

import struct
from hashlib import blake2b
from typing import NamedTuple

import google_crc32c

from raftmq.log.faults import UnsupportedFormat, WrongLog

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".snapshot"
PARTIAL_SUFFIX = ".partial"
"""A snapshot being received, resumable after a restart."""
VOID_SUFFIX = ".void"
"""A marker while old segments are removed: those with a lower sequence than in its name are void.
"""

HEADER_BYTES = 72
MARK_BYTES = 64
FORMAT_VERSION = 1
MARK_MAGIC = b"\xf7RQ\xf8SYNC"

_HEADER_MAGIC = b"RAFTMQLG"
_HEADER = struct.Struct("<8sIBBHQQQQQQII")
_HEADER_AFTER_CRC = struct.Struct("<BBHQQQQQQII")
_MARK = struct.Struct("<8sIB3xQQQQQQ")
_MARK_AFTER_CRC = struct.Struct("<B3xQQQQQQ")
_MARK_START = struct.Struct("<8sI")
_REPLACED = 1
assert _HEADER.size == HEADER_BYTES
assert _MARK.size == MARK_BYTES


class Identity(NamedTuple):
    """The owner of a log: a folder with the log of another owner is refused."""

    cluster: str
    """The cluster's id."""
    node: int
    """The node's number."""
    group: int
    """The partition group's number."""

    def cluster_hash(self) -> int:
        """The 8 bytes that stand for the cluster in files."""
        digest = blake2b(self.cluster.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class HardState(NamedTuple):
    """Raft's persistent state beside the log: it must be on disk before a message that depends on
    it is sent (Raft figure 2)."""

    term: int = 0
    """Latest term this node has seen; never falls."""
    vote: int = 0
    """The member that it voted for in that term; 0: none."""
    commit: int = 0
    """Highest index it knows to be committed; may be written lazily."""


class Link(NamedTuple):
    """The fields of a record that its successor depends on. All are zero before the first record of
    a log."""

    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which has no use here
    term: int = 0
    crc: int = 0
    """The successor's `chain`."""
    timestamp: int = 0
    """The successor's timestamp is not lower."""


class SegmentInfo(NamedTuple):
    """The bounds of a segment: it holds the records [base, last]; none if `last < base`."""

    name: int
    """The index in its file's name; never changes."""
    base: int
    """First index that is live in it; below `name` after a conflicting suffix was superseded."""
    last: int | None
    """Last index that is live in it; None for the active segment, which is still written."""


class SegmentSize(NamedTuple):
    """The size and age of a segment, for retention."""

    base: int
    """First record."""
    last: int
    """Last record."""
    bytes: int
    """Size of the segment's file."""
    last_timestamp: int
    """Timestamp of the last record in ms; 0 if it holds none."""


class Header(NamedTuple):
    """A segment's header."""

    sequence: int
    first: int
    identity: tuple[int, int, int]
    """Cluster hash, node, group."""
    previous_term: int
    previous_crc: int
    replaced: bool
    """The log was replaced by a snapshot at `first - 1`: older segments are void."""
    crc: int


class Mark(NamedTuple):
    """A sync mark."""

    position: int
    durable: int
    hard_state: HardState
    last: int


def file_name(index: int, suffix: str) -> str:
    """The name of a file of a log.

    >>> file_name(4711, SEGMENT_SUFFIX)
    '00000000000000004711.log'
    """
    return f"{index:020d}{suffix}"


def parse_name(name: str, suffix: str) -> int | None:
    """The index in a file's name, or None if the name has another suffix or form.

    >>> parse_name("00000000000000004711.log", ".log"), parse_name("LOCK", ".log")
    (4711, None)
    """
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_header(
    identity: Identity, *, sequence: int, previous: Link, replaced: bool
) -> tuple[bytes, int]:
    """The header of the segment that begins after `previous`, and its crc (the marks' seed)."""
    assert sequence >= 1, "segments are numbered from 1"
    body = _HEADER_AFTER_CRC.pack(
        FORMAT_VERSION,
        _REPLACED if replaced else 0,
        0,
        sequence,
        previous.index + 1,
        identity.cluster_hash(),
        identity.node,
        identity.group,
        previous.term,
        previous.crc,
        0,
    )
    crc = google_crc32c.value(body)
    return _MARK_START.pack(_HEADER_MAGIC, crc) + body, crc


def decode_header(data: bytes) -> Header | None:
    """The header in the first 72 bytes, or None if they hold none.

    Raises:
        UnsupportedFormat: the header checks out and is of a newer version.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, version, flags, _, sequence, first, cluster, node, group, term, chain, _ = (
        _HEADER.unpack_from(data)
    )
    if magic != _HEADER_MAGIC or google_crc32c.value(data[12:HEADER_BYTES]) != crc:
        return None
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"segment format {version}; this software reads up to {FORMAT_VERSION}: upgrade it"
        )
    identity = (cluster, node, group)
    return Header(sequence, first, identity, term, chain, bool(flags & _REPLACED), crc)


def check_identity(found: tuple[int, int, int], wanted: Identity, path: str) -> None:
    """Refuse a file of another cluster, node or group.

    Raises:
        WrongLog: the text names the file's owner and the wanted one.
    """
    cluster, node, group = found
    if cluster != wanted.cluster_hash():
        raise WrongLog(f"{path} belongs to another cluster than {wanted.cluster!r}")
    if node != wanted.node:
        raise WrongLog(f"{path} belongs to node {node}, this is node {wanted.node}")
    if group != wanted.group:
        raise WrongLog(f"{path} belongs to group {group}, wanted is group {wanted.group}")


def encode_mark(*, seed: int, position: int, durable: int, state: HardState, last: int) -> bytes:
    """The mark that stands at `position` of the file whose header's crc is `seed`."""
    body = _MARK_AFTER_CRC.pack(
        FORMAT_VERSION, position, durable, state.term, state.vote, state.commit, last
    )
    return _MARK_START.pack(MARK_MAGIC, google_crc32c.extend(seed, body)) + body


def decode_mark(data: bytes, offset: int, *, seed: int, position: int | None) -> Mark | None:
    """The mark at `data[offset:]`, which stands at `position` of its file; None if there is none.

    With `position` None, a mark that stands in another place than it names counts as well: its crc
    says that it was written for this file, so the bytes that it vouched for were durable.
    """
    if len(data) - offset < MARK_BYTES:
        return None
    magic, crc, version, found, durable, term, vote, commit, last = _MARK.unpack_from(data, offset)
    if magic != MARK_MAGIC or durable > found or position not in (None, found):
        return None
    if google_crc32c.extend(seed, data[offset + 12 : offset + MARK_BYTES]) != crc:
        return None
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"sync mark format {version}; this software reads up to {FORMAT_VERSION}: upgrade it"
        )
    return Mark(found, durable, HardState(term, vote, commit), last)
