"""The committed logs of all data groups, read along by the ledger after the run.

Every record is taken down when the first node applies it. After the run they are applied once more,
from the first one, by a machine of our own: what it hands out and answers is judged by `PopLog`;
what it looks like in the end, every node's machine must look like too, whatever snapshots and
restarts it came through. `look` takes that down while the nodes run, as nothing is left of them
afterwards.

Invariants:
- Looking changes nothing.
- Each comparison is counted; a kind of comparison that was never made is vacuous, not good.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import google_crc32c

from raftmq.broker.group import Group
from raftmq.broker.hosting import FOUNDING_INDEX
from raftmq.chaos.checkers.pop_calls import pop_traffic
from raftmq.chaos.history import History
from raftmq.chaos.ledger import PopBreach, PopLog
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.stage import Stage
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.pop.catalog import Catalog
from raftmq.pop.machine import PartitionMachine

RECORDS = "records read along"
STATES = "R21 states, byte for byte"
BORDERS = "R21 states at the borders between segments"
DELIVERIES = "Q8 deliveries looked up in the log"


class PopEvidence:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._records: dict[int, dict[int, Record]] = defaultdict(dict)
        # By group and border: the node, and the checksum of its machine's state there. A node that
        # is started again passes some borders again, restored from a snapshot before them.
        self._borders: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._states: dict[int, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        self._catalog: Catalog | None = None
        self.compared: Counter[str] = Counter({RECORDS: 0, STATES: 0, DELIVERIES: 0})
        """What was compared with what the second machine made of the log, by kind."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if isinstance(group.machine, PartitionMachine):
            known = self._records[group.number]
            for record in records:
                known.setdefault(record.index, record)

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""
        if isinstance(group.machine, PartitionMachine):
            crc = google_crc32c.value(group.machine.snapshot())
            self._borders[group.number, record.index].append((node, crc))

    def look(self, stage: Stage) -> None:
        """Take down the state of each node's machines, and the catalog, while the nodes run."""
        self._catalog = stage.newest_catalog()
        for node, running in sorted(self._cluster.nodes.items()):
            for number, group in running.groups.items():
                if isinstance(group.machine, PartitionMachine):
                    state = group.machine.applied, group.machine.snapshot()
                    self._states[number][node] = state

    def judge(self, history: History, *, is_drained: bool) -> list[PopBreach]:
        """What the machines did wrong; if the run is drained, nothing is due any more."""
        breaches: list[PopBreach] = []
        ledgers = []
        for number, records in sorted(self._records.items()):
            ledger, machine = PopLog(), PartitionMachine()
            try:
                self._replay(number, records, ledger, machine)
            except AssertionError as error:
                breaches.append(PopBreach("assert", machine.applied, f"group {number}: {error}"))
            self.compared[RECORDS] += ledger.records
            breaches += ledger.breaches[:3]
            if is_drained:
                late = ledger.withheld.overdue()
                breaches += [PopBreach(name, machine.applied, fact) for name, fact in late]
            if not breaches:
                breaches += self._compare(number, machine)
            ledgers.append(ledger)
        breaches += list(self._strange(history, ledgers))[:3]
        return breaches

    def _replay(
        self, number: int, records: dict[int, Record], ledger: PopLog, machine: PartitionMachine
    ) -> None:
        machine.applied = FOUNDING_INDEX
        for index in range(FOUNDING_INDEX + 1, max(records) + 1):
            assert index in records, f"record {index} was applied by nobody"
            record = records[index]
            results = machine.apply(record)
            ledger.follow(record, results, machine.serving.take_handed(), machine)
            # The index of the log is not made here: what it would be made of must not pile up.
            machine.serving.take_traced()
            for node, crc in self._borders.get((number, index), ()):
                self.compared[BORDERS] += 1
                if crc != google_crc32c.value(machine.snapshot()):
                    ledger.note("R21", f"the state of node {node} is not what its log gives")
        for attached in machine.serving.attached.values():
            attached.group.audit()

    def _compare(self, number: int, machine: PartitionMachine) -> Iterator[PopBreach]:
        """Nodes that have applied everything have the same state, byte for byte."""
        expected = machine.snapshot()
        for node, (applied, state) in sorted(self._states[number].items()):
            if applied != machine.applied:
                continue
            self.compared[STATES] += 1
            if state != expected:
                fact = f"group {number}: the state of node {node} is not what its log gives"
                yield PopBreach("R21", machine.applied, fact)

    def _strange(self, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
        """What clients saw and the log does not know."""
        if self._catalog is None:
            return
        attachments = self._catalog.consumer_groups.attachments
        numbers = {one.consumer_group: number for number, one in attachments.items()}
        for traffic in pop_traffic(history).values():
            number = numbers[traffic.group]
            queue = attachments[number].topic_id << 16 | int(traffic.queue.rpartition("/")[2])
            for seen in traffic.deliveries:
                self.compared[DELIVERIES] += 1
                whys = [one.why_strange(number, queue, seen) for one in ledgers]
                if all(whys):
                    yield PopBreach("Q8", 0, whys[0])
