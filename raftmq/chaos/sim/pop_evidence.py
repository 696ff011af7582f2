"""The committed logs of all data groups, read along by the ledger after the run.

Every record is taken down when the first node applies it. After the run they are applied once more,
from the first one, by a machine of our own: what it hands out and answers is judged by `PopLog`;
what it looks like in the end, every node's machine must look like too, whatever snapshots and
restarts it came through.

Invariants:
- Looking changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from raftmq.broker.group import Group
from raftmq.broker.hosting import FOUNDING_INDEX
from raftmq.chaos.checkers.pop_calls import pop_traffic
from raftmq.chaos.history import History
from raftmq.chaos.ledger import PopBreach, PopLog
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.stage import Stage
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.pop.machine import PartitionMachine


class PopEvidence:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._records: dict[int, dict[int, Record]] = defaultdict(dict)
        self.records = 0
        """So many were judged."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        if isinstance(group.machine, PartitionMachine):
            known = self._records[group.number]
            for record in records:
                known.setdefault(record.index, record)

    def judge(self, stage: Stage, history: History, *, is_drained: bool) -> list[PopBreach]:
        """What the machines did wrong; if the run is drained, nothing is due any more."""
        breaches: list[PopBreach] = []
        ledgers = []
        for number, records in sorted(self._records.items()):
            ledger, machine = PopLog(), PartitionMachine()
            try:
                self._replay(records, ledger, machine)
            except AssertionError as error:
                breaches.append(PopBreach("assert", machine.applied, f"group {number}: {error}"))
            self.records += ledger.records
            breaches += ledger.breaches[:3]
            if is_drained:
                late = ledger.withheld.overdue()
                breaches += [PopBreach(name, machine.applied, fact) for name, fact in late]
            if not breaches:
                breaches += self._compare(number, machine)
            ledgers.append(ledger)
        breaches += list(_strange(stage, history, ledgers))[:3]
        return breaches

    def _replay(
        self, records: dict[int, Record], ledger: PopLog, machine: PartitionMachine
    ) -> None:
        machine.applied = FOUNDING_INDEX
        for index in range(FOUNDING_INDEX + 1, max(records) + 1):
            assert index in records, f"record {index} was applied by nobody"
            record = records[index]
            results = machine.apply(record)
            ledger.follow(record, results, machine.serving.take_handed(), machine)
            # The index of the log is not made here: what it would be made of must not pile up.
            machine.serving.take_traced()
        for attached in machine.serving.attached.values():
            attached.group.audit()

    def _compare(self, number: int, machine: PartitionMachine) -> Iterator[PopBreach]:
        """Nodes that have applied everything have the same state, byte for byte."""
        state = machine.snapshot()
        for node, running in sorted(self._cluster.nodes.items()):
            group = running.groups.get(number)
            if group is None or not isinstance(group.machine, PartitionMachine):
                continue
            if group.machine.applied == machine.applied and group.machine.snapshot() != state:
                fact = f"group {number}: the state of node {node} is not what its log gives"
                yield PopBreach("R21", machine.applied, fact)


def _strange(stage: Stage, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
    """What clients saw and the log does not know."""
    catalog = stage.newest_catalog()
    if catalog is None:
        return
    attachments = catalog.consumer_groups.attachments
    numbers = {one.consumer_group: number for number, one in attachments.items()}
    for traffic in pop_traffic(history).values():
        number = numbers[traffic.group]
        queue = attachments[number].topic_id << 16 | int(traffic.queue.rpartition("/")[2])
        for seen in traffic.deliveries:
            whys = [one.why_strange(number, queue, seen) for one in ledgers]
            if all(whys):
                yield PopBreach("Q8", 0, whys[0])
