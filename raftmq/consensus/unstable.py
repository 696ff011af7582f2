"""The newest part of the log: records that storage has not acknowledged yet.

    index      1 .. 7 | 8  9 10 | 11 12
               stable | in      | new
                      | progress|
               offset = 8, offset_in_progress = 11, records = [8 .. 12]

A record is *new* until `ready` hands it out, then *in progress* until storage acknowledges it,
and only then dropped from here. `offset` may lie below storage's last index: the next write then
supersedes storage's records from there on. The same holds for an incoming snapshot.

Invariants:
- `records[i].index == offset + i`; `offset <= offset_in_progress <= offset + len(records)`.

Sources: etcd-io/raft's unstable log; Raft §5.3 for the truncation of conflicting suffixes.
"""

from collections.abc import Sequence
from typing import Protocol

from raftmq.consensus.trace import Event
from raftmq.consensus.types import Snapshot
from raftmq.log.record import Record


class Note(Protocol):
    """Reports an event with its fields, if anyone listens."""

    def __call__(self, event: Event, *fields: object) -> None:
        """Report it."""


class Unstable:
    """Records and a snapshot on their way to disk. It is state."""

    __slots__ = ("_note", "is_snapshot_in_progress", "offset", "offset_in_progress", "records",
                 "snapshot")  # fmt: skip

    def __init__(self, offset: int, note: Note) -> None:
        self.offset = offset
        self.offset_in_progress = offset
        self.records: list[Record] = []
        self.snapshot: Snapshot | None = None
        self.is_snapshot_in_progress = False
        self._note = note

    def new_records(self) -> list[Record]:
        """Records that were not handed out yet."""
        done = self.offset_in_progress - self.offset
        return self.records[done:] if done else self.records[:]

    @property
    def has_new_records(self) -> bool:
        """Whether `new_records` would return any."""
        return len(self.records) > self.offset_in_progress - self.offset

    @property
    def new_snapshot(self) -> Snapshot | None:
        """The snapshot, unless there is none or it was handed out already."""
        return None if self.is_snapshot_in_progress else self.snapshot

    def accept(self) -> None:
        """Everything here has been handed out."""
        self.offset_in_progress = self.offset + len(self.records)
        if self.snapshot is not None:
            self.is_snapshot_in_progress = True

    def term(self, index: int) -> int | None:
        """Term of the record (or snapshot) at `index`, if it is here."""
        place = index - self.offset
        if 0 <= place < len(self.records):
            return self.records[place].term
        if self.snapshot is not None and self.snapshot.meta.index == index:
            return self.snapshot.meta.term
        return None

    def append(self, records: Sequence[Record]) -> None:
        """Add `records`, superseding those at or above their first index."""
        first = records[0].index
        end = self.offset + len(self.records)
        if first == end:
            self.records.extend(records)
        elif first <= self.offset:
            # Older than all that is here: storage itself will have to truncate.
            self._note(Event.UNSTABLE_REPLACED, first)
            self.records = list(records)
            self.offset = first
            self.offset_in_progress = first
        else:
            assert first < end, "a gap in the log"
            self._note(Event.UNSTABLE_TRUNCATED, first)
            self.records[first - self.offset :] = records
            self.offset_in_progress = min(self.offset_in_progress, first)
            # A record that counts as handed out already would never be written.
            assert self.offset <= self.offset_in_progress <= first, "a record left unwritten"

    def stable_to(self, index: int, term: int) -> None:
        """Storage holds everything up to `index`, where it has `term`.

        Nothing happens if the record here differs: the records were superseded while they were
        being written, and a later acknowledgement will cover the new ones.
        """
        place = index - self.offset
        if not 0 <= place < len(self.records):
            matched = self.snapshot is not None and self.snapshot.meta.index == index
            self._note(Event.STABLE_MATCHED_SNAPSHOT if matched else Event.STABLE_MISSING, index)
            return
        ours = self.records[place].term
        if ours != term:
            self._note(Event.STABLE_MISMATCHED, index, term, ours)
            return
        if place + 1 == len(self.records):
            self.records = []
        else:
            del self.records[: place + 1]
            assert self.records[0].index == index + 1, "a gap after what storage holds"
        self.offset = index + 1
        if self.offset_in_progress < self.offset:
            self.offset_in_progress = self.offset

    def snapshot_stable_to(self, index: int) -> None:
        """Storage holds the snapshot at `index`."""
        if self.snapshot is not None and self.snapshot.meta.index == index:
            assert self.is_snapshot_in_progress, "storage holds a snapshot that was not handed out"
            self.snapshot = None
            self.is_snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """`snapshot` replaces everything."""
        self.records = []
        self.offset = self.offset_in_progress = snapshot.meta.index + 1
        self.snapshot = snapshot
        self.is_snapshot_in_progress = False
