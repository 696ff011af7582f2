"""The log as the event loop sees it: recent records in memory, and the term of every kept index.

Consensus and readers near the end ask here and never wait for a disk. The newest records up to a
byte bound are kept as one list; of evicted records only the terms are known, as runs. Evicted
records are read with `LogStore.read` on another thread.

    first_index          start            last_index
        |  on disk only    |   in memory      |
        |  terms known     |   whole records  |

Invariants:
- `first_index <= start <= last_index + 1`; records [start, last_index] are in memory.
- The newest record is never evicted, however large it is.
- Terms never fall with the index, so a run is (first index, term), and `term` is a bisection.

Sources: etcd's raft storage; the entry cache of TiKV's raft log engine.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from raftmq.log.record import Record
from raftmq.log.segment import Link

RECORD_OVERHEAD_BYTES = 320
"""Memory of a record beside its bytes: the tuple, its integers, the list slot (measured with
tracemalloc on CPython 3.11)."""


class NotInMemory(Exception):
    """The records exist and must be read from disk."""


class Compacted(Exception):
    """The index lies before the first kept record."""


class LogCache:
    """Recent records of one group's log. Touched by the event loop only.

    `bytes_max` bounds the records kept, `RECORD_OVERHEAD_BYTES` each included.
    """

    def __init__(
        self,
        *,
        start: Link,
        last: Link,
        terms: Sequence[tuple[int, int]],
        bytes_max: int,
    ) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._reset(start, last, terms)

    def _reset(self, start: Link, last: Link, terms: Sequence[tuple[int, int]]) -> None:
        assert start.index <= last.index, f"a log from {start.index} on ends at {last.index}"
        self._before = start
        self._edge = last
        """The record just before the first one in memory, if known by more than its term."""
        self._run_firsts = [first for first, _ in terms]
        self._run_terms = [term for _, term in terms]
        self._start = last.index + 1
        self._records: list[Record] = []
        self._ends = array("Q")
        """For each record in memory, the running sum of record bytes up to its end."""
        self._sum_before = 0

    def first_index(self) -> int:
        """Index of the first kept record (on disk or in memory)."""
        return self._before.index + 1

    def last_index(self) -> int:
        """Index of the last record; `first_index() - 1` if there is none."""
        return self._start + len(self._records) - 1

    def memory_start(self) -> int:
        """Index of the first record in memory; `last_index() + 1` if there is none."""
        return self._start

    def memory_bytes(self) -> int:
        """Bytes of the records in memory that count against the bound."""
        return self._record_bytes() + RECORD_OVERHEAD_BYTES * len(self._records)

    def _record_bytes(self) -> int:
        return self._ends[-1] - self._sum_before if self._ends else 0

    def term(self, index: int) -> int:
        """Term of the record at `index`, from `first_index() - 1` to `last_index()`.

        Raises:
            Compacted: the index lies further back.
        """
        assert index <= self.last_index(), f"{index} is past the end, {self.last_index()}"
        if index >= self._start:
            return self._records[index - self._start].term
        if index <= self._before.index:
            if index < self._before.index:
                raise Compacted(index)
            return self._before.term
        return self._run_terms[bisect_right(self._run_firsts, index) - 1]

    def tail(self, index: int) -> tuple[int, int]:
        """(crc, timestamp) of the record at `index`, on which the next record depends.

        Raises:
            Compacted: the index lies before `first_index() - 1`.
            NotInMemory: the record must be read from disk.
        """
        assert index <= self.last_index(), f"{index} is past the end, {self.last_index()}"
        if index >= self._start:
            record = self._records[index - self._start]
            return record.crc, record.timestamp
        for link in (self._edge, self._before):
            if index == link.index:
                return link.crc, link.timestamp
        if index < self._before.index:
            raise Compacted(index)
        raise NotInMemory(index)

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        """Records from `low` up to `high` (exclusive), a prefix of them within `bytes_max`.

        At least one record is returned, however large, if low < high.

        Raises:
            Compacted: `low` lies before the first kept record.
            NotInMemory: the record at `low` must be read from disk.
        """
        assert low <= high <= self.last_index() + 1, f"[{low}, {high}) of {self.last_index()}"
        begin = low - self._start
        if begin < 0:
            if low <= self._before.index:
                raise Compacted(low)
            raise NotInMemory(low)
        end = high - self._start
        if end - begin > 1:
            limit = bytes_max + (self._ends[begin - 1] if begin else self._sum_before)
            if self._ends[end - 1] > limit:
                end = max(begin + 1, bisect_right(self._ends, limit, begin, end))
        return self._records[begin:end]

    def get(self, index: int) -> Record | None:
        """The record at `index` if it is in memory."""
        at = index - self._start
        return self._records[at] if 0 <= at < len(self._records) else None

    def append(self, records: Sequence[Record]) -> None:
        """Add consecutive records; the first one supersedes all at or above its index."""
        if not records:
            return
        first = records[0].index
        assert self._before.index < first <= self.last_index() + 1, (
            f"record {first} does not follow {self.last_index()}"
        )
        if first <= self.last_index():
            self._cut(first)
        total = self._ends[-1] if self._ends else self._sum_before
        ends = accumulate([len(record.encoded) for record in records], initial=total)
        next(ends)
        self._ends.extend(ends)
        self._records.extend(records)
        self._add_terms(records)
        assert len(self._ends) == len(self._records), "sizes and records out of step"
        if self.memory_bytes() > self._bytes_max:
            self._evict()

    def resize(self, bytes_max: int) -> None:
        """Keep at most `bytes_max` bytes from now on; the newest record stays, however large."""
        assert bytes_max > 0
        self._bytes_max = bytes_max
        if self.memory_bytes() > bytes_max:
            self._evict()

    def _add_terms(self, records: Sequence[Record]) -> None:
        term = self._run_terms[-1] if self._run_terms else -1
        if records[-1].term == term:
            return
        for record in records:
            if record.term != term:
                term = record.term
                self._run_firsts.append(record.index)
                self._run_terms.append(term)

    def _cut(self, first: int) -> None:
        if first >= self._start:
            del self._records[first - self._start :]
            del self._ends[first - self._start :]
        else:
            # The record before `first` is on disk only: its term is known, its crc is not.
            self._records.clear()
            del self._ends[:]
            self._sum_before = 0
            self._start = first
            self._edge = self._before
        while self._run_firsts and self._run_firsts[-1] >= first:
            self._run_firsts.pop()
            self._run_terms.pop()
        assert self.last_index() == first - 1, f"records from {first} on are not superseded"

    def _evict(self) -> None:
        # An eighth below the bound, so that shifting the list is paid once for many appends.
        target = self._bytes_max - self._bytes_max // 8
        excess = self.memory_bytes() - target
        begin, end = 0, len(self._records) - 1
        while begin < end:
            middle = (begin + end) // 2
            freed = self._ends[middle] - self._sum_before + RECORD_OVERHEAD_BYTES * (middle + 1)
            begin, end = (begin, middle) if freed >= excess else (middle + 1, end)
        count = min(begin + 1, len(self._records) - 1)
        if count <= 0:
            return
        last = self._records[count - 1]
        self._edge = Link(last.index, last.term, last.crc, last.timestamp)
        self._sum_before = self._ends[count - 1]
        del self._records[:count]
        del self._ends[:count]
        self._start += count
        is_alone = len(self._records) == 1
        assert is_alone or 0 < self.memory_bytes() <= self._bytes_max, "too much stays, or nothing"

    def drop_before(self, start: Link) -> None:
        """Retention moved: `start` is now the record just before the first kept one."""
        if start.index <= self._before.index:
            return
        assert start.index <= self.last_index()
        count = start.index + 1 - self._start
        if count > 0:
            self._sum_before = self._ends[count - 1]
            del self._records[:count]
            del self._ends[:count]
            self._start += count
            self._edge = start
        run = bisect_right(self._run_firsts, start.index + 1) - 1
        if run > 0:
            del self._run_firsts[:run]
            del self._run_terms[:run]
        self._before = start
        assert self.first_index() <= self._start <= self.last_index() + 1, "dropped, yet in memory"

    def restore(self, start: Link) -> None:
        """A snapshot at `start` took the place of the whole log."""
        self._reset(start, start, ())
