"""Messages in flight under quotas: no topic and no user has more than its quota allows.

Each node is looked at after the records that it applies: what consumers have in hand, and what they
may be handed without asking again.

| looked at | of | may have |
|---|---|---|
| each replica of a data group | a topic | its quota |
| a leader's data groups together | a topic; the clients' user | its quota, and what is carried |

*Carried* is what a data group had in flight when the node became its leader: earlier leaders let it
in, beside what this node had let in for its other groups, and a new leader does not know whose
consumers these are. It counts by consumer, and as no more than that consumer has in flight since.

Left out, so that less than all is found:
- all nodes together, as each counts for itself;
- what a consumer with carried messages settles and is let in again: it stays carried;
- the user, in runs whose consumers are of two users: the log does not tell which is whose.

Invariants:
- Observing changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from raftmq.broker.replica.group import Group
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.clients import APPLICATION, Clients, InFlightMax
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine

COMPARED = "messages in flight under a quota"
"""Name of a comparison: topics of replicas."""
OF_LEADERS = "messages in flight at a leader"
"""Name of a comparison: topics and users of leaders."""

Key = tuple[int, int]
"""A consumer: its attachment's number, and its own."""


class InFlight:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self._cluster = cluster
        self._clients = clients
        # By node and data group: the term in which the node leads it; and what is carried of each
        # consumer.
        self._terms: dict[tuple[int, int], int] = {}
        self._carried: dict[tuple[int, int], Counter[Key]] = {}
        self.violations: list[Violation] = []
        """The first excess, if there was one."""
        self.compared: Counter[str] = Counter()
        """Comparisons that were made while something was in flight."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        most, machine = self._clients.in_flight_max, group.machine
        if most is None or not isinstance(machine, PartitionMachine):
            return
        groups = machine.pop_groups
        for topic in {attached.topic for attached in groups.attached.values()}:
            # Replicas' clocks differ, the stamp does not.
            count = groups.in_flight(topic, records[-1].timestamp)
            self._judge(COMPARED, count, most.topic, f"group {group.number}, topic {topic}", node)
        if group.is_current:
            self._judge_leader(node, most)

    def _judge_leader(self, node: int, most: InFlightMax) -> None:
        counts, carried = Counter[str](), Counter[str]()
        for group, machine in self._led(node):
            by_consumer = _by_consumer(group, machine)
            mine = self._carried_by(node, group, by_consumer)
            for (number, consumer), count in by_consumer.items():
                for name in (f"topic {machine.pop_groups.attached[number].topic}", APPLICATION):
                    counts[name] += count
                    carried[name] += mine[number, consumer]
        for name, count in counts.items():
            if name != APPLICATION:
                self._judge(OF_LEADERS, count, most.topic + carried[name], name, node)
            elif not self._clients.has_others:
                self._judge(OF_LEADERS, count, most.user + carried[name], f"user {name}", node)

    def _led(self, node: int) -> Iterator[tuple[Group, PartitionMachine]]:
        """The data groups that a node leads, as far as it has applied what was let in before."""
        for group in self._cluster.nodes[node].groups.values():
            if isinstance(group.machine, PartitionMachine) and group.is_current:
                yield group, group.machine

    def _carried_by(self, node: int, group: Group, now: Counter[Key]) -> Counter[Key]:
        """The carried part of a group's consumers, whose messages in flight are counted now."""
        place = (node, group.number)
        if self._terms.get(place) == group.raft.term:
            now = now & self._carried[place]
        self._terms[place], self._carried[place] = group.raft.term, now
        return now

    def _judge(self, compared: str, count: int, most: int, what: str, node: int) -> None:
        if count:
            self.compared[compared] += 1
        if count > most and not self.violations:
            at_ms = int(self._cluster.agenda.now * 1000)
            text = f"node {node}, {what}: {count} in flight, {most} may be"
            self.violations.append(Violation("in-flight", at_ms, text))


def _by_consumer(group: Group, machine: PartitionMachine) -> Counter[Key]:
    """The parts of `PopGroups.in_flight` of all topics."""
    found, now = Counter[Key](), group.now_ms()
    for number, attached in machine.pop_groups.attached.items():
        for parts in (
            attached.group._leases.hands,
            attached.group.credits.running_by_consumer(now),
        ):
            found.update({(number, consumer): count for consumer, count in parts.items()})
    return found
