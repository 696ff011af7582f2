"""The scrub reads sealed segments and their indexes slowly, round after round, before a reader
needs them; and at the beginning of a round the snapshots.

Disks lose bits unnoticed. A rotten copy is missing when the disks of the other copies fail; so
every record is read and checked once in a while, at a pace that leaves the disk to other work
(`log.scrub_bytes_per_second`).

Invariants:
- One read at a time is under way, on the reading thread, of a second's worth of bytes.
- Each record's CRC and index are checked, and its chain to the one before, across reads as well.

Left out: the active segment, which is read at every start.

Sources: Protocol-Aware Recovery (FAST '18) §3; "An Analysis of Latent Sector Errors" (SIGMETRICS
'07) for why.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import Any

import trio

from raftmq.broker.host import Host
from raftmq.broker.world import Worker
from raftmq.errors import CorruptRecord
from raftmq.log.faults import Dropped, RotFound
from raftmq.log.index_file import IndexDamaged, SegmentIndex
from raftmq.log.record import Record
from raftmq.log.store import LogStore

from .group import Group

ROUND_SECONDS_MIN = 600.0
"""A round that ended sooner is followed by a pause, so that small logs are not read for ever."""


class Scrub:
    """The scrub of one node's logs."""

    def __init__(
        self,
        node: Host,
        reader: Worker,
        *,
        on_rot: Callable[[RotFound], object],
        on_snapshot: Callable[[Group, int, CorruptRecord], object],
        on_index: Callable[[Group, IndexDamaged], object],
    ) -> None:
        self._node = node
        self._reader = reader
        self._on_rot = on_rot
        self._on_snapshot = on_snapshot
        self._on_index = on_index
        # Snapshots that this round has still to read.
        self._snapshots: list[tuple[Group, int]] | None = None
        self._is_reading = False
        self._began = trio.current_time()
        self._looked = self._began
        # Where the round is: partition group, next record, CRC of the one before.
        self._at = (-1, 0, 0)
        self._rounds = 0
        self._bytes = 0

    def status(self) -> dict[str, Any]:
        """The progress of the scrub, as the node's status shows it."""
        group, index, _ = self._at
        return {"rounds": self._rounds, "bytes": self._bytes, "group": group, "index": index}

    def go_on(self, known: Container[tuple[int, int]]) -> None:
        """Read as much as the pace allows since the last call; `known` segments are passed over."""
        rate, now = self._node.settings.log.scrub_bytes_per_second, trio.current_time()
        seconds, self._looked = min(now - self._looked, 1.0), now
        if not rate or self._is_reading or now < self._began:
            return
        if self._snapshots is None:
            groups = self._node.groups.values()
            self._snapshots = [(g, meta.index) for g in groups for meta in g.store.snapshots]
        if self._snapshots:
            self._is_reading = True
            group, index = self._snapshots.pop()
            self._reader.submit(
                partial(_read_snapshot, group.store, index),
                partial(self._snapshot_done, group, index, rate),
            )
            return
        found = self._next(known)
        if found is None:
            self._rounds += 1
            self._at, self._snapshots = (-1, 0, 0), None
            self._began = max(now, self._began + ROUND_SECONDS_MIN)
            return
        group, segment = found
        number, low, crc = self._at
        if number != group.number or low <= segment.base:
            low, crc = segment.base, segment.first_chain
        self._is_reading = True
        job = partial(_read, group.store, segment, low, crc, max(1, int(rate * seconds)))
        self._reader.submit(job, partial(self._done, group, segment))

    def _snapshot_done(
        self, group: Group, index: int, rate: int, size: int | None, error: BaseException | None
    ) -> None:
        self._is_reading = False
        if size is not None:
            self._bytes += size
            # A snapshot is read as a whole; the pace is kept by a pause.
            self._began = trio.current_time() + size / rate
        elif isinstance(error, CorruptRecord):
            self._on_snapshot(group, index, error)
        # Retention may have taken the snapshot: the file is missing then.
        elif not isinstance(error, OSError):
            assert error is not None
            self._node.fail(error)

    def _next(self, known: Container[tuple[int, int]]) -> tuple[Group, SegmentIndex] | None:
        """The segment that the round has come to; None: the round is over."""
        number, low, _ = self._at
        for group in sorted(self._node.groups.values(), key=lambda group: group.number):
            first = low if group.number == number else 0
            for segment in group.store.sealed if group.number >= number else ():
                is_ahead = segment.count and segment.last >= first
                if is_ahead and (group.number, segment.name) not in known:
                    return group, segment
        return None

    def _done(
        self,
        group: Group,
        segment: SegmentIndex,
        records: list[Record] | None,
        error: BaseException | None,
    ) -> None:
        self._is_reading = False
        if records is not None:
            last = records[-1]
            self._bytes += sum(len(record.encoded) for record in records)
            self._at = (group.number, last.index + 1, last.crc)
            return
        # The rest of the segment is left to the repair, or to the next round.
        self._at = (group.number, segment.last + 1, segment.tail.crc)
        if isinstance(error, RotFound):
            self._on_rot(error)
        elif isinstance(error, IndexDamaged):
            self._on_index(group, error)
        elif not isinstance(error, Dropped | OSError):
            assert error is not None
            self._node.fail(error)


def _read_snapshot(store: LogStore, index: int) -> int:
    """On the reading thread: the bytes of a snapshot, checked. Raises `CorruptRecord`."""
    file = store.open_snapshot(index)
    file.verify()
    return file.bytes


def _read(
    store: LogStore, segment: SegmentIndex, low: int, crc: int, bytes_max: int
) -> list[Record]:
    """On the reading thread: the next records, checked. Raises as `LogStore.read`, and
    `IndexDamaged`."""
    if low == segment.base:
        store.check_outside(segment)
    path = store.path_of(segment)
    records = store.read(low, segment.last + 1, bytes_max)
    ends = records[-1].index == segment.last
    if records[0].chain != crc or (ends and records[-1].crc != segment.tail.crc):
        message = f"records {low} to {records[-1].index} do not chain to their neighbours"
        raise RotFound(message, file=path, position=0)
    return records
