"""Nodes that leave: is one said to be unused while a data group still counts on it?

The leader of the system group asks all nodes, and notes which leaving nodes are in no data group
(`Duties.has_moved`). Then the system group drops them. A data group counts on a node as long as
either half of its membership has the node. So a leader that applies the end of a change of its own
term must not find a node that leaves by this change among those noted: V10.

Invariants:
- Looking changes nothing.

Left out: changes of an earlier term. Another leader may have applied such a change, and have
answered by it.
"""

from collections import Counter
from collections.abc import Sequence

from raftmq.broker.group import Group, node_of
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import ConfState, Message
from raftmq.log.record import Kind, Record
from raftmq.pop.catalog import SYSTEM_GROUP

COMPARED = "V10 leaving nodes that a data group dropped"
"""Name of a comparison."""


class Leaving:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Node and partition group → the last record that was applied there, and the membership.
        self._applied: dict[tuple[int, int], tuple[int, ConfState]] = {}
        self.early: list[str] = []
        """Nodes that were said to be unused too early, in words."""
        self.compared: Counter[str] = Counter()
        """Nodes that were judged."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if group.number == SYSTEM_GROUP or not records:
            return
        key, after = (node, group.number), group.conf_state
        last, before = self._applied.get(key, (0, after))
        self._applied[key] = records[-1].index, after
        if records[0].index != last + 1:
            # A snapshot came between, which may have another membership.
            return
        is_own = any(
            record.kind == Kind.MEMBERSHIP and record.term == group.raft.term for record in records
        )
        if group.is_leader and is_own:
            for dropped in sorted(_counted(before) - _counted(after)):
                self._judge(group.number, dropped, before)

    def _judge(self, number: int, dropped: int, before: ConfState) -> None:
        leader = self._cluster.leader(SYSTEM_GROUP)
        system = self._cluster.nodes.get(leader)
        listed = system.catalog.nodes.get(dropped) if system is not None else None
        if system is None or listed is None or not listed.is_leaving:
            return
        self.compared[COMPARED] += 1
        if system.duties.has_moved(dropped):
            self.early.append(
                f"group {number} counted on node {dropped} until now, {before}, and node {leader} "
                "has noted that no data group does"
            )


def _counted(conf: ConfState) -> set[int]:
    return {node_of(member) for member in (*conf.voters, *conf.voters_outgoing)}
