"""The content of each log, as the simulation remembers it: the checks compare nodes with it.

A *view* is the list of records of one log. Each process has a view of the log it works with,
durable or not; each disk has a view of what was synced: a crash must leave that (`Durable`).

Invariants:
- A view is a list without gaps; putting a record at an index drops the records there and above.
"""

from collections.abc import Sequence

from raftmq.consensus import HardState
from raftmq.log.record import Kind, Record


class View:
    """The records of one log above `base`."""

    __slots__ = ("base", "memberships", "records")

    def __init__(self, base: int = 0, records: Sequence[Record] = ()) -> None:
        self.base = base
        """Index before the first record."""
        self.records = list(records)
        self.memberships = [r.index for r in self.records if r.kind == Kind.MEMBERSHIP]
        """Indexes of the membership changes."""

    @property
    def last(self) -> int:
        """Index of the last record, or `base`."""
        return self.base + len(self.records)

    def at(self, index: int) -> Record | None:
        """The record at an index, if it is known."""
        place = index - self.base - 1
        return self.records[place] if 0 <= place < len(self.records) else None

    def holds(self, record: Record) -> bool:
        """Whether that very record is here, or behind the base."""
        index = record.index
        place = index - self.base - 1
        if place < 0:
            return True
        return place < len(self.records) and self.records[place].crc == record.crc

    def put(self, records: Sequence[Record]) -> None:
        """Append records, or replace the view from their first index on by them."""
        first = records[0].index
        place = first - self.base - 1
        if 0 <= place < len(self.records):
            del self.records[place:]
            while self.memberships and self.memberships[-1] >= first:
                self.memberships.pop()
        self.records.extend(records)
        for record in records:
            if record.kind == Kind.MEMBERSHIP:
                self.memberships.append(record.index)

    def up_to_date(self, base_term: int = 0) -> tuple[int, int]:
        """Term and index of the last record: what elections compare (Raft §5.4.1)."""
        return (self.records[-1].term if self.records else base_term), self.last


class Durable(View):
    """The part of a log that would survive any crash: what was synced."""

    __slots__ = ("base_term", "hard_state", "is_new_snapshot", "written", "written_state")

    def __init__(self, base: int = 0, records: Sequence[Record] = ()) -> None:
        super().__init__(base, records)
        self.base_term = 0
        """Term of the record that the base stands for."""
        self.hard_state = HardState()
        self.written: list[Sequence[Record]] = []
        """Runs of records that were written and not synced."""
        self.written_state: HardState | None = None

    def wrote(self, records: Sequence[Record], hard_state: HardState) -> None:
        """Note a write; the next sync makes it durable."""
        if records:
            self.written.append(records)
        self.written_state = hard_state

    def synced(self) -> None:
        """All writes so far are durable."""
        for records in self.written:
            self.put(records)
        self.written.clear()
        if self.written_state is not None:
            self.hard_state = self.written_state
            self.written_state = None

    def floor(self) -> int:
        """The last index whose synced record must still be in place after a crash: unsynced writes
        may have replaced the records above."""
        lowest = min((run[0].index for run in self.written), default=self.last + 1)
        return min(self.last, lowest - 1)

    def restart(self, base: int, base_term: int, records: Sequence[Record]) -> None:
        """Begin again: a snapshot took the place of the log, or a recovery read the log."""
        self.base, self.base_term = base, base_term
        self.records = list(records)
        self.memberships = [r.index for r in self.records if r.kind == Kind.MEMBERSHIP]
        self.written.clear()
