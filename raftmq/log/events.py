"""The events of all messages in a range of records: the rows of segments in the log's order.

`index` finds one message's events. Here are all events of a range, and the batches that were
placed, each as one row of `traces`; a placed batch has kind 0, and its messages as the width.

    LogIndex.parts    on the loop: the segments, and copies of an unsealed one's columns
    page_of           on any thread: the first rows from a record on, cut to a size
    LogStore.stamps   their records' terms and times, which are the segments' own columns

Within a record the batch comes first, then its events by queue, in the order in which they came.

Invariants:
- Rows are the same whether a segment is sealed or not, and on each replica.
- Pages that follow each other have every row once, also if one is cut within a record.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raftmq.log.index_file import SegmentIndex
from raftmq.log.traces import MAX32, ROW, Rows, all_rows

Array = npt.NDArray[np.void]


class Placed(NamedTuple):
    """Batches that records of an unsealed segment placed, by record: copies of its columns."""

    queues: "array[int]"
    """The queues' numbers."""
    bases: "array[int]"
    """Offsets of the batches' first messages."""
    counts: "array[int]"
    """Numbers of the batches' messages."""
    indexes: "array[int]"
    """The records, rising."""
    gone: list[int]
    """Positions of rows whose queues were dropped since."""


class Part(NamedTuple):
    """The rows of one segment, which never change."""

    base: int
    """The segment's first record."""
    last: int
    """The segment's last record; 0: the segment is still written."""
    sealed: SegmentIndex | None
    """The index that holds the rows; None: they are in `placed` and `events`."""
    placed: Placed | None
    """The batches from a record on, as many as were asked for."""
    events: list[Rows]
    """The segment's events, by record."""


class Page(NamedTuple):
    """Rows in order."""

    rows: Array
    """As in `traces`; `bits_at` counts in `bits`."""
    bits: bytes
    """The bits of spans with gaps."""
    next: int
    """The record that has the first row left out; the end of the range if none is."""
    skip: int
    """Number of rows of the record `next` in this page and those before."""


def page_of(
    parts: Sequence[Part], start: int, stop: int, *, skip: int, rows_max: int, bits_max: int
) -> Page:
    """The rows of the records in [start, stop), as many as fit, at least one; any thread.

    Args:
        parts: as `LogIndex.parts` gives them for `start`.
        start: the first record.
        stop: the record after the last one; not past the last part.
        skip: the number of rows of the first record to leave out.
        rows_max: rows that fit, at least 1.
        bits_max: bytes of bits that fit.

    Raises:
        IndexDamaged: a column of a segment fails its CRC-32C.
    """
    found: list[tuple[Array, bytes]] = []
    # One row more than fits shows where to go on.
    wanted = skip + rows_max + 1
    for part in parts:
        if part.base >= stop or wanted <= 0:
            break
        rows, bits = _joined(list(_pieces(part, start, stop, wanted)))
        follows_batch = rows["kind"] != 0
        found.append((rows[np.lexsort((rows["queue"], follows_batch, rows["index"]))], bits))
        wanted -= len(rows)
    rows, bits = _joined(found)
    indexes = rows["index"]
    skip = min(skip, int(np.searchsorted(indexes, start, side="right")))
    kept = skip + _fitting(rows[skip:], rows_max, bits_max)
    following, told = stop, 0
    if kept < len(rows):
        following = int(indexes[kept])
        told = kept - int(np.searchsorted(indexes, following))
    assert kept > skip or following == stop, "a page that would be asked for without end"
    cut = rows[skip:kept].copy()
    return Page(cut, _take_bits(cut, bits, 0), following, told)


def _pieces(
    part: Part, start: int, stop: int, wanted: int
) -> Iterator[tuple[Array, "bytes | bytearray | memoryview"]]:
    """At least the first `wanted` rows of a segment with their bits, and all of the last record."""
    if part.sealed is not None:
        segment = part.sealed
        ordinals = np.asarray(segment.column("ordinals"))
        at = _first(ordinals, start - segment.base, stop - segment.base, wanted)
        yield _batches(*_sealed_columns(segment, at)), b""
        events = all_rows(segment.column("events"))
        rows = np.frombuffer(events.rows, ROW)
        yield rows[_first(rows["index"], start, stop, wanted)], events.bits
        return
    assert part.placed is not None
    *columns, gone = part.placed
    kept = [np.delete(np.frombuffer(column, column.typecode), gone) for column in columns]
    batches = _batches(*kept)
    yield batches[_first(batches["index"], start, stop, wanted)], b""
    last = 0
    for chunk in part.events:
        rows = np.frombuffer(chunk.rows, ROW)
        first = int(rows["index"][0])
        if first >= stop or (wanted <= 0 and first > last):
            break
        rows = rows[(rows["index"] >= start) & (rows["index"] < stop)]
        if len(rows):
            yield rows, chunk.bits
            last, wanted = int(rows["index"][-1]), wanted - len(rows)


def _first(indexes: npt.NDArray[np.unsignedinteger], start: int, stop: int, wanted: int) -> Array:
    """Positions of the `wanted` lowest entries of [start, stop), and of all equal to the last."""
    at: Array = np.flatnonzero((indexes >= start) & (indexes < stop))  # type: ignore[assignment]
    if len(at) > wanted:
        values = indexes[at]
        at = at[values <= np.partition(values, wanted - 1)[wanted - 1]]
    return at


def _sealed_columns(segment: SegmentIndex, at: Array) -> Iterator[Array]:
    """Queues, first offsets, messages and records of a sealed segment's batches."""
    starts = np.asarray(segment.column("starts"))
    queues: Array = np.asarray(segment.column("queues"))
    yield queues[np.searchsorted(starts, at, side="right") - 1]
    yield np.asarray(segment.column("bases"))[at]
    yield np.asarray(segment.column("counts"))[at]
    yield np.asarray(segment.column("ordinals"))[at] + np.uint64(segment.base)


def _batches(queues: Array, bases: Array, counts: Array, indexes: Array) -> Array:
    rows = np.zeros(len(indexes), ROW)
    rows["queue"], rows["base"], rows["width"] = queues, bases, counts
    rows["index"], rows["bits_at"] = indexes, MAX32
    return rows


def _joined(
    pieces: Sequence[tuple[Array, "bytes | bytearray | memoryview"]],
) -> tuple[Array, bytes]:
    """Pieces one after the other, with the bits that their rows refer to, and no others."""
    rows = np.concatenate([np.empty(0, ROW), *(piece for piece, _ in pieces)])
    bits, at, size = [], 0, 0
    for piece, section in pieces:
        taken = _take_bits(rows[at : at + len(piece)], section, size)
        bits.append(taken)
        at, size = at + len(piece), size + len(taken)
    return rows, b"".join(bits)


def _take_bits(rows: Array, section: "bytes | bytearray | memoryview", shift: int) -> bytes:
    """The bits of these rows in their order; sets the rows' `bits_at` to the new places, from
    `shift` on."""
    at = np.flatnonzero(rows["bits_at"] != MAX32)
    if not len(at):
        return b""
    sizes = _bit_bytes(rows[at])
    ends = np.cumsum(sizes)
    moves = rows["bits_at"][at].astype(np.int64) - (ends - sizes)
    places = np.arange(ends[-1]) + np.repeat(moves, sizes)
    rows["bits_at"][at] = ends - sizes + shift
    return bytes(np.frombuffer(section, np.uint8)[places])


def _bit_bytes(rows: Array) -> npt.NDArray[np.int64]:
    sizes = (rows["width"].astype(np.int64) + 7) // 8
    sizes[rows["bits_at"] == MAX32] = 0
    return sizes


def _fitting(rows: Array, rows_max: int, bits_max: int) -> int:
    """The number of first rows that fit; at least one if there is any."""
    fit = int(np.searchsorted(np.cumsum(_bit_bytes(rows)), bits_max, side="right"))
    return min(len(rows), max(1, min(rows_max, fit)))
