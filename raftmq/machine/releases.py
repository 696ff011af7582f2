"""Batches that brokers make of delayed messages: releases, and copies for the log's end.

A row of `delays` says where its message stands: in a batch that a producer sent, or in a `Carry`.
A *release* takes the first due rows of a queue and joins their messages, in their order, into one
batch, as if it had been sent now: bodies, keys, tags, properties and creation times as they were,
no delivery times. A *copy* is the same with delivery times, inside a `Carry`.

Both are made from lists over whole columns; only the last message of a batch that is cut is looked
at by itself. Two leaders may make different ones from the same rows: the log decides which counts.

Invariants:
- A batch made here decodes, whatever batches its messages come from: messages that do not fit into
  one batch are left for the next.
- It is no longer than batches of producers may be, unless one message alone is: a longer one may
  fit into no frame between nodes, and would hold up the log for ever.

Left out: columns are decoded and encoded again, 2 to 3 µs a message. A whole batch that falls due
at once could keep its bytes but for one column.
"""

from array import array
from collections.abc import Mapping, Sequence, Sized
from itertools import groupby
from operator import itemgetter
from typing import Any

import cbor2

from raftmq.batch import Batch, Compression, Flag, Limits, Sealed, encode
from raftmq.batch.layout import BATCH_BYTES_MAX
from raftmq.errors import CorruptRecord, Rejected
from raftmq.log.record import Kind, Record

from .delay_queue import Rows
from .delays import POSITION_BITS, RELEASER, Carry

BYTES_MAX = 1024 * 1024
"""Bytes of bodies of one release or copy, unless one message alone has more. When bodies and
columns exceed this size, no other record is looked into."""
DECODED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of bodies decoded for one release or copy; the last batch may exceed them: a few small
messages may stand in batches that are large once they are decompressed."""

_POSITIONS = (1 << POSITION_BITS) - 1
_ZSTD, _LZ4 = Flag.ZSTD.value, Flag.LZ4.value


def batch_of(record: Record) -> Batch:
    """The batch with delayed messages that a record has: a producer's, or a `Carry`'s.

    Raises:
        CorruptRecord: the record has none. No row points there.
    """
    if record.kind == Kind.BATCH:
        return Batch.decode(record.payload, check=False, timestamp=record.timestamp)
    for command in cbor2.loads(bytes(record.payload)):
        # Positional, with the tag first: see `Carry`.
        if command[0] == Carry.__struct_config__.tag:
            return Batch.decode(command[2], check=False, timestamp=record.timestamp)
    raise CorruptRecord(f"record {record.index} has no delayed messages", position=0)


def indexes_of(rows: Rows) -> list[int]:
    """The records that hold the messages of some rows, rising."""
    return sorted({place >> POSITION_BITS for place in rows.places})


def release(
    queue: int, rows: Rows, records: Mapping[int, Record], *, bytes_max: int = BATCH_BYTES_MAX
) -> bytes:
    """The payload of a BATCH record that releases rows, the first ones of their queue.

    Args:
        queue: the queue's number.
        rows: at least one; as many of them are released as fit, at least one.
        records: by index; the first row's must be there, and rows are released up to the first one
            whose record is not.
        bytes_max: the longest batch to make, unless one message alone is longer.
    """
    assert rows.numbers, "a release of no rows"
    sealed = _join(rows, records, is_delayed=False, bytes_max=bytes_max)
    assert 0 < sealed.count <= len(rows.numbers), f"{sealed.count} of {len(rows.numbers)} rows"
    return sealed.to_bytes(queue=queue, producer=RELEASER, first_sequence=rows.numbers[0])


def copy(
    queue: int, rows: Rows, records: Mapping[int, Record], *, bytes_max: int = BATCH_BYTES_MAX
) -> Carry:
    """As `release`: the command that lets rows point to new copies of their messages."""
    assert rows.numbers, "a copy of no rows"
    sealed = _join(rows, records, is_delayed=True, bytes_max=bytes_max)
    assert 0 < sealed.count <= len(rows.numbers), f"{sealed.count} of {len(rows.numbers)} rows"
    return Carry(rows.numbers[: sealed.count].tobytes(), sealed.to_bytes(queue=queue))


def _join(rows: Rows, records: Mapping[int, Record], *, is_delayed: bool, bytes_max: int) -> Sealed:
    columns = _Columns()
    start = 0
    for index, group in groupby(rows.places, lambda place: place >> POSITION_BITS):
        record = records.get(index)
        if record is None or columns.is_full:
            break
        positions = [place & _POSITIONS for place in group]
        dues = rows.dues[start : start + len(positions)]
        columns.add(columns.batch(record), positions, dues)
        start += len(positions)
    columns.cut(min(BYTES_MAX, bytes_max))
    return columns.seal(is_delayed=is_delayed, bytes_max=bytes_max)


class _Columns:
    """The messages of a batch to be, from several batches."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the bodies."""
        self._described = 0
        """Bytes of columns, about: keys, tags and properties."""
        self._decoded = 0
        """Bytes of the bodies of all batches that were looked into."""
        self._batches: dict[int, tuple[Batch, list[dict[str, Any]] | None]] = {}
        self._bodies: list[bytes] = []
        self._keys: list[str | None] = []
        self._tags: list[str | None] = []
        self._props: list[dict[str, Any] | None] = []
        self._created: list[int] = []
        self._dues: array[int] = array("q")
        self._compression = Compression.NONE

    @property
    def is_full(self) -> bool:
        """Whether messages of another record must not be added."""
        return self.size + self._described > BYTES_MAX or self._decoded > DECODED_BYTES_MAX

    def batch(self, record: Record) -> tuple[Batch, list[dict[str, Any]] | None]:
        """A record's batch and its rows of properties, decoded once."""
        known = self._batches.get(record.index)
        if known is None:
            batch = batch_of(record)
            self._decoded += batch.head.body_bytes
            props = [batch.props(n) for n in range(len(batch))] if batch.columns else None
            known = self._batches[record.index] = batch, props
        return known

    def add(
        self,
        source: tuple[Batch, list[dict[str, Any]] | None],
        positions: list[int],
        dues: "array[int]",
    ) -> None:
        batch, props = source
        count = len(positions)
        bodies = _pick(batch.bodies, positions)
        self._bodies += bodies
        self.size += sum(map(len, bodies))
        self._described += batch.head.columns_bytes * count // len(batch)
        self._keys += _pick(batch.keys, positions)
        self._tags += map(batch.tag, positions)
        self._props += [None] * count if props is None else _pick(props, positions)
        self._created += _created(batch, positions)
        self._dues += dues
        self._check()
        if batch.head.flags & _ZSTD:
            self._compression = Compression.ZSTD
        elif batch.head.flags & _LZ4:
            self._compression = Compression.LZ4

    def cut(self, bytes_max: int) -> None:
        """Leave out messages at the end until the bodies fit, but not the first message."""
        while self.size > bytes_max and len(self._bodies) > 1:
            self._keep(len(self._bodies) - 1)

    def _keep(self, count: int) -> None:
        self.size -= sum(map(len, self._bodies[count:]))
        for column in (self._bodies, self._keys, self._tags, self._props, self._created):
            del column[count:]
        del self._dues[count:]
        self._check()

    def _check(self) -> None:
        columns: list[Sized] = [self._keys, self._tags, self._props, self._created, self._dues]
        assert set(map(len, columns)) == {len(self._bodies)}, "columns of different lengths"

    def seal(self, *, is_delayed: bool, bytes_max: int) -> Sealed:
        """The batch; of fewer messages if they do not fit into one."""
        limits = Limits(batch_bytes_max=bytes_max)
        while True:
            if len(self._bodies) == 1:
                # The message was accepted under the settings of its time: it must not be stuck now.
                limits = Limits()
            try:
                return encode(
                    self._bodies,
                    keys=self._keys,
                    tags=self._tags,
                    props=self._props if any(self._props) else None,
                    deliver_at_ms=self._dues if is_delayed else None,
                    created_ms=self._created,
                    base_ms=self._created[0],
                    compression=self._compression,
                    limits=limits,
                )
            except Rejected:
                # Together they may have too many property columns; each alone was in a batch.
                assert len(self._bodies) > 1
                self._keep(len(self._bodies) // 2)


def _created(batch: Batch, positions: list[int]) -> list[int]:
    try:
        created = batch.created_ms
    except CorruptRecord:
        # Older brokers took times that no encoder takes. Their messages are due all the same.
        created = None
    if created is None:
        return [batch.head.base_ms] * len(positions)
    return _pick(created.tolist(), positions)


def _pick(column: Sequence[Any], positions: list[int]) -> list[Any]:
    if positions == list(range(len(column))):
        return list(column)
    if len(positions) == 1:
        return [column[positions[0]]]
    return list(itemgetter(*positions)(column))
