"""Reading records from segment files, on any thread, while the log grows and shrinks.

The store publishes an immutable `View` after each change; a reader takes the latest one (a single
reference, so there is nothing to lock) and works with it alone. The view stays true because:

- bytes in a segment file are never overwritten, and `View.end` says how far they were written;
- columns of an `Unsealed` only grow; superseding records puts a new one into the next view;
- a removed file can be read as long as it is open; a file removed before it was opened means that
  its records are gone: `Dropped`.

Invariants:
- Every record handed out passed its CRC, has the index that was asked for, and within one read
  chains to the one before.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raftmq.errors import CorruptRecord
from raftmq.log.faults import Dropped, RotFound
from raftmq.log.files import UNREADABLE, File, FileSystem
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import HEADER_BYTES, Record, decode
from raftmq.log.recovery import Segment
from raftmq.log.segment import SEGMENT_SUFFIX, file_name

GAP_BYTES_MAX = 32 * 1024
"""The largest gap between two wanted records that is read with them, to save a second call."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that one call to the disk reads; bounds the memory of a read beside its result."""


class View(NamedTuple):
    """A log at one moment."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    """The segments' first indexes, rising."""
    first: int
    """First record kept."""
    last: int
    """Last record."""
    end: int
    """Bytes written to the active segment: its end."""


class Stamps(NamedTuple):
    """Terms and timestamps of records, one entry for each."""

    terms: npt.NDArray[np.uint64]
    """The records' terms."""
    times: npt.NDArray[np.int64]
    """The records' timestamps, milliseconds since 1970."""


class _Place(NamedTuple):
    """Where consecutive records of one segment are."""

    segment: Segment
    positions: Sequence[int]
    record_count: int
    """Records of the segment in this view."""
    end: int
    """Bytes of the segment in this view."""

    def end_of(self, ordinal: int) -> int:
        """Where a record has surely ended: the next one's position, or the file's end."""
        return self.positions[ordinal + 1] if ordinal + 1 < self.record_count else self.end


def _place(view: View, index: int) -> _Place:
    assert view.first <= index <= view.last, f"{index} of a log from {view.first} to {view.last}"
    at = bisect_right(view.bases, index) - 1
    segment = view.segments[at]
    if isinstance(segment, SegmentIndex):
        positions: Sequence[int] = segment.column("positions")
        return _Place(segment, positions, segment.count, segment.segment_bytes)
    if at < len(view.segments) - 1:
        return _Place(segment, segment.positions, len(segment.positions), segment.end)
    return _Place(segment, segment.positions, view.last + 1 - segment.base, view.end)


def read_range(
    files: FileSystem, folder: str, view: View, *, low: int, high: int, bytes_max: int
) -> list[Record]:
    """See `LogStore.read`."""
    _check_kept(view, low)
    assert low <= high, f"[{low}, {high})"
    high = min(high, view.last + 1)
    records: list[Record] = []
    while low < high:
        place = _place(view, low)
        begin = low - place.segment.base
        stop = _fit(place, begin, min(high - place.segment.base, place.record_count), bytes_max)
        start, end = place.positions[begin], place.end_of(stop - 1)
        if records and end - start > bytes_max:
            break
        part = min(end, start + max(READ_BYTES_MAX, place.end_of(begin) - start))
        if part < end:
            stop = _fit(place, begin, stop, part - start)
            end = place.end_of(stop - 1)
        ordinals = range(begin, stop)
        records += _decode(files, folder, place, ordinals, start=start, end=end)
        low = place.segment.base + stop
        bytes_max -= end - start
    _check_chain(folder, view, records)
    return records


def _fit(place: _Place, begin: int, stop: int, bytes_max: int) -> int:
    """The end of the longest run of records from `begin` within `bytes_max`, at least one."""
    assert begin < stop, f"no record in [{begin}, {stop}) of segment {place.segment.name}"
    limit = place.positions[begin] + bytes_max
    if stop - begin < 2 or place.end_of(stop - 1) <= limit:
        return stop
    return max(begin + 1, bisect_right(place.positions, limit, begin + 1, stop) - 1)


def read_scattered(
    files: FileSystem, folder: str, view: View, indexes: Iterable[int], bytes_max: int
) -> list[Record]:
    """See `LogStore.read_at`."""
    records: list[Record] = []
    place: _Place | None = None
    ordinals: list[int] = []
    start = end = 0
    for index in indexes:
        _check_kept(view, index)
        assert index <= view.last, f"{index} of a log that ends at {view.last}"
        if place is None or not 0 <= index - place.segment.base < place.record_count:
            if place is not None:
                records += _decode(files, folder, place, ordinals, start=start, end=end)
            place, ordinals = _place(view, index), []
        ordinal = index - place.segment.base
        position, stop = place.positions[ordinal], place.end_of(ordinal)
        bytes_max -= stop - position
        if bytes_max < 0 and (records or ordinals):
            break
        if ordinals and not (
            end <= position <= end + GAP_BYTES_MAX and stop - start <= READ_BYTES_MAX
        ):
            records += _decode(files, folder, place, ordinals, start=start, end=end)
            ordinals = []
        if not ordinals:
            start = position
        ordinals.append(ordinal)
        end = stop
    if place is not None and ordinals:
        records += _decode(files, folder, place, ordinals, start=start, end=end)
    return records


def read_stamps(view: View, indexes: npt.NDArray[np.uint64]) -> Stamps:
    """See `LogStore.stamps`."""
    found = Stamps(np.zeros(len(indexes), np.uint64), np.zeros(len(indexes), np.int64))
    if not len(indexes):
        return found
    _check_kept(view, int(indexes[0]))
    assert indexes[-1] <= view.last, f"{indexes[-1]} of a log that ends at {view.last}"
    for segment in view.segments:
        low, high = np.searchsorted(indexes, [segment.base, segment.last + 1])
        if low >= high:
            continue
        wanted = indexes[low:high]
        first, last = int(wanted[0]) - segment.base, int(wanted[-1]) - segment.base
        if isinstance(segment, SegmentIndex):
            times = np.asarray(segment.column("timestamps")[first : last + 1])
            runs = segment.terms()
        else:
            # A copy: an array with a view on it cannot grow, and this one has to.
            times = np.frombuffer(segment.timestamps[first : last + 1], np.int64)
            runs = list(segment.runs)
        found.times[low:high] = times[(wanted - wanted[0]).astype(np.int64)]
        firsts, terms = np.array(runs, np.uint64).T
        found.terms[low:high] = terms[np.searchsorted(firsts, wanted, side="right") - 1]
    return found


def read_heads(
    files: FileSystem,
    folder: str,
    view: View,
    indexes: npt.NDArray[np.uint64],
    *,
    start: int,
    size: int,
) -> npt.NDArray[np.uint8]:
    """See `LogStore.heads`."""
    found = np.zeros((len(indexes), size), np.uint8)
    at = 0
    while at < len(indexes):
        index = int(indexes[at])
        _check_kept(view, index)
        place = _place(view, index)
        base = place.segment.base
        stop = int(np.searchsorted(indexes, base + place.record_count))
        assert stop > at, f"{index} of a log that ends at {view.last}"
        ordinals = (indexes[at:stop] - np.uint64(base)).astype(np.int64)
        # A copy: an array with a view on it cannot grow, and that of an unsealed segment has to.
        first, last = int(ordinals[0]), int(ordinals[-1])
        positions = np.array(place.positions[first : last + 1], np.int64)[ordinals - first]
        path, file = path_of(folder, place.segment), _file(files, folder, place.segment)
        try:
            is_whole = _read_pieces(file, positions + (HEADER_BYTES + start), found[at:stop])
        except OSError as error:
            raise _lost(error, path, int(positions[0])) from error
        if not is_whole:
            raise RotFound("the file ends within records that were durable", file=path, position=0)
        at = stop
    return found


def _read_pieces(file: File, positions: npt.NDArray[np.int64], into: npt.NDArray[np.uint8]) -> bool:
    """Read the bytes at rising positions, neighbours by one call; False: the file ends before."""
    size = into.shape[1]
    windows = np.flatnonzero(np.diff(positions // GAP_BYTES_MAX)) + 1
    at = 0
    for part in np.split(positions, windows):
        begin, end = int(part[0]), int(part[-1]) + size
        data = np.frombuffer(file.pread(end - begin, begin), np.uint8)
        if len(data) < end - begin:
            return False
        into[at : at + len(part)] = data[(part - begin)[:, None] + np.arange(size)]
        at += len(part)
    return True


def _check_kept(view: View, index: int) -> None:
    if index < view.first:
        raise Dropped(index, first_index=view.first)


def _decode(
    files: FileSystem,
    folder: str,
    place: _Place,
    ordinals: Sequence[int],
    *,
    start: int,
    end: int,
) -> list[Record]:
    """Read bytes [start, end) of a segment and check the records at these ordinals in them."""
    segment, positions = place.segment, place.positions
    try:
        data = _file(files, folder, segment).pread(end - start, start)
    except OSError as error:
        raise _lost(error, path_of(folder, segment), start) from error
    at, base = start, segment.base
    records: list[Record] = []
    add = records.append
    try:
        for ordinal in ordinals:
            at = positions[ordinal]
            record = decode(data, at - start)
            if record.index != base + ordinal:
                message = f"record {record.index} stands where {base + ordinal} should"
                raise RotFound(message, file=path_of(folder, segment), position=at)
            add(record)
    except CorruptRecord as error:
        message = f"record {base + ordinal} was durable: {error}"
        raise RotFound(message, file=path_of(folder, segment), position=at) from error
    return records


def _lost(error: OSError, path: str, position: int) -> Exception:
    """The error of a refused read: `RotFound` if the medium lost the bytes, else the same error."""
    if error.errno not in UNREADABLE:
        return error
    return RotFound(f"the disk cannot read it: {error.strerror}", file=path, position=position)


def _file(files: FileSystem, folder: str, segment: Segment) -> File:
    if not isinstance(segment, SegmentIndex):
        return segment.file
    try:
        return files.open(path_of(folder, segment))
    except FileNotFoundError:
        raise Dropped(segment.base, first_index=segment.last + 1) from None


def path_of(folder: str, segment: Segment) -> str:
    """The path of a segment's file."""
    return f"{folder}/{file_name(segment.name, SEGMENT_SUFFIX)}"


def _check_chain(folder: str, view: View, records: list[Record]) -> None:
    crcs = [record.crc for record in records[:-1]]
    chains = [record.chain for record in records[1:]]
    if crcs != chains:
        broken = next(at for at, crc in enumerate(crcs) if crc != chains[at])
        index = records[broken + 1].index
        place = _place(view, index)
        raise RotFound(
            f"record {index} does not chain to the one before it",
            file=path_of(folder, place.segment),
            position=place.positions[index - place.segment.base],
        )
