"""Records that nodes sent and acknowledged, and failed syncs: evidence for L4, L5, L8 and R13.

| part | what is taken down |
|---|---|
| `served` | committed records as they leave for another member, by the checksum of their bytes |
| `acknowledged` | records of its own term that a leader applies, and answers |
| `lacking` | acknowledged records that a new leader lacks when it has applied its first record |
| `sync_failures` | refused syncs of a log; no promise rests on syncs of other files |

Invariants:
- Observing changes nothing.

Left out: messages that consumers are handed; the history has their values.
"""

from collections import defaultdict
from collections.abc import Sequence

import google_crc32c

from raftmq.broker.replica.group import Group
from raftmq.chaos.sim.cluster import DATA, Cluster
from raftmq.checkers.servers.evidence import Acknowledged, Entry, Served, SyncFailed
from raftmq.consensus import Message
from raftmq.log.files import NEW_SUFFIX
from raftmq.log.record import Kind, Record
from raftmq.log.segment import SEGMENT_SUFFIX

from .watch import Watch

_CRC_BYTES = 4
"""A record's checksum comes first and covers all that follows."""
_ANSWERED = frozenset({Kind.BATCH, Kind.COMMANDS})
"""Kinds of records whose clients wait for an answer."""


class Handed:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        self._incarnations = cluster.incarnations
        self._watch = watch
        self.served: dict[int, dict[Served, None]] = defaultdict(dict)
        """Served records by partition group, each once."""
        self.acknowledged: dict[int, list[Acknowledged]] = defaultdict(list)
        """By partition group, in order of time."""
        self.sync_failures: dict[int, list[SyncFailed]] = defaultdict(list)
        """By partition group, in order of time."""
        self.lacking: list[str] = []
        """Acknowledged records that a later leader did not hold, in words."""
        self.lookups = 0
        """Acknowledged records that were looked for in the logs of later leaders."""
        self._compared: set[tuple[int, int, int]] = set()
        cluster.observers.append(self)
        cluster.sync_listeners.append(self._sync_failed)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`. An uncommitted record may yet be replaced, and proves nothing."""
        commit, served = group.raft.commit, self.served[group.number]
        for record in message.entries:
            if record.index > commit:
                return
            crc = google_crc32c.value(record.encoded[_CRC_BYTES:])
            served[Served(node, record.index, crc)] = None

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if not group.is_leader:
            return
        self._look_into(node, group)
        now, incarnation = self._watch.now_ms, self._incarnations[node]
        self.acknowledged[group.number] += [
            Acknowledged(now, node, incarnation, _entry(record))
            for record in records
            if record.term == group.raft.term and record.kind in _ANSWERED
        ]

    def _look_into(self, node: int, group: Group) -> None:
        """Raft §5.4: a leader holds all records that any node committed in earlier terms."""
        term, log = group.raft.term, group.storage
        office = group.number, term, node
        if office in self._compared:
            return
        self._compared.add(office)
        first, last = log.first_index(), log.last_index()
        for told in self.acknowledged[group.number]:
            index = told.entry.index
            # Records in a snapshot have no terms; elsewhere an index and a term name one record.
            is_held = index < first or (index <= last and log.term(index) == told.entry.term)
            self.lookups += told.entry.term < term
            if told.entry.term < term and not is_held:
                self.lacking.append(
                    f"group {group.number}: node {node} leads in term {term} and lacks index "
                    f"{index} of term {told.entry.term}, which node {told.node} acknowledged"
                )
                return

    def _sync_failed(self, node: int, path: str) -> None:
        folder, _, name = path.removesuffix(NEW_SUFFIX).rpartition("/")
        if folder.startswith(f"{DATA}/groups/") and name.endswith(SEGMENT_SUFFIX):
            group = int(folder.rpartition("/")[2])
            failed = SyncFailed(self._watch.now_ms, node, self._incarnations[node])
            self.sync_failures[group].append(failed)


def _entry(record: Record) -> Entry:
    return Entry(record.index, record.term, record.crc, record.chain)
