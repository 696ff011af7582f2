"""The committed logs of all data groups, read along by the ledger after the run.

Every record is taken down when the first node applies it. After the run they are applied once more,
from the first one, by a machine of our own: what it hands out and answers is judged by `PopLog`;
what it looks like in the end, every node's machine must look like too, whatever snapshots and
restarts it came through. `look` takes that down while the nodes run, as nothing is left of them
afterwards.

Where retention goes by size (`retains_little`) it drops what groups have not read. What a leader
then tells groups must be what the log has given up, and what is told to clients as lost must be
what the second machine counts.

Invariants:
- Looking changes nothing.
- Each comparison is counted; a kind of comparison that was never made is vacuous, not good.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import google_crc32c

from raftmq.broker.group import Group
from raftmq.broker.hosting import FOUNDING_INDEX
from raftmq.chaos.checkers.pop_calls import QueueTraffic, pop_traffic
from raftmq.chaos.history import History
from raftmq.chaos.ledger import PopBreach, PopLog
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.stage import Stage
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.pop.catalog import Catalog
from raftmq.pop.machine import PartitionMachine
from raftmq.pop.results import Appended, Result

RECORDS = "records read along"
STATES = "R21 states, byte for byte"
BORDERS = "R21 states at the borders between segments"
DELIVERIES = "Q8 deliveries looked up in the log"
GIVEN_UP = "Q25 messages that retention gave up"
LOST = "Q25 counts of what is lost"


class PopEvidence:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, *, retains_little: bool = False) -> None:
        """`retains_little`: retention must have dropped something, or nothing was shown."""
        self._cluster = cluster
        self._records: dict[int, dict[int, Record]] = defaultdict(dict)
        # By group and border: the node, and the checksum of its machine's state there. A node that
        # is started again passes some borders again, restored from a snapshot before them.
        self._borders: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._states: dict[int, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        self._catalog: Catalog | None = None
        self.compared: Counter[str] = Counter({RECORDS: 0, STATES: 0, DELIVERIES: 0})
        """What was compared with what the second machine made of the log, by kind."""
        self.lost = 0
        """Messages that retention took from groups, as clients were told in the end."""
        if retains_little:
            self.compared[GIVEN_UP] = self.compared[LOST] = 0
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
        if is_drained and not breaches:
            breaches += list(self._miscounted(history, ledgers))[:3]
        return breaches

    def _replay(
        self, number: int, records: dict[int, Record], ledger: PopLog, machine: PartitionMachine
    ) -> None:
        machine.applied = FOUNDING_INDEX
        kept = KeptQueues()
        for index in range(FOUNDING_INDEX + 1, max(records) + 1):
            assert index in records, f"record {index} was applied by nobody"
            record = records[index]
            results = machine.apply(record)
            ledger.follow(record, results, machine.serving.take_handed(), machine)
            for given_up, fact in kept.follow(results, index, machine):
                self.compared[GIVEN_UP] += given_up
                if fact:
                    ledger.note("Q25", fact)
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

    def _miscounted(self, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
        """What clients are told of what retention took, and what the log says."""
        for number, queue, traffic in self._traffic(history):
            for ledger in ledgers:
                group = ledger.groups.get(number)
                if traffic.books is None or group is None or queue not in group.queues:
                    continue
                told, lost = traffic.books.lost, group.queues[queue].counts["lost"]
                self.compared[LOST] += 1
                self.lost += told
                if told != lost:
                    fact = f"{traffic.name}: {told} messages are told as lost, the log has {lost}"
                    yield PopBreach("Q25", 0, fact)

    def _traffic(self, history: History) -> Iterator[tuple[int, int, QueueTraffic]]:
        """Of each group and queue: their numbers, and what clients did."""
        if self._catalog is None:
            return
        attachments = self._catalog.consumer_groups.attachments
        numbers = {one.consumer_group: number for number, one in attachments.items()}
        for traffic in pop_traffic(history).values():
            number = numbers[traffic.group]
            queue = attachments[number].topic_id << 16 | int(traffic.queue.rpartition("/")[2])
            yield number, queue, traffic

    def _strange(self, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
        """What clients saw and the log does not know."""
        for number, queue, traffic in self._traffic(history):
            for seen in traffic.deliveries:
                self.compared[DELIVERIES] += 1
                whys = [one.why_strange(number, queue, seen) for one in ledgers]
                if all(whys):
                    yield PopBreach("Q8", 0, whys[0])


class KeptQueues:
    """Where the messages of each queue stand in a log, and what retention has left of them."""

    def __init__(self) -> None:
        # By queue: the ends of its batches, and their places in the log.
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._indexes: dict[int, list[int]] = defaultdict(list)
        self._earliest: dict[int, int] = {}

    def follow(
        self, results: Sequence[Result], index: int, machine: PartitionMachine
    ) -> Iterator[tuple[int, str]]:
        """A record was applied: how many messages groups were told to give up with it, and what is
        wrong with that; empty: nothing."""
        for result in results:
            if isinstance(result, Appended) and not result.duplicate:
                self._ends[result.queue].append(result.base_offset + result.count)
                self._indexes[result.queue].append(index)
        for queue, earliest in machine.serving.earliest.items():
            before = self._earliest.get(queue, 0)
            if earliest > before:
                self._earliest[queue] = earliest
                yield earliest - before, self._why_wrong(queue, earliest, machine.log_start)

    def _why_wrong(self, queue: int, earliest: int, log_start: int) -> str:
        """Whether all before an offset was dropped, and the offset is where a batch begins."""
        place = bisect_left(self._ends[queue], earliest)
        what = f"groups are told that queue {queue} begins at offset {earliest}"
        if place == len(self._ends[queue]) or self._ends[queue][place] != earliest:
            return f"{what}, and no batch does"
        if self._indexes[queue][place] >= log_start:
            return f"{what}, and the log keeps all from {log_start} on, which is more"
        return ""
