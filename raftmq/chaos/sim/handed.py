"""What nodes gave away, and which syncs failed them: evidence for L4, L5, L8 and R13.

| part | what is taken down |
|---|---|
| `served` | committed records as they leave for another member, by the checksum of their bytes |
| `acknowledged` | records of its own term that a leader applies: who waits for them is told |
| `sync_failures` | refused syncs of a log; those of other files promise nothing to anybody |

Invariants:
- Looking changes nothing.

Left out: what consumers are handed; there the history has the values themselves.
"""

from collections import defaultdict
from collections.abc import Sequence

import google_crc32c

from raftmq.broker.group import Group
from raftmq.chaos.checkers.evidence import Acknowledged, Entry, Served, SyncFailed
from raftmq.chaos.sim.cluster import DATA, Cluster
from raftmq.chaos.sim.watch import Watch
from raftmq.consensus import Message
from raftmq.log.files import NEW_SUFFIX
from raftmq.log.record import Kind, Record
from raftmq.log.segment import SEGMENT_SUFFIX

_CRC_BYTES = 4
"""A record's checksum comes first and is of all that follows."""
_ANSWERED = frozenset({Kind.BATCH, Kind.COMMANDS})
"""Kinds of records that somebody waits for."""


class Handed:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        self._incarnations = cluster.incarnations
        self._watch = watch
        self.served: dict[int, dict[Served, None]] = defaultdict(dict)
        """By partition group, each once."""
        self.acknowledged: dict[int, list[Acknowledged]] = defaultdict(list)
        """By partition group, in order of time."""
        self.sync_failures: dict[int, list[SyncFailed]] = defaultdict(list)
        """By partition group, in order of time."""
        cluster.observers.append(self)
        cluster.sync_listeners.append(self._sync_failed)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`. What is not committed may yet be replaced, and proves nothing."""
        commit, served = group.raft.commit, self.served[group.number]
        for record in message.entries:
            if record.index > commit:
                return
            crc = google_crc32c.value(record.encoded[_CRC_BYTES:])
            served[Served(node, record.index, crc)] = None

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if not group.is_leader:
            return
        now, incarnation = self._watch.now_ms, self._incarnations[node]
        self.acknowledged[group.number] += [
            Acknowledged(now, node, incarnation, _entry(record))
            for record in records
            if record.term == group.raft.term and record.kind in _ANSWERED
        ]

    def _sync_failed(self, node: int, path: str) -> None:
        folder, _, name = path.removesuffix(NEW_SUFFIX).rpartition("/")
        if folder.startswith(f"{DATA}/groups/") and name.endswith(SEGMENT_SUFFIX):
            group = int(folder.rpartition("/")[2])
            failed = SyncFailed(self._watch.now_ms, node, self._incarnations[node])
            self.sync_failures[group].append(failed)


def _entry(record: Record) -> Entry:
    return Entry(record.index, record.term, record.crc, record.chain)
