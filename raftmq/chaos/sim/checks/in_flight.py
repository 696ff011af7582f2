"""Messages in flight under a quota of topics: no data group has more than the quota allows.

Each replica is looked at after the records that it applies: what consumers have in hand, and what
they may be handed without asking again. A leader counts all data groups that it leads together, so
one of them alone has no more than the quota. A new leader may count before it has applied what the
one before let in, so twice as much is no violation.

Invariants:
- Observing changes nothing.
"""

from collections import Counter
from collections.abc import Sequence

from raftmq.broker.replica.group import Group
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.sim.cluster import Cluster
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine

COMPARED = "messages in flight under a quota"
"""Name of a comparison."""
LEADERS = 2
"""Leaders, one after the other, whose consumers may have asked."""


class InFlight:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self._cluster = cluster
        self._clients = clients
        self.violations: list[Violation] = []
        """The first excess, if there was one."""
        self.compared: Counter[str] = Counter()
        """Topics of replicas that were looked at while something was in flight."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        bound, machine = self._clients.in_flight_max, group.machine
        if not bound or not isinstance(machine, PartitionMachine):
            return
        now = group.now_ms()
        for topic in {attached.topic for attached in machine.pop_groups.attached.values()}:
            count = machine.pop_groups.in_flight(topic, now)
            if count:
                self.compared[COMPARED] += 1
            if count > bound * LEADERS and not self.violations:
                text = (
                    f"node {node}, group {group.number}: {count} of topic {topic}, {bound} may be"
                )
                at_ms = int(self._cluster.agenda.now * 1000)
                self.violations.append(Violation("in-flight", at_ms, text))
