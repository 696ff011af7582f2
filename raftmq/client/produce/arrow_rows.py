"""Rows of Arrow on their way into queues: checked, placed, and cut into batches, all by vectors.

| column | Arrow type | meaning |
|---|---|---|
| body | binary or string | the content; never null |
| key | string, or binary that is UTF-8 | null: none |
| tag | likewise | null: none |
| props | a map of strings to one type, or a struct | null, or a null in it: not there |
| deliver_at | timestamp | null, or past: at once |
| queue | integer | the queue within the topic; null: by key |

A row that cannot be sent is named by its number, before any row of the record batch is sent.

Invariants:
- Rows of one queue keep their order.
- The queue of a key is that of `raftmq.batch.queue_of`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftmq.batch import Limits, Sealed
from raftmq.batch.arrow_encode import ArrowColumns, edges_of, encode_arrow, hashes_of, text_of
from raftmq.client.arguments import typed_call
from raftmq.errors import BadRow, Reason, Rejected

from .settings import ProducerSettings

COLUMNS = ("body", "key", "tag", "props", "deliver_at", "queue")
"""The columns that rows may have."""

_ROW_BYTES = 64
"""Bytes counted for a row beside its body and its key, when rows are cut into batches."""


@typed_call
def encode_rows(
    rows: pa.RecordBatch,
    settings: ProducerSettings,
    queues: int,
    unkeyed: int,
    limits: Limits,
    base_ms: int,
    skip: Mapping[int, int],
) -> list[tuple[int, Sealed]]:
    """Rows as encoded batches, each with its queue; see `ArrowRows`.

    Raises:
        Rejected: a row cannot be sent.
    """
    if not rows.num_rows:
        return []
    placed = ArrowRows.of(rows, queues=queues, unkeyed=unkeyed, limits=limits)
    return list(placed.batches(settings, limits=limits, base_ms=base_ms, skip=skip))


class ArrowRows(NamedTuple):
    """Checked rows, and the queue of each."""

    columns: ArrowColumns
    """The rows, column by column."""
    queues: np.ndarray
    """The queue of each row, as a number within the topic."""

    @classmethod
    def of(cls, rows: pa.RecordBatch, *, queues: int, unkeyed: int, limits: Limits) -> Self:
        """Check rows and place them.

        Args:
            rows: at least one.
            queues: the number of the topic's queues.
            unkeyed: the queue of rows that have neither a queue nor a key.
            limits: what a batch may hold.

        Raises:
            BadRow: a row cannot be sent.
            Rejected: `BAD_ARGUMENT`, there are other columns or types.
        """
        check = _Check(rows, limits)
        bodies, keys, tags = check.bodies(), check.text("key"), check.text("tag")
        check.sizes(bodies, keys, tags)
        hashes = None if keys is None else hashes_of(keys)
        chosen = np.full(rows.num_rows, unkeyed, np.int64)
        if keys is not None and hashes is not None:
            chosen = np.where(_is_valid(keys), hashes.astype(np.int64) % queues, unkeyed)
        named = check.column("queue")
        if named is not None:
            chosen = np.where(_is_valid(named), check.queues(named, queues), chosen)
        columns = ArrowColumns(bodies, keys, tags, check.column("props"), check.dues(), hashes)
        return cls(columns, chosen)

    def batches(
        self, settings: ProducerSettings, *, limits: Limits, base_ms: int, skip: Mapping[int, int]
    ) -> Iterator[tuple[int, Sealed]]:
        """The rows as encoded batches, each with its queue, without the rows to skip at the start
        of a queue.

        Raises:
            Rejected: as `raftmq.batch.encode`.
        """
        order = np.argsort(self.queues, kind="stable")
        placed = self.queues[order]
        is_sorted = placed[0] == placed[-1]
        columns = self.columns if is_sorted else self.columns.take(order)
        bounds = np.flatnonzero(np.diff(placed, prepend=-1, append=-1))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            skipped = min(skip.get(int(placed[start]), 0), stop - start)
            of_queue = columns.between(start + skipped, stop)
            for first, end in _cuts(of_queue, settings):
                sealed = encode_arrow(
                    of_queue.between(first, end),
                    base_ms=base_ms,
                    compression=settings.compression,
                    limits=limits,
                )
                yield int(placed[start]), sealed


def _cuts(columns: ArrowColumns, settings: ProducerSettings) -> Iterator[tuple[int, int]]:
    """Cuts of one queue's rows into batches within the size and count of the settings."""
    sizes = np.diff(edges_of(columns.bodies)).astype(np.int64) + _ROW_BYTES
    if columns.keys is not None:
        sizes += np.diff(edges_of(columns.keys))
    ends = np.cumsum(sizes)
    start, count = 0, len(sizes)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + settings.batch_bytes, side="right"))
        # A row larger than a batch goes alone.
        stop = max(min(stop, start + settings.batch_messages), start + 1)
        yield start, stop
        start = stop


class _Check:
    """The columns of a record batch, each checked."""

    def __init__(self, rows: pa.RecordBatch, limits: Limits) -> None:
        unknown = [name for name in rows.schema.names if name not in COLUMNS]
        if unknown or len(set(rows.schema.names)) < len(rows.schema.names):
            message = f"columns are {', '.join(COLUMNS)}, each once, not {rows.schema.names}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        self._rows = rows
        self._limits = limits

    def column(self, name: str) -> pa.Array | None:
        """The column; None: the column is missing, or has only nulls."""
        if name not in self._rows.schema.names:
            return None
        column = self._rows.column(name)
        return None if column.null_count == len(column) else column

    def bodies(self) -> pa.Array:
        if "body" not in self._rows.schema.names:
            raise Rejected(Reason.BAD_ARGUMENT, "there is no column `body`")
        bodies = self._rows.column("body")
        self._refuse(bodies.is_null().to_numpy(zero_copy_only=False), "its body is null")
        kind = bodies.type
        if pa.types.is_string(kind):
            return bodies.cast(pa.binary())
        if pa.types.is_large_string(kind):
            return bodies.cast(pa.large_binary())
        if not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
            message = f"column `body` is binary or string, not of Arrow's type {kind}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        return bodies

    def text(self, name: str) -> pa.Array | None:
        column = self.column(name)
        return None if column is None else text_of(column, f"column `{name}`")

    def sizes(self, bodies: pa.Array, keys: pa.Array | None, tags: pa.Array | None) -> None:
        """Refuse rows with a body, key or tag over its limit."""
        limits = self._limits
        # The head of a batch, and this row's share of the columns, must fit too.
        body_bytes_max = limits.batch_bytes_max - 1024
        for what, array, bytes_max in (
            ("body", bodies, body_bytes_max),
            ("key", keys, limits.key_bytes_max),
            ("tag", tags, limits.tag_bytes_max),
        ):
            if array is not None:
                sizes = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
                largest = int(sizes.max(initial=0))
                message = f"its {what} has {largest} bytes; the limit is {bytes_max}"
                self._refuse((sizes > bytes_max) & (sizes == largest), message, Reason.TOO_LARGE)

    def queues(self, named: pa.Array, count: int) -> np.ndarray:
        if not pa.types.is_integer(named.type):
            message = f"column `queue` holds integers, not Arrow's type {named.type}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        numbers: np.ndarray = named.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        outside = (numbers < 0) | (numbers >= count)
        self._refuse(outside, f"it names a queue outside the topic's 0 to {count - 1}")
        return numbers

    def dues(self) -> np.ndarray | None:
        times = self.column("deliver_at")
        if times is None:
            return None
        if not pa.types.is_timestamp(times.type):
            message = f"column `deliver_at` is a timestamp, not of Arrow's type {times.type}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        # Rounded up to whole milliseconds: no message is delivered early.
        per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[times.type.unit]
        values = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        dues: np.ndarray = np.maximum(-(-values // per_ms) if per_ms else values * 1_000, 0)
        return dues

    def _refuse(self, wrong: np.ndarray, why: str, reason: Reason = Reason.BAD_ARGUMENT) -> None:
        if wrong.any():
            raise BadRow(reason, int(np.argmax(wrong)), why)


def _is_valid(array: pa.Array) -> np.ndarray:
    valid: np.ndarray = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
