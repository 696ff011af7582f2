"""Stable storage as consensus reads it, and an in-memory one for tests.

Consensus never writes: it hands out writes (`Ready`, or storage messages) and reads back only
acknowledged ones. Reads are synchronous and must be cheap, so a record that is on disk only is
*not* read: `entries` raises `NotInMemory`, consensus names the records in `Ready.fetches`, the
shell reads them off the loop and calls `Raft.entries_fetched`.

Invariants of a `Storage`:
- `first_index() - 1` is the index of the snapshot the log stands on; its term is known.
- `last_index() >= first_index() - 1`.
- An acknowledged record stays readable until the log is compacted to a snapshot at or above it.

Sources: etcd-io/raft's Storage; TiKV raft-rs's asynchronous entry fetch for `NotInMemory`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from raftmq.consensus.config import record_bytes
from raftmq.consensus.types import ConfState, HardState, Snapshot, SnapshotMeta
from raftmq.log.cache import Compacted as Compacted
from raftmq.log.cache import NotInMemory as NotInMemory
from raftmq.log.record import Record


class SnapshotTemporarilyUnavailable(Exception):
    """A snapshot is being made; ask again later."""


class Storage(Protocol):
    """A node's durable log as consensus sees it. None of the calls may block."""

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state as last synced, and the membership at the applied index.

        The membership is that of the last applied MEMBERSHIP record, or of the snapshot if there
        was none since; it must belong to `Config.applied`. It is empty on a node that never was a
        member, and only there.
        """

    def first_index(self) -> int:
        """Index of the first record kept; 1 for a log that was never compacted."""

    def last_index(self) -> int:
        """Index of the last record, or `first_index() - 1` if there is none."""

    def term(self, index: int) -> int:
        """Term of the record at `index`, which is in [first_index - 1, last_index].

        Raises:
            Compacted: the log has been compacted past it.
        """

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        """Records from `low` up to `high` (exclusive), a prefix of them within `bytes_max`.

        At least one record is returned, however large it is.

        Raises:
            Compacted: `low` lies below the log.
            NotInMemory: the record at `low` must be fetched from disk.
        """

    def snapshot(self) -> Snapshot:
        """The snapshot to send to a follower that needs records the log no longer has.

        Raises:
            SnapshotTemporarilyUnavailable: try again later.
        """

    def tail(self, index: int) -> tuple[int, int]:
        """(crc, timestamp) of the record at `index`: first_index - 1, last_index, or any between.

        (0, 0) for index 0. At `last_index()` the answer must be at hand when a node starts.

        Raises:
            Compacted: the log has been compacted past it.
            NotInMemory: the record must be fetched from disk.
        """


class MemoryStorage:
    """A `Storage` that keeps everything in memory. For tests: nothing survives it."""

    def __init__(self, measure: Callable[[Sequence[Record]], int] = record_bytes) -> None:
        self.hard_state = HardState()
        self.snapshot_state = Snapshot()
        self.records: list[Record] = []
        self._measure = measure
        self._base = SnapshotMeta()

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state last written, and the membership of the last snapshot."""
        return self.hard_state, self.snapshot_state.meta.conf_state

    def first_index(self) -> int:
        """Index of the first record kept."""
        return self._base.index + 1

    def last_index(self) -> int:
        """Index of the last record."""
        return self._base.index + len(self.records)

    def term(self, index: int) -> int:
        """Term at `index`."""
        if index < self._base.index:
            raise Compacted(index)
        if index == self._base.index:
            return self._base.term
        return self.records[index - self._base.index - 1].term

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        """A slice of the log, cut to `bytes_max`."""
        if low <= self._base.index:
            raise Compacted(low)
        assert high <= self.last_index() + 1, "read past the end of the log"
        start = self._base.index + 1
        return fit(self.records[low - start : high - start], bytes_max, self._measure)[0]

    def snapshot(self) -> Snapshot:
        """The last snapshot that was made or installed."""
        return self.snapshot_state

    def tail(self, index: int) -> tuple[int, int]:
        """CRC and timestamp at `index`."""
        if index < self._base.index:
            raise Compacted(index)
        if index == self._base.index:
            return self._base.crc, self._base.timestamp
        record = self.records[index - self._base.index - 1]
        return record.crc, record.timestamp

    def append(self, records: Sequence[Record]) -> None:
        """Write `records`, superseding those at or above their first index."""
        if not records:
            return
        keep = records[0].index - self._base.index - 1
        assert 0 <= keep <= len(self.records), "a gap in the log"
        self.records[keep:] = records

    def install(self, snapshot: Snapshot) -> None:
        """Replace everything by `snapshot`."""
        self.snapshot_state = snapshot
        self._base = snapshot.meta
        self.records = []

    def make_snapshot(self, index: int, conf_state: ConfState, data: bytes) -> Snapshot:
        """Remember `data` as the machine's state after the record at `index`."""
        crc, timestamp = self.tail(index)
        meta = SnapshotMeta(index, self.term(index), conf_state, crc, timestamp)
        self.snapshot_state = Snapshot(meta, data)
        return self.snapshot_state

    def compact(self, index: int) -> None:
        """Drop all records up to and including `index`."""
        if index <= self._base.index:
            raise Compacted(index)
        crc, timestamp = self.tail(index)
        term = self.term(index)
        del self.records[: index - self._base.index]
        self._base = SnapshotMeta(index, term, ConfState(), crc, timestamp)


def fit(
    records: list[Record], bytes_max: int, measure: Callable[[Sequence[Record]], int]
) -> tuple[list[Record], int]:
    """The longest prefix of `records` within `bytes_max`, but at least one, and its weight."""
    total = measure(records)
    if total <= bytes_max or len(records) < 2:
        return records, total
    total = 0
    for count, record in enumerate(records):
        weight = measure((record,))
        if total + weight > bytes_max and count:
            return records[:count], total
        total += weight
    return records, total
