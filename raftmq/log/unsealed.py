"""A segment without an index file: the places of its records are in memory, found by a scan.

The active segment is unsealed, and so are the few before it whose records are not all applied
yet. Three columns and the runs of terms hold a record's place and the fields that its successor
depends on: 16 bytes a record, no Python object.

Invariants:
- The columns only grow. Superseding a suffix makes a new `Unsealed` (`cut`) and leaves the old one
  as it was, so a reader on another thread that holds the old one keeps a consistent view.
- Positions rise with the index: a record that supersedes stands later in the file.

Sources: etcd's WAL reader; LevelDB's log reader (resume at the next frame, judge by checksum).
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import google_crc32c

from raftmq.errors import CorruptRecord
from raftmq.log.files import File, read_filled
from raftmq.log.index_file import Column
from raftmq.log.record import HEADER_BYTES as RECORD_HEADER_BYTES
from raftmq.log.record import RECORD_BYTES_MAX, Kind, Record, decode
from raftmq.log.segment import (
    HEADER_BYTES,
    MARK_BYTES,
    MARK_MAGIC,
    HardState,
    Header,
    Link,
    Mark,
    decode_mark,
)

CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes that a scan reads at a time."""

POSITION_MAX = 2**32 - 1
"""Positions are 32-bit columns; a segment is far smaller."""

_TERM_MAX = 2**64

_MEMBERSHIP = int(Kind.MEMBERSHIP)

_RECORD = struct.Struct("<IIQQqIBBH")


@dataclass(slots=True)
class Unsealed:
    """A segment and the columns that locate its records."""

    name: int
    """The index in its file's name."""
    sequence: int
    seed: int
    """Crc of the file's header: the seed of its marks."""
    path: str
    file: File
    base: int
    """Index of the first live record."""
    before: Link
    """The record before the first live one; only its index, term and crc are sure to be known."""
    end: int
    """Bytes of whole frames: the position of the next frame."""
    positions: "array[int]" = field(default_factory=lambda: array("I"))
    crcs: "array[int]" = field(default_factory=lambda: array("I"))
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Runs of terms: (first index, term)."""
    memberships: list[int] = field(default_factory=list)
    """Indexes of the live MEMBERSHIP records, rising."""

    @property
    def last(self) -> int:
        """Index of the last live record; `base - 1` if there is none."""
        return self.base + len(self.positions) - 1

    def link(self, index: int) -> Link:
        """The record at `index`, as its successor depends on it."""
        if index == self.base - 1:
            return self.before
        # A place below 0 would count from the columns' end.
        assert self.base <= index <= self.last, f"{index} is not in [{self.base}, {self.last}]"
        at = index - self.base
        term = self.runs[bisect_right(self.runs, (index, _TERM_MAX)) - 1][1]
        return Link(index, term, self.crcs[at], self.timestamps[at])

    def extend(self, records: Sequence[Record], position: int) -> None:
        """Add records that were written one after the other from `position` on."""
        assert records[0].index == self.last + 1, f"{records[0].index} comes after {self.last}"
        if len(records) == 1 and self.runs and self.runs[-1][1] == records[0].term:
            (record,) = records
            self.positions.append(position)
            self.crcs.append(record.crc)
            self.timestamps.append(record.timestamp)
            self.end = position + len(record.encoded)
            if record.kind == _MEMBERSHIP:
                self.memberships.append(record.index)
            return
        lengths = [len(record.encoded) for record in records]
        ends = list(accumulate(lengths, initial=position))
        self.end = ends.pop()
        self.positions.extend(ends)
        self.crcs.extend([record.crc for record in records])
        self.timestamps.extend([record.timestamp for record in records])
        self.memberships += [record.index for record in records if record.kind == _MEMBERSHIP]
        term = self.runs[-1][1] if self.runs else -1
        if records[-1].term != term:
            for record in records:
                if record.term != term:
                    term = record.term
                    self.runs.append((record.index, term))

    def sections(self) -> dict[Column, bytes]:
        """The sections of the index file that are the log's own."""
        count = len(self.positions)
        assert count == len(self.crcs) == len(self.timestamps), "columns of different lengths"
        assert bool(count) == bool(self.runs), "records without a term, or a term without records"
        return {
            "positions": self.positions.tobytes(),
            "timestamps": self.timestamps.tobytes(),
            "run_firsts": b"".join(first.to_bytes(8, "little") for first, _ in self.runs),
            "run_terms": b"".join(term.to_bytes(8, "little") for _, term in self.runs),
        }

    def cut(self, first: int, before: Link) -> "Unsealed":
        """This segment without the records from `first` on; `before` is the record before that.

        The file keeps their bytes; the base sinks to `first` if that lies before it.
        """
        assert first <= self.last + 1, f"a cut at {first}, past the end at {self.last}"
        keep = max(first - self.base, 0)
        return replace(
            self,
            base=min(self.base, first),
            before=self.before if keep or first == self.base else before,
            positions=self.positions[:keep],
            crcs=self.crcs[:keep],
            timestamps=self.timestamps[:keep],
            runs=[run for run in self.runs if run[0] < first],
            memberships=[index for index in self.memberships if index < first],
        )


class Damage(NamedTuple):
    """The position where a scan found no valid frame, and the fault."""

    position: int
    message: str


class Scan(NamedTuple):
    """The result of a scan."""

    segment: Unsealed
    """All valid frames; its `end` is the position of the damage, if there is any."""
    hard_state: HardState | None
    """As of the last valid mark."""
    damage: Damage | None
    is_marked: bool
    """Whether the last valid frame is a mark, which vouches for all before it."""


def scan(file: File, path: str, header: Header) -> Scan:
    """Read a segment file from its header to its end, or to the first frame that is not valid."""
    return _Scanner(file, path, header).run()


class _Scanner:
    def __init__(self, file: File, path: str, header: Header) -> None:
        before = Link(header.first - 1, header.previous_term, header.previous_crc, 0)
        self._file = file
        self._size = file.size()
        self._segment = Unsealed(
            name=header.first,
            sequence=header.sequence,
            seed=header.crc,
            path=path,
            file=file,
            base=header.first,
            before=before,
            end=HEADER_BYTES,
        )
        self._mark: Mark | None = None
        self._buffer = b""
        self._start = HEADER_BYTES
        """Position of the buffer's first byte in the file."""

    def run(self) -> Scan:
        """Frame by frame: runs of plain records fast, everything else one at a time."""
        damage = None
        self._load(HEADER_BYTES, CHUNK_BYTES)
        while damage is None:
            self._run_of_records()
            if self._segment.end == self._size:
                break
            damage = self._other_frame()
        segment, mark = self._segment, self._mark
        assert segment.end <= self._size, "frames past the end of the file"
        assert damage is None or damage.position == segment.end, "damage among valid frames"
        if mark is None:
            return Scan(segment, None, damage, False)
        is_marked = mark.durable == mark.position == segment.end - MARK_BYTES
        return Scan(segment, mark.hard_state, damage, is_marked)

    def _load(self, position: int, size: int) -> None:
        self._buffer = read_filled(self._file, min(size, self._size - position), position)
        self._start = position

    def _run_of_records(self) -> None:
        """Take the records that simply follow, as far as the buffer holds them whole.

        The run ends at any other frame: a mark (its magic reads as an impossible length), a
        superseding record, damage, the buffer's end.
        """
        segment, buffer, start = self._segment, self._buffer, self._start
        positions, crcs, stamps = segment.positions, segment.crcs, segment.timestamps
        value, unpack, limit = google_crc32c.value, _RECORD.unpack_from, len(buffer)
        last = segment.link(segment.last)
        index, chain, term = last.index, last.crc, segment.runs[-1][1] if segment.runs else -1
        at = segment.end - start
        while at + RECORD_HEADER_BYTES <= limit:
            crc, length, found, of_term, stamp, follows, kind, _, reserved = unpack(buffer, at)
            stop = at + length
            if stop > limit or found != index + 1 or follows != chain or of_term < term:
                break
            if length < RECORD_HEADER_BYTES or reserved or value(buffer[at + 4 : stop]) != crc:
                break
            if of_term != term:
                term = of_term
                segment.runs.append((found, term))
            if kind == _MEMBERSHIP:
                segment.memberships.append(found)
            positions.append(start + at)
            crcs.append(crc)
            stamps.append(stamp)
            index, chain, at = found, crc, stop
        segment.end = start + at

    def _other_frame(self) -> Damage | None:
        """Take the one frame after the valid ones so far; None if that frame is valid, too."""
        position, buffer = self._segment.end, self._buffer
        at = position - self._start
        need = self._frame_bytes(at)
        if at + need > len(buffer) and self._start + len(buffer) < self._size:
            # The frame goes on behind the buffer, so it cannot be judged yet.
            self._load(position, max(CHUNK_BYTES, need))
            return None
        if buffer[at : at + len(MARK_MAGIC)] == MARK_MAGIC:
            return self._take_mark(at)
        try:
            record = decode(buffer, at)
        except CorruptRecord as error:
            return Damage(position, str(error).rpartition(" (at byte")[0])
        return self._take_record(record)

    def _frame_bytes(self, at: int) -> int:
        """Bytes that must be at hand to judge the frame at `at` of the buffer."""
        head = self._buffer[at : at + 8]
        if len(head) == 8 and head != MARK_MAGIC:
            length = int.from_bytes(head[4:], "little")
            # A damaged length must not make the scan load gigabytes.
            if MARK_BYTES < length <= RECORD_BYTES_MAX:
                return length
        return MARK_BYTES

    def _take_mark(self, at: int) -> Damage | None:
        segment = self._segment
        mark = decode_mark(self._buffer, at, seed=segment.seed, position=segment.end)
        if mark is None:
            return Damage(segment.end, "a sync mark fails its CRC-32C or stands in a wrong place")
        if mark.last != segment.last:
            return Damage(
                segment.end,
                f"a sync mark stands after record {mark.last}, the log here ends at {segment.last}",
            )
        self._mark = mark
        segment.end += MARK_BYTES
        return None

    def _take_record(self, record: Record) -> Damage | None:
        segment, last = self._segment, self._segment.last
        if record.index > last + 1:
            return Damage(
                segment.end,
                f"record {record.index} stands here, record {last + 1} should: "
                f"{record.index - last - 1} are missing",
            )
        if record.index >= segment.base:
            before = segment.link(record.index - 1)
            if record.chain != before.crc or record.term < before.term:
                return Damage(
                    segment.end,
                    f"record {record.index} chains to crc {record.chain:#010x}, record "
                    f"{before.index} has {before.crc:#010x}: it was copied from elsewhere",
                )
        else:
            # It supersedes records of earlier segments; recovery checks the chain across.
            before = Link(record.index - 1, 0, record.chain, 0)
        position = segment.end
        if record.index <= last:
            self._segment = segment = segment.cut(record.index, before)
        segment.extend([record], position)
        return None
