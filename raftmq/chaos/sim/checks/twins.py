"""Each node's machines beside a twin: a machine that applies the committed log from its start.

`applied` keeps every record when the first node applies it. After the run a twin applies all of
them. Each node's machine must have the twin's whole state, byte for byte, in the end and where the
node passed a border between segments, also after snapshots and restarts. `take_states` keeps the
last states while the nodes run, as the nodes are gone afterwards.

Invariants:
- Observing changes nothing.
- Each comparison is counted; a kind of comparison that was never made is vacuous, not good.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import google_crc32c

from raftmq.broker.replica.group import Group, Machine
from raftmq.broker.replica.opener import FOUNDING_INDEX
from raftmq.chaos.ledger import PopBreach
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.machine import PartitionMachine

STATES = "R21 states, byte for byte"
BORDERS = "R21 states at the borders between segments"
CATALOGS = "R21 catalogs, byte for byte"


class Twins:
    """An observer of all nodes of a cluster, and of those of their groups that are watched."""

    def __init__(self, cluster: Cluster, is_watched: Callable[[Group], bool]) -> None:
        self._cluster = cluster
        self._is_watched = is_watched
        self._records: dict[int, dict[int, Record]] = defaultdict(dict)
        # By group and border: the node, and the checksum of its machine's state there. A node that
        # is started again passes some borders again, restored from a snapshot before them.
        self._borders: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._states: dict[int, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        self.compared: Counter[str] = Counter()
        """Comparisons of nodes with their twins, by kind."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if self._is_watched(group):
            known = self._records[group.number]
            for record in records:
                known.setdefault(record.index, record)

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""
        if self._is_watched(group):
            crc = google_crc32c.value(group.machine.snapshot())
            self._borders[group.number, record.index].append((node, crc))

    def take_states(self) -> None:
        """Take down the state of each node's machines, while the nodes run."""
        for node, running in sorted(self._cluster.nodes.items()):
            for number, group in running.groups.items():
                if self._is_watched(group):
                    self._states[number][node] = group.machine.applied, group.machine.snapshot()

    def differences(self) -> list[PopBreach]:
        """Differences between the nodes' machines and their twins; at most three of each group."""
        breaches: list[PopBreach] = []
        for number, records in sorted(self._records.items()):
            self.compared[_kind(number)] += 0
            machine: Machine = Catalog() if number == SYSTEM_GROUP else PartitionMachine()
            try:
                breaches += list(self._follow(number, records, machine))[:3]
            except AssertionError as error:
                breaches.append(PopBreach("assert", machine.applied, f"group {number}: {error}"))
        return breaches

    def _follow(
        self, number: int, records: dict[int, Record], machine: Machine
    ) -> Iterator[PopBreach]:
        machine.applied = FOUNDING_INDEX
        for index in range(FOUNDING_INDEX + 1, max(records) + 1):
            # A process may end between the apply of a record and the call of its observer.
            if index not in records:
                return
            machine.apply(records[index])
            if isinstance(machine, PartitionMachine):
                # No consumer and no index takes these: they must not pile up.
                machine.pop_groups.take_handed()
                machine.pop_groups.take_traced()
            for fact in self.at_border_differ(number, index, machine):
                yield PopBreach("R21", index, fact)
        yield from self.in_the_end_differ(number, machine)

    def at_border_differ(self, number: int, index: int, machine: Machine) -> Iterator[str]:
        """The twin has just applied a record: the nodes with another state there, in words."""
        for node, crc in self._borders.get((number, index), ()):
            self.compared[BORDERS] += 1
            if crc != google_crc32c.value(machine.snapshot()):
                yield f"group {number}: the state of node {node} is not what its log gives"

    def in_the_end_differ(self, number: int, machine: Machine) -> Iterator[PopBreach]:
        """Nodes that have applied all records and differ from the twin's state in any byte."""
        expected = machine.snapshot()
        for node, (applied, state) in sorted(self._states[number].items()):
            if applied != machine.applied:
                continue
            self.compared[_kind(number)] += 1
            if state != expected:
                fact = f"group {number}: the state of node {node} is not what its log gives"
                yield PopBreach("R21", machine.applied, fact)


def _kind(number: int) -> str:
    return CATALOGS if number == SYSTEM_GROUP else STATES
