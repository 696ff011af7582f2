"""The derived index of one sealed segment, as a file: columns that are mapped, never parsed.

The content follows from the segment and from the machine's answers for its records, so a file that
is lost or damaged is built again, to the same bytes. Little-endian, 8-byte aligned:

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | magic | `RAFTMQIX` |
| 8 | 4 | crc | CRC-32C of bytes 12 to 272 |
| 12 | 4 | version | 1 |
| 16 | 8 | name | the index in the segment's file name |
| 24 | 8 | sequence | the segment's number in its log |
| 32 | 8 | base | first record that is live in the segment |
| 40 | 8 | segment_bytes | size of the segment file |
| 48 | 8 | last_term | term of the last record |
| 56 | 8 | last_timestamp | timestamp of the last record |
| 64 | 4 | last_crc | crc of the last record |
| 68 | 4 | first_chain | chain of the first record |
| 72 | 4 | seed | crc of the segment's header |
| 76 | 4 | reserved | zero |
| 80 | 16 each | twelve sections | offset u64, length in entries u32, CRC-32C u32 |
| 272 | | the sections' entries | |

| section | entry | sorted by | content |
|---|---|---|---|
| `run_firsts`, `run_terms` | u64, u64 | first | runs of terms: (first index, term) |
| `positions` | u32 | record | where each record starts in the segment file |
| `timestamps` | i64 | record | the time index: it never falls |
| `queues`, `starts` | u64[q], u32[q+1] | queue | batches of queue i: rows starts[i]:starts[i+1] |
| `bases`, `counts`, `ordinals` | u64, u32, u32 | row | first offset, messages, record - base |
| `keys`, `key_ordinals` | u32, u32 | hash, record | which records hold messages of a key |
| `events` | u8 | queue, record | events of messages (`traces`); empty: none |

Invariants:
- A segment gets an index only when all its records are applied: committed, hence final.
- Sections are checked against their CRC before their first use: all but the keys and the events
  when the log is opened, those two at the first search for one, and all of them by the scrub.
- A check reads by a call, not by the map: a sector that the disk lost is `IndexDamaged`. A mapped
  page that cannot be read would end the process (SIGBUS).

Left out: a mapped file that another process cuts short, or a sector that is lost after the check
and after the system dropped it from its cache, ends the process; the next start finds the sector.
Each map holds a file descriptor, so a node needs about one for every sealed segment.

Sources: Kafka's offset and time indexes; RocketMQ's consume queue and index file; the column
layout of Arrow.
"""

import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import google_crc32c

from raftmq.log.faults import UnsupportedFormat
from raftmq.log.files import UNREADABLE, FileSystem, Pages
from raftmq.log.segment import Link

assert sys.byteorder == "little", "index files are mapped as they are"

FORMAT_VERSION = 1
_MAGIC = b"RAFTMQIX"
_HEADER = struct.Struct("<8sII QQQQQq IIII")
_AFTER_CRC = struct.Struct("<I QQQQQq IIII")
_START = struct.Struct("<8sI")
_SECTION = struct.Struct("<QII")
_SECTION_COUNT = 12
HEADER_BYTES = _HEADER.size + _SECTION_COUNT * _SECTION.size
assert _HEADER.size == 80
assert HEADER_BYTES == 272

Column = Literal[
    "run_firsts",
    "run_terms",
    "positions",
    "timestamps",
    "queues",
    "starts",
    "bases",
    "counts",
    "ordinals",
    "keys",
    "key_ordinals",
    "events",
]
_FORMATS: dict[Column, Literal["Q", "I", "q", "B"]] = {
    "run_firsts": "Q",
    "run_terms": "Q",
    "positions": "I",
    "timestamps": "q",
    "queues": "Q",
    "starts": "I",
    "bases": "Q",
    "counts": "I",
    "ordinals": "I",
    "keys": "I",
    "key_ordinals": "I",
    "events": "B",
}
_NUMBERS: dict[Column, int] = {column: number for number, column in enumerate(_FORMATS)}
_WIDTHS = {"Q": 8, "q": 8, "I": 4, "B": 1}
_RARE = ("keys", "key_ordinals", "events")
"""Sections that are read for single messages only: checked at their first use."""


class IndexDamaged(Exception):
    """An index file does not check out. The file is derived, so it is built again."""

    def __init__(self, message: str, name: int = 0) -> None:
        super().__init__(message)
        self.name = name
        """The segment, by the index in its file's name; 0: not known."""


Read = Callable[[int, int], bytes]
"""A function of a size and a position that reads these bytes of a file."""


class SegmentIndex:
    """An index file, mapped. Immutable; any thread may read it."""

    def __init__(self, pages: Pages, read: Read) -> None:
        """Read the header of a file, by its map and by calls.

        Raises:
            IndexDamaged: the header does not check out, or a section lies outside the file.
            UnsupportedFormat: the file is of a newer version.
        """
        self._read = read
        data = self._read_sound(0, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            raise IndexDamaged("cut inside the header")
        (magic, crc, version, name, sequence, base, size, term, stamp, last_crc, chain, seed, _) = (
            _HEADER.unpack_from(data)
        )
        if magic != _MAGIC or google_crc32c.value(data[12:]) != crc:
            raise IndexDamaged("the header fails its CRC-32C")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"index format {version}; this software reads up to {FORMAT_VERSION}: upgrade it"
            )
        self._head, self._pages = data, pages
        self._table = list(_SECTION.iter_unpack(data[_HEADER.size :]))
        for column, number in _NUMBERS.items():
            offset, length, _ = self._table[number]
            if offset + length * _WIDTHS[_FORMATS[column]] > len(pages):
                raise IndexDamaged(f"section {column} lies outside the file")
        self._checked: dict[Column, memoryview] = {}
        self.name: int = name
        """The index in the segment's file name."""
        self.sequence: int = sequence
        """The segment's number in its log."""
        self.base: int = base
        """First record of the segment."""
        self.count: int = self._table[_NUMBERS["positions"]][1]
        """Records in the segment."""
        self.segment_bytes: int = size
        """Size of the segment's file."""
        self.first_chain: int = chain
        """Chain of the first record: crc of the one before."""
        self.seed: int = seed
        """Crc of the segment's header."""
        self.tail = Link(self.last, term, last_crc, stamp)
        """The last record."""

    @property
    def last(self) -> int:
        """Last record of the segment; `base - 1` if it holds none."""
        return self.base + self.count - 1

    @property
    def row_count(self) -> int:
        """Batches placed in queues."""
        return int(self._table[_NUMBERS["bases"]][1])

    def column(self, column: Column) -> memoryview:
        """The entries of a section, in its own format; checked at the first call.

        Raises:
            IndexDamaged: the section fails its CRC-32C.
        """
        view = self._checked.get(column)
        if view is None:
            # Read before the map is touched: see the heading.
            size = len(self.section(column))
            offset, kind = self._table[_NUMBERS[column]][0], _FORMATS[column]
            view = self._checked[column] = self._pages[offset : offset + size].cast(kind)
        return view

    def section(self, column: Column) -> bytes:
        """The bytes of a section as the disk has them now. Raises `IndexDamaged`."""
        offset, length, crc = self._table[_NUMBERS[column]]
        data = self._read_sound(offset, length * _WIDTHS[_FORMATS[column]])
        if google_crc32c.value(data) != crc:
            raise IndexDamaged(f"section {column} fails its CRC-32C", self.name)
        return data

    def _read_sound(self, offset: int, size: int) -> bytes:
        try:
            return self._read(size, offset)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            message = f"the disk cannot read it: {error.strerror}"
            raise IndexDamaged(message, getattr(self, "name", 0)) from error

    def verify(self, *, keys: bool) -> None:
        """Check all sections, those of keys and events only if asked to. Raises `IndexDamaged`."""
        for column in _FORMATS:
            if keys or column not in _RARE:
                self.column(column)

    def check(self) -> None:
        """Read the whole file again, also sections checked before. Raises `IndexDamaged`."""
        if self._read_sound(0, HEADER_BYTES) != self._head:
            raise IndexDamaged("the header has changed", self.name)
        for column in _FORMATS:
            self.section(column)

    def encoded_again(self, columns: Mapping[Column, bytes]) -> list[bytes]:
        """The parts of the same file, with these sections in the place of damaged ones.

        The header has a CRC of each section: the file is the same, or `IndexDamaged` is raised.
        """
        parts = encode_index(
            {column: self._section_or(columns, column) for column in _FORMATS},
            name=self.name,
            sequence=self.sequence,
            base=self.base,
            segment_bytes=self.segment_bytes,
            first_chain=self.first_chain,
            seed=self.seed,
            tail=self.tail if self.count else Link(),
        )
        if b"".join(parts[:2]) != self._head:
            raise IndexDamaged("the rebuilt sections differ from the stored ones", self.name)
        return parts

    def _section_or(self, columns: Mapping[Column, bytes], column: Column) -> bytes:
        try:
            return self.section(column)
        except IndexDamaged:
            if column not in columns:
                raise
            return columns[column]

    def terms(self) -> list[tuple[int, int]]:
        """Runs of terms: (first index, term)."""
        return list(zip(self.column("run_firsts"), self.column("run_terms"), strict=True))


def open_index(files: FileSystem, path: str, *, keys: bool) -> SegmentIndex:
    """Map an index file and check it, the sections of keys and events if asked to.

    Raises as `SegmentIndex`, and `FileNotFoundError`.
    """
    file = files.open(path)
    try:
        index = SegmentIndex(pages := file.map(), file.pread)
        index.verify(keys=keys)
    finally:
        file.close()
    index._read = partial(_read_again, files, path, pages)
    return index


def _read_again(files: FileSystem, path: str, pages: Pages, size: int, offset: int) -> bytes:
    try:
        file = files.open(path)
    except FileNotFoundError:
        # Retention removed the file: the map still serves readers that began before.
        return bytes(pages[offset : offset + size])
    try:
        return file.pread(size, offset)
    finally:
        file.close()


def encode_index(
    columns: Mapping[Column, bytes],
    *,
    name: int,
    sequence: int,
    base: int,
    segment_bytes: int,
    first_chain: int,
    seed: int,
    tail: Link,
) -> list[bytes]:
    """The parts of an index file, from the entries of its sections."""
    table, parts, offset = [], [], HEADER_BYTES
    for column, kind in _FORMATS.items():
        data = columns[column]
        length, odd = divmod(len(data), _WIDTHS[kind])
        assert not odd, f"section {column} has {len(data)} bytes"
        table.append(_SECTION.pack(offset, length, google_crc32c.value(data)))
        parts += [data, bytes(-len(data) % 8)]
        offset += len(data) + len(parts[-1])
    fields = _AFTER_CRC.pack(
        FORMAT_VERSION,
        name,
        sequence,
        base,
        segment_bytes,
        tail.term,
        tail.timestamp,
        tail.crc,
        first_chain,
        seed,
        0,
    )
    body = b"".join((fields, *table))
    return [_START.pack(_MAGIC, google_crc32c.value(body)), body, *parts]
