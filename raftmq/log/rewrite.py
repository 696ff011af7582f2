"""A sound copy of one sealed segment, made of its sound records and of records from peers.

The segment's index file knows, under a checksum of its own, where each record starts, the CRC that
the first one chains to and the CRC of the last one. So a copy can be built beside the damaged file
and be *proven*: each record passes its CRC, chains to the one before, and the last one's CRC is the
one that the index names. The copy has every record in the place where it was:

    header | mark | record | record | filler | record | ...        same size, same positions

The frames between the records (sync marks, records that were superseded) have no use in a sealed
segment; the gaps are filled with marks, or with a record that the next one supersedes at once. So
index file, views and readers stay as they are, and one rename puts the copy in the damaged file's
place.

    rewrite = store.rewrite(name)
    while (wanted := rewrite.lacks()) is not None:
        rewrite.add(records of wanted, from a peer)
    rewrite.finish()
    store.replace(rewrite)                       # on the disk thread

Invariants:
- The damaged file is not touched before its copy is complete, proven and durable.
- One piece of the segment is in memory at a time.

Left out: a segment whose index file is lost as well; `raftmq.log.cutting` deals with that.

Sources: Protocol-Aware Recovery (FAST '18) §3 (repair a faulty entry from a copy that is known to
be the same one).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from raftmq.errors import CorruptRecord
from raftmq.log.files import NEW_SUFFIX, FileSystem
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import HEADER_BYTES as RECORD_HEADER_BYTES
from raftmq.log.record import Kind, Record, decode, encode
from raftmq.log.segment import (
    HEADER_BYTES,
    MARK_BYTES,
    SEGMENT_SUFFIX,
    HardState,
    Identity,
    Link,
    decode_header,
    encode_header,
    encode_mark,
    file_name,
)

PIECE_BYTES = 1024 * 1024
"""Bytes that are read, asked for and written at a time, unless one record is larger."""


COPY_SUFFIX = f".copy{NEW_SUFFIX}"
"""The suffix of the copy's file. It differs from that of a new segment's file, which may be made
for the same index while the copy is written (`LogStore.install_snapshot`)."""


class NotProven(Exception):
    """The records at hand are not those of the segment; begin again, with nothing of this copy."""


class Rewrite:
    """The copy in the making. Used by one thread at a time; see the heading for the order."""

    def __init__(
        self,
        files: FileSystem,
        folder: str,
        identity: Identity,
        segment: SegmentIndex,
        before: Link,
        *,
        keeps_sound: bool,
    ) -> None:
        """Begin a copy; `before` is the record before the segment's first one.

        With `keeps_sound` records that check out here are taken over; else all come from peers.

        Raises:
            NotProven: the header is damaged and cannot be made from the neighbours.
            OSError: the disk refused.
        """
        self.segment = segment
        """The segment that is copied."""
        self._positions = segment.column("positions")
        self._files, self._folder = files, folder
        self._path = f"{folder}/{file_name(segment.name, SEGMENT_SUFFIX)}"
        header = _header(files, self._path, identity, segment, before)
        self._source = None
        if keeps_sound:
            with suppress(OSError):
                self._source = files.open(self._path)
        self._copy = self._path + COPY_SUFFIX
        self._file = files.create(self._copy)
        self._file.append([header])
        self._end = HEADER_BYTES
        self._last = segment.name - 1
        """Index of the last record in the copy, as a scan would see it."""
        self._crc = segment.first_chain
        self._ordinal = 0
        """The next record's number in the segment, from 0."""
        self._piece: list[Record | None] = []
        """The next records as read here; None: the record does not check out."""

    def lacks(self) -> tuple[int, int] | None:
        """Copy the records that are sound here, and name the next ones that must come from a peer:
        [low, high).

        None: the copy has all. Raises `OSError` if the disk refuses to write.
        """
        while self._ordinal < self.segment.count:
            if not self._piece:
                self._piece = list(self._read_piece())
            sound = []
            crc = self._crc
            for record in self._piece:
                if record is None or record.chain != crc:
                    break
                sound.append(record)
                crc = record.crc
            self._write(sound)
            del self._piece[: len(sound)]
            if self._piece:
                bad = next((i for i, r in enumerate(self._piece[1:], 1) if r), len(self._piece))
                low = self.segment.base + self._ordinal
                return low, low + bad
        return None

    def add(self, records: Sequence[Record]) -> None:
        """Take records from a peer: the first ones that `lacks` named, in order.

        Raises:
            NotProven: they are not the records that stood here.
            OSError: the disk refused to write.
        """
        crc, index = self._crc, self.segment.base + self._ordinal
        for record in records:
            if record.index != index or record.chain != crc:
                raise NotProven(f"record {record.index} of a peer does not chain to ours")
            crc, index = record.crc, index + 1
        self._write(records)
        del self._piece[: len(records)]

    def finish(self) -> None:
        """Complete the file and make it durable; `LogStore.replace` gives it the name.

        Raises:
            NotProven: the last record is not the one that the index names.
            OSError: the disk refused.
        """
        segment = self.segment
        if self._crc != segment.tail.crc:
            raise NotProven(f"record {segment.last} is not the one that the index names")
        assert self._ordinal == segment.count, "a copy that lacks records is finished"
        self._file.append(self._filling(segment.segment_bytes, segment.tail, segment.last + 1))
        # Readers find records by the positions of the file that the copy replaces.
        assert self._end == segment.segment_bytes, "the copy has another size"
        self._file.datasync()
        self._file.close()

    def publish(self) -> None:
        """Give the finished copy the damaged file's name, durably. Raises `OSError`."""
        self._files.rename(self._copy, self._path)
        self._files.sync_folder(self._folder)

    def discard(self) -> None:
        """Give the copy up and remove its file, as far as the disk lets us."""
        self._file.close()
        with suppress(OSError):
            self._files.unlink(self._copy)

    def _read_piece(self) -> Iterator[Record | None]:
        """The next records as they are read here, about a piece's worth."""
        start = self._ordinal
        stop = start + 1
        while stop < self.segment.count and self._slot_end(stop) - self._positions[start] <= (
            PIECE_BYTES
        ):
            stop += 1
        begin, end = self._positions[start], self._slot_end(stop - 1)
        data = self._read(end - begin, begin)
        for ordinal in range(start, stop):
            at = self._positions[ordinal]
            piece, offset = data, at - begin
            if data is None:
                # One sector that cannot be read must not cost the other records of the piece.
                piece, offset = self._read(self._slot_end(ordinal) - at, at), 0
            yield self._sound(piece, offset, ordinal)

    def _slot_end(self, ordinal: int) -> int:
        """A position at or after the record's end: the next record's, or the file's end."""
        if ordinal + 1 < self.segment.count:
            return int(self._positions[ordinal + 1])
        return self.segment.segment_bytes

    def _read(self, size: int, position: int) -> bytes | None:
        if self._source is None:
            return None
        try:
            return self._source.pread(size, position)
        except OSError:
            return None

    def _sound(self, data: bytes | None, offset: int, ordinal: int) -> Record | None:
        if data is None:
            return None
        try:
            record = decode(data, offset)
        except CorruptRecord:
            return None
        return record if self._fits(record, ordinal) else None

    def _fits(self, record: Record, ordinal: int) -> bool:
        if record.index != self.segment.base + ordinal:
            return False
        gap = self._slot_end(ordinal) - self._positions[ordinal] - len(record.encoded)
        # The gap is filled with whole frames, and no frame is smaller than a record's header.
        return gap == 0 or gap >= RECORD_HEADER_BYTES

    def _write(self, records: Sequence[Record]) -> None:
        parts: list[bytes] = []
        for record in records:
            if not self._fits(record, self._ordinal):
                raise NotProven(f"record {record.index} has another length than it had here")
            link = Link(record.index, record.term, record.chain, record.timestamp)
            parts += self._filling(self._positions[self._ordinal], link, record.index)
            parts.append(record.encoded)
            self._end += len(record.encoded)
            self._last, self._crc = record.index, record.crc
            self._ordinal += 1
        assert self._ordinal <= self.segment.count, "more records than the segment has"
        if parts:
            self._file.append(parts)

    def _filling(self, stop: int, link: Link, index: int) -> list[bytes]:
        """Frames from the end of the copy up to `stop`.

        `link` has the term, time and chain of a record that may stand there under `index`, until
        the next one supersedes it.
        """
        parts: list[bytes] = []
        if self._end == HEADER_BYTES:
            parts.append(self._mark(link.term))
        gap = stop - self._end
        assert gap >= 0, f"the copy ends at {self._end}, past {stop}"
        if gap % MARK_BYTES:
            filler = encode(
                bytes(gap - RECORD_HEADER_BYTES),
                index=index,
                term=link.term,
                kind=Kind.NOOP,
                timestamp=link.timestamp,
                chain=link.crc,
            )
            self._end += gap
            return [*parts, filler.encoded]
        while self._end < stop:
            parts.append(self._mark(link.term))
        return parts

    def _mark(self, term: int) -> bytes:
        # The file gets its name only once all of it is durable, so a mark may vouch for all before.
        mark = encode_mark(
            seed=self.segment.seed,
            position=self._end,
            durable=self._end,
            state=HardState(term, 0, 0),
            last=self._last,
        )
        self._end += MARK_BYTES
        return mark


def _header(
    files: FileSystem, path: str, identity: Identity, segment: SegmentIndex, before: Link
) -> bytes:
    """The segment's header: read from the file, or made again; its CRC is the one in the index."""
    with suppress(OSError):
        file = files.open(path)
        data = file.pread(HEADER_BYTES, 0)
        file.close()
        header = decode_header(data)
        if header is not None and header.crc == segment.seed:
            return data
    previous = Link(segment.name - 1, before.term, before.crc)
    # The index does not hold the flag `replaced`, but the CRC shows which value it had.
    for replaced in (False, True):
        data, crc = encode_header(
            identity, sequence=segment.sequence, previous=previous, replaced=replaced
        )
        if crc == segment.seed:
            return data
    raise NotProven(f"the header of {path} is damaged and cannot be told from its neighbours")
