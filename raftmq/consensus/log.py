"""The log as Raft sees it: records that storage holds, and records on their way there.

    first_index                offset                last_index
    |---- storage ---------------|---- unstable --------|
            applied   applying   committed

`applied <= applying <= committed <= last_index`: records are *applying* from the moment `ready`
hands them out until the machine reports them applied.

Invariants:
- Committed records are never truncated (Raft §5.4.3, state machine safety).
- `committed`, `applying` and `applied` never fall.
- Each record carries the CRC of the one before it, so a foreign or missing record shows.

Sources: Raft §5.3; etcd-io/raft's raftLog; the chain of Protocol-Aware Recovery (FAST '18).
"""

from collections import deque
from collections.abc import Callable, Sequence

from raftmq.consensus.storage import Compacted, NotInMemory, Storage, fit
from raftmq.consensus.trace import Event
from raftmq.consensus.types import Snapshot
from raftmq.consensus.unstable import Note, Unstable
from raftmq.log.record import Record


class RaftLog:
    """The log of one node, durable or not. It is state."""

    __slots__ = (
        "_committed_bytes_max",
        "_measure",
        "_note",
        "_storage",
        "applied",
        "applying",
        "applying_bytes",
        "applying_weights",
        "committed",
        "is_applying_fetched",
        "is_applying_paused",
        "last_crc",
        "last_index",
        "last_term",
        "last_timestamp",
        "unstable",
    )

    def __init__(
        self,
        storage: Storage,
        *,
        committed_bytes_max: int,
        measure: Callable[[Sequence[Record]], int],
        note: Note,
    ) -> None:
        self._storage = storage
        self._committed_bytes_max = committed_bytes_max
        self._measure = measure
        self._note = note
        before = storage.first_index() - 1
        self.committed = before
        """Highest index known to be on a majority."""
        self.applying = before
        """Highest index that was handed out to be applied."""
        self.applied = before
        """Highest index that the machine has applied."""
        self.applying_bytes = 0
        """Weight of the records between `applied` and `applying`."""
        self.applying_weights: deque[tuple[int, int]] = deque()
        """Of each batch that was handed out: its last index and its weight."""
        self.is_applying_paused = False
        """Whether the machine must catch up before more is handed out."""
        self.is_applying_fetched = True
        """False while records to be applied must be read from disk first."""
        self.last_index = storage.last_index()
        self.last_term = storage.term(self.last_index)
        self.last_crc, self.last_timestamp = storage.tail(self.last_index)
        self.unstable = Unstable(self.last_index + 1, note)
        assert before <= self.last_index, "storage ends before the record that it stands on"

    def __str__(self) -> str:
        unstable = self.unstable
        return (
            f"committed={self.committed}, applied={self.applied}, applying={self.applying}, "
            f"unstable.offset={unstable.offset}, "
            f"unstable.offset_in_progress={unstable.offset_in_progress}, "
            f"unstable.records={len(unstable.records)}"
        )

    @property
    def first_index(self) -> int:
        """Index of the first record that can still be sent."""
        snapshot = self.unstable.snapshot
        return self._storage.first_index() if snapshot is None else snapshot.meta.index + 1

    def term(self, index: int) -> int | None:
        """Term of the record at `index`; None if the log does not reach that far either way."""
        if index == self.last_index:
            return self.last_term
        term = self.unstable.term(index)
        if term is not None:
            return term
        if index > self.last_index or index + 1 < self.first_index:
            return None
        try:
            return self._storage.term(index)
        except Compacted:
            return None

    def matches(self, index: int, term: int) -> bool:
        """Whether the record at `index` is here and has `term` (Raft §5.3, log matching)."""
        return self.term(index) == term

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Whether a log that ends in (index, term) is at least as up-to-date as this one.

        Raft §5.4.1: "If the logs have last entries with different terms, then the log with the
        later term is more up-to-date. If the logs end with the same term, then whichever log is
        longer is more up-to-date."
        """
        if term != self.last_term:
            return term > self.last_term
        return index >= self.last_index

    # Writing

    def append(self, records: Sequence[Record]) -> None:
        """Add `records`, superseding those at or above their first index."""
        first, last = records[0], records[-1]
        assert first.index > self.committed, (
            f"record {first.index} would replace a committed one (commit {self.committed})"
        )
        assert self._continues(first), f"record {first.index} does not continue this log's chain"
        self.unstable.append(records)
        self.last_index, self.last_term = last.index, last.term
        self.last_crc, self.last_timestamp = last.crc, last.timestamp
        unstable = self.unstable
        assert unstable.offset + len(unstable.records) == last.index + 1, "a gap before the end"

    def _continues(self, record: Record) -> bool:
        # The chain is the log matching property as a checksum: same predecessor, same bytes.
        if record.index == self.last_index + 1:
            return record.chain == self.last_crc
        place = record.index - 1 - self.unstable.offset
        if 0 <= place < len(self.unstable.records):
            return record.chain == self.unstable.records[place].crc
        if self.unstable.snapshot is not None:
            return record.chain == self.unstable.snapshot.meta.crc
        try:
            return record.chain == self._storage.tail(record.index - 1)[0]
        except (Compacted, NotInMemory):
            return True  # the log store checks the chain again when it reads

    def try_append(
        self, previous: int, previous_term: int, records: Sequence[Record], commit: int
    ) -> int | None:
        """A leader's append. Returns the last index that now matches, or None if none does.

        Raft figure 2, AppendEntries receiver steps 2 to 5.
        """
        if not self.matches(previous, previous_term):
            return None
        if records:
            new = records if previous == self.last_index else self._unknown_part(records)
            if new:
                self.append(new)
        last = previous + len(records)
        self.commit_to(min(commit, last))
        assert last <= self.last_index, "an acknowledgement of records that are not here"
        return last

    def _unknown_part(self, records: Sequence[Record]) -> Sequence[Record]:
        """`records` from the first one on that is missing here or conflicts.

        Raft §5.3: "If an existing entry conflicts with a new one (same index but different
        terms), delete the existing entry and all that follow it" - and only then: a delayed
        append that holds nothing new must not shorten the log.
        """
        for place, record in enumerate(records):
            ours = self.term(record.index)
            if ours != record.term:
                if record.index <= self.last_index:
                    self._note(Event.CONFLICT_FOUND, record.index, ours or 0, record.term)
                return records[place:]
        return ()

    def commit_to(self, index: int) -> None:
        """Everything up to `index` is committed."""
        if index > self.committed:
            assert index <= self.last_index, (
                f"commit {index} is past the last index {self.last_index}: was the log lost?"
            )
            self.committed = index

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log by `snapshot` (Raft §7)."""
        meta = snapshot.meta
        assert meta.index > self.committed, "a snapshot that would take back committed records"
        self._note(Event.SNAPSHOT_RESTORE_STARTED, self, meta.index, meta.term)
        self.committed = meta.index
        self.unstable.restore(snapshot)
        self.last_index, self.last_term = meta.index, meta.term
        self.last_crc, self.last_timestamp = meta.crc, meta.timestamp
        assert self.unstable.offset == self.last_index + 1, "records beside the snapshot"

    # Reading

    def guess_conflict(self, index: int, term: int) -> tuple[int, int]:
        """The highest index at which this log may agree with one that has `term` at `index`, and
        our term there.

        Terms never fall along a log, so all our records up to `index` with a higher term cannot
        match. Raft §5.3: "a follower may reduce the number of rejected AppendEntries RPCs".
        Term 0 means: unknown, the log does not reach there.
        """
        while index > 0:
            ours = self.term(index)
            if ours is None:
                return index, 0
            if ours <= term:
                return index, ours
            index -= 1
        return 0, 0

    def entries(self, low: int, bytes_max: int) -> tuple[list[Record], int]:
        """Records from `low` on, within `bytes_max` but at least one, if any; and their weight.

        Raises:
            Compacted: `low` lies below the log.
            NotInMemory: storage must fetch it first.
        """
        return self._slice(low, self.last_index + 1, bytes_max)

    def _slice(self, low: int, high: int, bytes_max: int) -> tuple[list[Record], int]:
        if low >= high:
            return [], 0
        unstable = self.unstable
        offset = unstable.offset
        if low >= offset:
            return fit(unstable.records[low - offset : high - offset], bytes_max, self._measure)
        if low < self.first_index:
            raise Compacted(low)
        middle = min(high, offset)
        records = self._storage.entries(low, middle, bytes_max)
        assert records[0].index == low, "storage returned other records than asked for"
        # Storage may return fewer records, within the limit: the newer ones would leave a gap.
        if high > offset and len(records) == middle - low:
            records = records + unstable.records[: high - offset]
        return fit(records, bytes_max, self._measure)

    def snapshot(self) -> Snapshot:
        """The snapshot to send to a follower that is too far behind."""
        return self.unstable.snapshot or self._storage.snapshot()

    # Applying

    def appliable_index(self, *, allow_unstable: bool) -> int:
        """The highest committed index that may be applied.

        With asynchronous storage writes only records on this node's own disk may be applied. A
        committed record never comes back as another one, even if a crash loses it here; but the
        machine's snapshot must not run ahead of the log.
        """
        if allow_unstable:
            return self.committed
        return min(self.committed, self.unstable.offset - 1)

    def has_committed(self, *, allow_unstable: bool) -> bool:
        """Whether `take_committed` may return records."""
        if self.applying >= self.committed or self.is_applying_paused:
            return False
        if self.unstable.snapshot is not None or not self.is_applying_fetched:
            return False
        return self.applying < self.appliable_index(allow_unstable=allow_unstable)

    def take_committed(self, *, allow_unstable: bool) -> list[Record]:
        """The next committed records to apply, within the byte limit; from now on applying.

        A snapshot that is not installed yet goes first.

        Raises:
            NotInMemory: storage must fetch them first.
        """
        if not self.has_committed(allow_unstable=allow_unstable):
            return []
        last = self.appliable_index(allow_unstable=allow_unstable)
        bytes_max = self._committed_bytes_max
        records, weight = self._slice(self.applying + 1, last + 1, bytes_max - self.applying_bytes)
        index = records[-1].index
        # State machine safety needs each record applied once and in order (Raft §5.4.3).
        assert records[0].index == self.applying + 1, "a record is applied twice or left out"
        assert index <= self.committed, "a record is applied before it is committed"
        self.applying = index
        self.applying_bytes += weight
        self.applying_weights.append((index, weight))
        # If the limit cut this slice short, another record would exceed it.
        self.is_applying_paused = self.applying_bytes >= bytes_max or index < last
        return records

    def applied_to(self, index: int) -> int:
        """The machine has applied all up to `index`. Returns the weight of the new ones."""
        assert self.applied <= index <= self.committed, (
            f"applied {index} is outside [{self.applied}, {self.committed}]"
        )
        self.applied = index
        if self.applying < index:
            self.applying = index
        freed = 0
        weights = self.applying_weights
        while weights and weights[0][0] <= index:
            freed += weights.popleft()[1]
        self.applying_bytes -= freed
        assert weights or not self.applying_bytes, "bytes of a batch that is not being applied"
        self.is_applying_paused = self.applying_bytes >= self._committed_bytes_max
        return freed
