"""A group's durable log as consensus reads it: the cache, and records fetched back from disk.

Consensus asks synchronously and must not wait. Records that have left the cache are read on another
thread (effect `ReadBack`) and *lent* here until they have been used.

Invariants:
- Lent records are dropped when their reader has passed them, so memory is bounded by one fetch for
  each member of the group.
- A lent record that the log has superseded since, or while it was being read, is never handed out.
"""

from collections.abc import Callable, Sequence

from raftmq.consensus import ConfState, HardState, Message, Snapshot
from raftmq.log.cache import LogCache, NotInMemory
from raftmq.log.record import Record


class GroupStorage:
    """The `raftmq.consensus.Storage` of one group."""

    def __init__(
        self,
        cache: LogCache,
        hard_state: HardState,
        conf_state: ConfState,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        self._cache = cache
        self._initial = hard_state, conf_state
        self._snapshot = snapshot
        self._lent: dict[int, list[Record]] = {}

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state and membership that were durable when the node started."""
        return self._initial

    def first_index(self) -> int:
        """Index of the first kept record."""
        return self._cache.first_index()

    def last_index(self) -> int:
        """Index of the last durable record."""
        return self._cache.last_index()

    def term(self, index: int) -> int:
        """Term of a kept record, or of the one before the first."""
        return self._cache.term(index)

    def tail(self, index: int) -> tuple[int, int]:
        """(crc, timestamp) of a record."""
        return self._cache.tail(index)

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        """Records from `low` up to `high`, at least one, within `bytes_max`."""
        try:
            return self._cache.entries(low, high, bytes_max)
        except NotInMemory:
            for peer, records in self._lent.items():
                first = records[0].index
                if first <= low < first + len(records):
                    kept = self._lent[peer] = self._current(records[low - first :])
                    if kept:
                        return _within(kept[: high - low], bytes_max)
                    del self._lent[peer]
                    break
            raise

    def _current(self, records: list[Record]) -> list[Record]:
        """The lent records that are still those of the log.

        Raft §5.3: a record of the same index and term is the same, and so are all before it.
        """
        cache, count = self._cache, len(records)
        last = cache.last_index()
        while count:
            record = records[count - 1]
            if record.index <= last and cache.term(record.index) == record.term:
                break
            count -= 1
        return records[:count]

    def lend(self, peer: int, records: Sequence[Record]) -> None:
        """Keep records that were read for a member; they replace those lent for it before."""
        if records:
            self._lent[peer] = list(records)
        else:
            self._lent.pop(peer, None)

    def snapshot(self) -> Snapshot:
        """The oldest snapshot kept: a member that installs it gets the whole kept log after it."""
        return self._snapshot()


def _within(records: list[Record], bytes_max: int) -> list[Record]:
    total = 0
    for count, record in enumerate(records):
        total += len(record.encoded)
        if total > bytes_max and count:
            return records[:count]
    return records


def since_last_snapshot(messages: Sequence[Message]) -> Sequence[Message]:
    """Storage messages of one pass without those before the last snapshot: that snapshot replaced
    all that they had brought, an earlier snapshot's file too."""
    last = max((n for n, each in enumerate(messages) if each.snapshot is not None), default=0)
    return messages[last:]
