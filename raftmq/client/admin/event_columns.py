"""The columns of events as a node sends them, made into runs; needs only numpy, imported late.

A node sends one row for each effect of a record, with bits where messages lie apart; a client
returns one row for each run of neighbours. See `events`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from raftmq.errors import ProtocolError
from raftmq.machine.queue_numbers import QUEUE_BITS

Column = npt.NDArray[Any]

_MAX32 = 2**32 - 1
OFFSET_MAX = 2**63 - 1
"""The end of a run without an end."""
_LAYOUT = {
    "index": "<i8",
    "term": "<i8",
    "timestamp": "<i8",
    "queue_number": "<u8",
    "offset": "<i8",
    "consumer": "<i8",
    "token": "<i8",
    "detail": "<i8",
    "count": "<u4",
    "number": "<u4",
    "bits_at": "<u4",
    "attempt": "<u2",
    "kind": "u1",
}
"""The columns of an answer."""


def columns_of(rows: int, bits: int, body: bytes) -> dict[str, Column]:
    """The columns of an answer, a row for each run."""
    columns, at = {}, 0
    if len(body) != bits + rows * sum(np.dtype(kind).itemsize for kind in _LAYOUT.values()):
        raise ProtocolError(f"{rows} rows of events with {bits} bytes of bits in {len(body)} bytes")
    for name, kind in _LAYOUT.items():
        columns[name] = np.frombuffer(body, kind, rows, at)
        at += columns[name].nbytes
    return _in_runs(columns, np.frombuffer(body, np.uint8, bits, at))


def joined(pages: list[dict[str, Column]]) -> dict[str, Column]:
    """The rows of all pages, one after the other; there is at least one page."""
    return {name: np.concatenate([page[name] for page in pages]) for name in pages[0]}


def topics_of(columns: dict[str, Column]) -> list[int]:
    """The numbers of the topics, rising."""
    found: list[int] = np.unique(columns["queue_number"] >> np.uint64(QUEUE_BITS)).tolist()
    return found


def numbers_of(columns: dict[str, Column]) -> list[int]:
    """The numbers of the groups' attachments, rising, without 0, which means none."""
    return [number for number in np.unique(columns["number"]).tolist() if number]


def _in_runs(columns: dict[str, Column], bits: npt.NDArray[np.uint8]) -> dict[str, Column]:
    base, width = columns["offset"], columns["count"].astype(np.int64)
    bits_at = columns.pop("bits_at")
    gapped = np.flatnonzero(bits_at != _MAX32)
    plain = np.flatnonzero(bits_at == _MAX32)
    offsets, counts = base[plain], width[plain]
    counts = np.where(counts == _MAX32, OFFSET_MAX - offsets, counts)
    is_before = counts == 0
    counts = np.where(is_before, offsets, counts)
    offsets = np.where(is_before, 0, offsets)
    of, firsts, lengths = _runs(bits, (width[gapped] + 7) // 8)
    rows = np.concatenate([plain, gapped[of]])
    offsets = np.concatenate([offsets, base[gapped[of]] + firsts])
    counts = np.concatenate([counts, lengths])
    order = np.argsort(rows, kind="stable")
    # A run before offset 0 is empty.
    order = order[counts[order] > 0]
    taken = {name: column[rows[order]] for name, column in columns.items()}
    return taken | {"offset": offsets[order], "count": counts[order]}


def _runs(
    bits: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]
) -> tuple[Column, Column, Column]:
    """Runs of set bits in pieces of these sizes in bytes: the piece, the first bit, the length.

    >>> found = _runs(np.array([0b10011100, 1, 0b110], "u1"), np.array([2, 1]))
    >>> [column.tolist() for column in found]
    [[0, 0, 1], [2, 7, 1], [3, 2, 2]]
    """
    starts = np.cumsum(sizes) - sizes
    flat = np.unpackbits(bits, bitorder="little").astype(np.int8)
    before = np.concatenate([[0], flat[:-1]])
    after = np.concatenate([flat[1:], [0]])
    edges = starts * 8
    # A run must not go on into the next piece.
    before[edges] = 0
    after[edges[1:] - 1] = 0
    firsts = np.flatnonzero((flat == 1) & (before == 0))
    lasts = np.flatnonzero((flat == 1) & (after == 0))
    of = np.searchsorted(edges, firsts, side="right") - 1
    return of, firsts - edges[of], lasts - firsts + 1
