"""Changes of members, as leaders apply them: do they follow the catalog, and is a leaving node
noted as unused while a data group still counts on it?

The leader of the system group asks all nodes, and notes which leaving nodes are in no data group
(`LeaderTasks.has_moved`). Then the system group drops them. A data group counts on a node as long
as either half of its membership has the node. So a leader that applies the end of a change of its
own term must not find a node that leaves by this change among those noted: V10.

A leader changes the members of a data group as the catalog wants, but may hear of a new catalog
late, or not at all: V12. One of the catalogs of the last CATALOG_SECONDS_MAX must have wanted a
member that comes; a voter whose node is wanted under another id goes only when the other id votes.

Invariants:
- Observing changes nothing.

Left out: changes of an earlier term. Another leader may have applied such a change, and have
answered by it.
"""

from collections import Counter, deque
from collections.abc import Sequence

import trio

from raftmq.broker.replica.group import Group, node_of
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import ConfState, Message
from raftmq.log.record import Kind, Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.catalog.replicas import member_of

COMPARED = "V10 leaving nodes that a data group dropped"
"""Name of a comparison."""
CHANGED = "V12 members that came or went"
"""Name of a comparison."""
CATALOG_SECONDS_MAX = 20.0
"""Greatest age of the catalog behind an applied change: the catalog was new when the change was
proposed, and a leader of the same term has committed the change since."""


class Leaving:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Node and partition group → the last record that was applied there, and the membership.
        self._applied: dict[tuple[int, int], tuple[int, ConfState]] = {}
        # The newest catalogs: until when each was the newest, and the members of each group.
        self._catalogs: deque[tuple[float, dict[int, list[int]]]] = deque()
        self._newest: tuple[int, dict[int, list[int]]] = (-1, {})
        self.early: list[str] = []
        """Nodes that were noted as unused too early, in words."""
        self.astray: list[str] = []
        """Changes that no catalog of the last seconds wanted, in words."""
        self.compared: Counter[str] = Counter()
        """Nodes that were judged."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if group.number == SYSTEM_GROUP:
            self._note_catalog(self._cluster.nodes[node].catalog)
            return
        if not records:
            return
        key, after = (node, group.number), group.conf_state
        last, before = self._applied.get(key, (0, after))
        self._applied[key] = records[-1].index, after
        if records[0].index != last + 1:
            # A snapshot came between, whose membership may be another one.
            return
        is_own = any(
            record.kind == Kind.MEMBERSHIP and record.term == group.raft.term for record in records
        )
        if group.is_leader and is_own:
            for dropped in sorted(_counted(before) - _counted(after)):
                self._judge(group.number, dropped, before)
            self._judge_change(node, group.number, before, after)

    def _note_catalog(self, catalog: Catalog) -> None:
        version, members = self._newest
        if catalog.version <= version:
            return
        now = trio.current_time()
        self._catalogs.append((now, members))
        while self._catalogs[0][0] < now - CATALOG_SECONDS_MAX:
            self._catalogs.popleft()
        wanted = {
            number: [member_of(catalog, number, node) for node in group.members]
            for number, group in catalog.groups.items()
        }
        self._newest = catalog.version, wanted

    def _judge_change(self, leader: int, number: int, before: ConfState, after: ConfState) -> None:
        if self._newest[0] < 0:
            return
        since = trio.current_time() - CATALOG_SECONDS_MAX
        recent = [members for until, members in self._catalogs if until >= since]
        wanted = [each[number] for each in (*recent, self._newest[1]) if number in each]
        if not wanted:
            return
        was, has = ({*conf.voters, *conf.learners} for conf in (before, after))
        strange = (has - was).difference(*wanted)
        voting = set(map(node_of, after.voters))
        alive = [
            member
            for member in sorted(set(before.voters).difference(after.voters))
            if node_of(member) not in voting
            and all(node_of(member) in map(node_of, members) for members in wanted)
        ]
        self.compared[CHANGED] += len(has ^ was)
        if strange or alive:
            self.astray.append(
                f"node {leader}, which leads group {number}, took in {sorted(strange)} and dropped "
                f"the voters {alive}, against all catalogs of the last {CATALOG_SECONDS_MAX:.0f} s:"
                f" {before} became {after}; wanted: {wanted}"
            )

    def _judge(self, number: int, dropped: int, before: ConfState) -> None:
        leader = self._cluster.leader(SYSTEM_GROUP)
        system = self._cluster.nodes.get(leader)
        listed = system.catalog.nodes.get(dropped) if system is not None else None
        if system is None or listed is None or not listed.is_leaving:
            return
        self.compared[COMPARED] += 1
        if system.leader_tasks.has_moved(dropped):
            self.early.append(
                f"group {number} counted on node {dropped} until now, {before}, and node {leader} "
                "has noted that no data group does"
            )


def _counted(conf: ConfState) -> set[int]:
    return {node_of(member) for member in (*conf.voters, *conf.voters_outgoing)}
