"""The ledger replays the committed logs of all data groups after the run, and answers to POPs are
judged as they leave.

The twin of each machine (`twins`) hands out and answers again: `PopLog` judges that.

Retention by size (`retains_little`) drops messages that groups have not read. A leader must
announce these messages to the groups before, and no others, and the counts of lost messages that
clients get must be those of the twin.

An answer to a POP must have only messages that the consumer holds by the leader's machine at that
moment, with the deadline of their lease. The leader keeps leases that did not fit into an answer,
and a lease may be extended, settled or reset before the next one: runs in which an answer has one
batch (`run.PARTS_EVERY`) meet that often.

Invariants:
- Observing changes nothing.
- Each comparison is counted; a kind of comparison that was never made is vacuous, not good.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from raftmq.broker.deliver.consumers import Consumer, Key
from raftmq.broker.replica.opener import FOUNDING_INDEX
from raftmq.chaos.ledger import PopBreach, PopLog
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.observed import ObservedNode
from raftmq.chaos.sim.run_state import RunState
from raftmq.checkers.history import History
from raftmq.checkers.pop.calls import QueueTraffic, pop_traffic
from raftmq.log.record import Record
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.spans import Span
from raftmq.results import Appended, Result
from raftmq.wire.frame import FramePart
from raftmq.wire.popping import Lease, Popped

from .twins import STATES, Twins

RECORDS = "records read along"
DELIVERIES = "Q8 deliveries looked up in the log"
GIVEN_UP = "Q25 messages that retention gave up"
LOST = "Q25 counts of what is lost"
ANSWERED = "leases in answers by the machine"


class PopEvidence(Twins):
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, *, retains_little: bool = False) -> None:
        """`retains_little`: a run in which retention dropped nothing is vacuous."""
        super().__init__(cluster, lambda group: isinstance(group.machine, PartitionMachine))
        self._catalog: Catalog | None = None
        self.compared.update({RECORDS: 0, STATES: 0, DELIVERIES: 0})
        self.lost = 0
        """Messages that retention took from groups, by the last counts that clients got."""
        if retains_little:
            self.compared[GIVEN_UP] = self.compared[LOST] = 0

    def look(self, state: RunState) -> None:
        """Take down the state of each node's machines, and the catalog, while the nodes run."""
        self._catalog = state.newest_catalog()
        self.take_states()

    def judge(self, history: History, *, is_drained: bool) -> list[PopBreach]:
        """Errors of the machines; in a drained run each message that is still due is an error."""
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
                breaches += self.in_the_end_differ(number, machine)
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
            assert index in records, f"no node applied record {index}"
            record = records[index]
            results = machine.apply(record)
            ledger.follow(record, results, machine.pop_groups.take_handed(), machine)
            for given_up, fact in kept.follow(record, results, machine):
                self.compared[GIVEN_UP] += given_up
                if fact:
                    ledger.note("Q25", fact)
            # No index takes these here: they must not pile up.
            machine.pop_groups.take_traced()
            for fact in self.at_border_differ(number, index, machine):
                ledger.note("R21", fact)
        for attached in machine.pop_groups.attached.values():
            attached.group.audit()

    def _miscounted(self, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
        """Counts of lost messages that clients got and that differ from the log's counts."""
        for number, queue, traffic in self._traffic(history):
            for ledger in ledgers:
                group = ledger.groups.get(number)
                if traffic.books is None or group is None or queue not in group.queues:
                    continue
                told, lost = traffic.books.lost, group.queues[queue].counts["lost"]
                self.compared[LOST] += 1
                self.lost += told
                if told != lost:
                    fact = (
                        f"{traffic.name}: {told} messages are reported as lost, the log has {lost}"
                    )
                    yield PopBreach("Q25", 0, fact)

    def _traffic(self, history: History) -> Iterator[tuple[int, int, QueueTraffic]]:
        """Of each group and queue: their numbers, and what clients did."""
        if self._catalog is None:
            return
        attachments = self._catalog.consumer_groups.attachments
        numbers = {one.consumer_group: number for number, one in attachments.items()}
        for traffic in pop_traffic(history).values():
            number = numbers[traffic.group]
            place = int(traffic.queue.rpartition("/")[2])
            queue = attachments[number].topic_id << QUEUE_BITS | place
            yield number, queue, traffic

    def _strange(self, history: History, ledgers: list[PopLog]) -> Iterator[PopBreach]:
        """Deliveries that clients saw and that no log knows."""
        for number, queue, traffic in self._traffic(history):
            for seen in traffic.deliveries:
                self.compared[DELIVERIES] += 1
                whys = [one.why_strange(number, queue, seen) for one in ledgers]
                if all(whys):
                    yield PopBreach("Q8", 0, whys[0])


class PopAnswers:
    """An observer of the answers that all nodes of a cluster send."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[Violation] = []
        """The first wrong lease, if there was one."""
        self.compared: Counter[str] = Counter()
        """Leases that were judged."""
        cluster.listeners.append(self._heard)

    def _heard(self, number: int, what: str) -> None:
        if what != "serves":
            return
        node = self._cluster.nodes[number]
        reply = node._popping._reply

        def judged(consumer: Consumer, popped: Popped, body: Sequence[FramePart] = ()) -> None:
            for lease in popped.leases:
                self._judge(node, consumer.key, lease)
            reply(consumer, popped, body)

        node._popping._reply = judged  # type: ignore[method-assign]

    def _judge(self, node: ObservedNode, key: Key, lease: Lease) -> None:
        self.compared[ANSWERED] += 1
        machine = node.groups[key.partition_group].machine
        assert isinstance(machine, PartitionMachine)
        attached = machine.pop_groups.attached.get(key.number)
        bits = int.from_bytes(lease.bits, "little")
        until = None
        if attached is not None:
            # A lease whose time is over is held until a record takes it back.
            messages = Span(lease.base, bits)
            until = attached.group.held_until(key.consumer, lease.token, messages, now=0)
        if until != lease.deadline_ms and not self.violations:
            at_ms = int(self._cluster.agenda.now * 1000)
            held = "which it does not hold" if until is None else f"which it holds until {until}"
            text = (
                f"node {node.id}, group {key.partition_group}: consumer {key.consumer} of "
                f"attachment {key.number} is sent messages {bits:b} from {lease.base} on by lease "
                f"{lease.token} until {lease.deadline_ms}, {held}"
            )
            self.violations.append(Violation("answered-lease", at_ms, text))


class KeptQueues:
    """Places of each queue's messages in a log, and the offsets before which groups gave up.

    A leader announces the new starts of all queues before it trims its log. Another leader may then
    trim less than was announced.
    """

    def __init__(self) -> None:
        # By queue: the ends of its batches, and their places in the log.
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._indexes: dict[int, list[int]] = defaultdict(list)
        # By queue: its start as groups were told, and the term of that announcement.
        self._told: dict[int, tuple[int, int]] = {}
        self._log_start = 1

    def follow(
        self, record: Record, results: Sequence[Result], machine: PartitionMachine
    ) -> Iterator[tuple[int, str]]:
        """A record was applied: the number of messages that groups were told to give up with it,
        and the error in that, in words; empty: no error."""
        for result in results:
            if isinstance(result, Appended) and not result.duplicate:
                self._ends[result.queue].append(result.base_offset + result.count)
                self._indexes[result.queue].append(record.index)
        for queue, earliest in machine.pop_groups.earliest.items():
            before, _ = self._told.get(queue, (0, 0))
            if earliest > before:
                self._told[queue] = earliest, record.term
                is_border = earliest in self._ends[queue]
                what = f"the leader announces that queue {queue} begins at offset {earliest}"
                attached = machine.pop_groups.attached.values()
                is_followed = any(queue in each.group.backlogs for each in attached)
                given_up = earliest - before if is_followed else 0
                yield given_up, "" if is_border else f"{what}, and no batch does"
        if machine.log_start > self._log_start:
            self._log_start = machine.log_start
            for fact in self._why_wrong(record, machine):
                yield 0, fact

    def _why_wrong(self, record: Record, machine: PartitionMachine) -> Iterator[str]:
        """Queues whose start was not announced before the log was trimmed. Queues without a group
        count, too, as a group may be opened until the trim."""
        for queue in sorted(machine.ends):
            dropped = bisect_left(self._indexes[queue], self._log_start)
            first = self._ends[queue][dropped - 1] if dropped else 0
            told, term = self._told.get(queue, (0, 0))
            what = f"queue {queue} begins at offset {first} with record {self._log_start}"
            if told < first or (told > first and term == record.term):
                yield f"{what}, before which the log was trimmed, and groups were told of {told}"
