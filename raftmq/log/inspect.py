"""A log's folder read without touching it, damaged or not, for `raftmq inspect`.

`inspect_folder` yields items file by file in log order, frame by frame. At a frame that does not
check out, it yields the damage and goes on at the next valid sync mark, so one flipped bit hides
one write and not the rest of the file. It takes no lock: on a folder in use the last frames may
look torn.

Invariants:
- Nothing is written, locked or cut.
- Every byte of a segment belongs to one item: a frame, or a `DamagedItem`.
- A missing segment is a `DamagedItem` of no bytes, at the segment after the gap.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.log.faults import UnsupportedFormat
from raftmq.log.files import FileSystem, read_filled
from raftmq.log.index_file import IndexDamaged, open_index
from raftmq.log.record import HEADER_BYTES as RECORD_HEADER_BYTES
from raftmq.log.record import RECORD_BYTES_MAX, Record, decode
from raftmq.log.recovery import gaps, take_void, told_gap
from raftmq.log.segment import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    MARK_BYTES,
    MARK_MAGIC,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    Header,
    Mark,
    decode_header,
    decode_mark,
    file_name,
    parse_name,
)
from raftmq.log.snapshot import SnapshotFile, SnapshotMeta


class SegmentItem(NamedTuple):
    """A segment file; its frames follow."""

    path: str
    bytes: int
    header: Header


class MarkItem(NamedTuple):
    """A sync mark, with the hard state as of then."""

    path: str
    mark: Mark


class RecordItem(NamedTuple):
    """A record. `supersedes`: its index stood in this file before."""

    path: str
    position: int
    record: Record
    supersedes: bool


class DamagedItem(NamedTuple):
    """Bytes that are no valid frame, or a file that does not hold what its name says."""

    path: str
    position: int
    bytes: int
    message: str


class SnapshotItem(NamedTuple):
    """A snapshot whose header and state check out."""

    path: str
    bytes: int
    meta: SnapshotMeta


class IndexItem(NamedTuple):
    """An index file whose sections check out."""

    path: str
    bytes: int
    base: int
    records: int
    queues: int
    batches: int
    keys: int


class OtherItem(NamedTuple):
    """A file that holds nothing durable: a lock, a partial or unfinished file, or a foreign one."""

    path: str
    bytes: int


Item = SegmentItem | MarkItem | RecordItem | DamagedItem | SnapshotItem | IndexItem | OtherItem


def inspect_folder(files: FileSystem, folder: str) -> Iterator[Item]:
    """The items of a folder: other files, snapshots and indexes first, then segments in log order,
    and last the gaps where segments are missing.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: the disk refused to read.
    """
    segments = []
    headers: dict[int, Header | None] = {}
    names = files.list(folder)
    for name in names:
        path = f"{folder}/{name}"
        first = parse_name(name, SEGMENT_SUFFIX)
        # The process that has the folder in use may have deleted the file since it was listed.
        with suppress(FileNotFoundError):
            if first is not None:
                header = headers[first] = _header(_read(files, path, HEADER_BYTES))
                segments.append((header.sequence if header is not None else 0, path))
            elif parse_name(name, SNAPSHOT_SUFFIX) is not None:
                yield _snapshot(files, path)
            elif parse_name(name, INDEX_SUFFIX) is not None:
                yield _index(files, path)
            else:
                yield OtherItem(path, _size(files, path))
    for _, path in sorted(segments):
        with suppress(FileNotFoundError):
            yield from inspect_segment(files, path)
    yield from _missing(folder, names, headers)


def _missing(
    folder: str, names: list[str], headers: dict[int, Header | None]
) -> Iterator[DamagedItem]:
    """The gaps: the segment after each gap, or a snapshot without any segment."""
    known = {first: header for first, header in headers.items() if header is not None}
    take_void(known, names)
    for before, header in gaps(known):
        # A segment with a damaged header has an item of its own, and may fill this gap.
        if not any(before.first < first < header.first for first in headers.keys() - known.keys()):
            path = f"{folder}/{file_name(header.first, SEGMENT_SUFFIX)}"
            yield DamagedItem(path, 0, 0, told_gap(before, header))
    snapshots = [name for name in names if parse_name(name, SNAPSHOT_SUFFIX) is not None]
    if snapshots and not headers:
        message = "a snapshot stands here without any segment: the log is missing"
        yield DamagedItem(f"{folder}/{snapshots[-1]}", 0, 0, message)


def inspect_segment(files: FileSystem, path: str) -> Iterator[Item]:
    """One segment file, frame by frame."""
    file = files.open(path)
    data = memoryview(read_filled(file, file.size(), 0))
    file.close()
    try:
        header = decode_header(bytes(data[:HEADER_BYTES]))
    except UnsupportedFormat as error:
        yield DamagedItem(path, 0, len(data), str(error))
        return
    if header is None:
        yield DamagedItem(path, 0, len(data), "the segment's header fails its CRC-32C")
        return
    yield SegmentItem(path, len(data), header)
    position, seen = HEADER_BYTES, header.first - 1
    while position < len(data):
        frame = _frame(path, data, position, header)
        if isinstance(frame, MarkItem):
            position += MARK_BYTES
        elif isinstance(frame, DamagedItem):
            position += frame.bytes
        else:
            position += len(frame.record.encoded)
            index = frame.record.index
            frame = frame._replace(supersedes=index <= seen)
            seen = index
        yield frame


def _frame(
    path: str, data: memoryview, position: int, header: Header
) -> MarkItem | RecordItem | DamagedItem:
    head = bytes(data[position : position + MARK_BYTES])
    message = "a sync mark fails its CRC-32C or stands in a wrong place"
    if head.startswith(MARK_MAGIC):
        mark = _mark_at(data, position, header)
        if mark is not None:
            return MarkItem(path, mark)
    else:
        length = int.from_bytes(head[4:8], "little")
        length = length if RECORD_HEADER_BYTES <= length <= RECORD_BYTES_MAX else MARK_BYTES
        try:
            record = decode(bytes(data[position : position + length]))
            return RecordItem(path, position, record, supersedes=False)
        except CorruptRecord as error:
            message = str(error).rpartition(" (at byte")[0]
    return DamagedItem(path, position, _next_mark(data, position, header) - position, message)


def _next_mark(data: memoryview, position: int, header: Header) -> int:
    """Where the next valid mark after `position` stands; the end if there is none."""
    rest = bytes(data[position + 1 :])
    at = rest.find(MARK_MAGIC)
    while at >= 0:
        found = position + 1 + at
        if _mark_at(data, found, header) is not None:
            return found
        at = rest.find(MARK_MAGIC, at + 1)
    return len(data)


def _mark_at(data: memoryview, position: int, header: Header) -> Mark | None:
    piece = bytes(data[position : position + MARK_BYTES])
    try:
        return decode_mark(piece, 0, seed=header.crc, position=position)
    except UnsupportedFormat:
        return None


def _header(head: bytes) -> Header | None:
    try:
        return decode_header(head)
    except UnsupportedFormat:
        return None


def _snapshot(files: FileSystem, path: str) -> SnapshotItem | DamagedItem:
    size = _size(files, path)
    try:
        snapshot = SnapshotFile(files.open(path), None, path)
        snapshot.verify()
    except CorruptRecord as error:
        return DamagedItem(path, error.position, size, str(error))
    except UnsupportedFormat as error:
        return DamagedItem(path, 0, size, str(error))
    return SnapshotItem(path, size, snapshot.meta)


def _index(files: FileSystem, path: str) -> IndexItem | DamagedItem:
    size = _size(files, path)
    try:
        index = open_index(files, path, keys=True)
    except (IndexDamaged, UnsupportedFormat) as error:
        return DamagedItem(path, 0, size, f"{error}; it is built again at the next start")
    queues, keys = len(index.column("queues")), len(index.column("keys"))
    return IndexItem(path, size, index.base, index.count, queues, index.row_count, keys)


def _size(files: FileSystem, path: str) -> int:
    file = files.open(path)
    size = file.size()
    file.close()
    return size


def _read(files: FileSystem, path: str, size: int) -> bytes:
    file = files.open(path)
    data = file.pread(size, 0)
    file.close()
    return data
