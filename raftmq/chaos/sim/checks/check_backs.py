"""Is a process that checks back asked about each open transaction, whatever happens elsewhere?

The decider of `--workload pop` checks back all the time (`workloads.withholding`). Ten times a
second each partition group is looked at. While a group is *served*, the decider has to be asked
about each of its open transactions, again and again: V9. Other partition groups may have no leader
for all of that time.

| a group is served as long as | because |
|---|---|
| one node leads it, in one term, and does not stand still | a leader that reaches no majority |
| | loses its office within two election timeouts |
| nothing is wrong between that node and the decider | an answer comes at once |
| one process of the decider checks back, and does not stand still | a new one knows nothing |
| the faults that last only cut nodes off, end them or fill their disks | others slow all down |
| no disk is slow, no clock is or was wrong | lists of open transactions go by time |

In the end the reader checks back while another process ends one of the transactions first. A round
goes on with the transactions behind that one: V9, too.

Invariants:
- Observing changes nothing: no call here has an effect on a node.

Sources: our own; a check-back that asked one partition group after the other.
"""

from collections import Counter

from raftmq.broker.replica.group import Group
from raftmq.chaos.faults.catalogue import FAMILIES
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.clients import CALL_SECONDS
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.workloads.withholding import SHOP, Withholding
from raftmq.machine.machine import PartitionMachine

from .availability import CONFINED, Availability

DECIDER = "decider"
"""The client that checks back."""
BORNE = (CONFINED | set(FAMILIES["partition"])) - {"flap", "slow-node", "stall-loop"}
"""Faults that may last while a group counts as served."""
LOOK_SECONDS = 0.1
"""Between two looks."""
ASKED_SECONDS_MAX = CALL_SECONDS + 4.0
"""Longest time in which a group is served and the decider is not asked about an open transaction of
it: a call that waits for a former leader, and the next round."""
RECOVERS_SECONDS = 20.0
"""After a fault between leader and decider: TCP's next try is as far away as the fault was long."""
COMPARED = "V9 transactions asked about"
"""Name of a comparison: open transactions that were due to be asked about."""
COMPARED_BEHIND = "V9 transactions behind a refused end"
"""Name of a comparison: see `Withholding.passed_over`."""


class CheckBacks:
    """The check-backs of one run, and the verdict."""

    def __init__(
        self, state: RunState, withholding: Withholding, availability: Availability
    ) -> None:
        self._state = state
        self._withholding = withholding
        self._availability = availability
        # Partition group → the service that it has had without a break, and since when.
        self._served: dict[int, tuple[object, float]] = {}
        # Transactions that were open, by group, and since when they have been seen so.
        self._open: dict[tuple[int, str], float] = {}
        self._late: set[tuple[int, str]] = set()
        self.violations: list[Violation] = []
        """Transactions that the decider was not asked about in time."""
        self.compared: Counter[str] = Counter()
        """Transactions that were judged."""

    def begin(self) -> None:
        """Look from now on, until the decider ends."""
        if not self._withholding.is_draining:
            self.look()
            self._state.agenda.call_after(LOOK_SECONDS, self.begin)

    def look(self) -> None:
        """Look at each partition group."""
        now = self._state.agenda.now
        seen: set[tuple[int, str]] = set()
        is_borne = self._is_borne()
        for number in sorted(self._state.watch.moments):
            leader = self._state.cluster.leader(number)
            group = self._state.cluster.nodes[leader].groups[number] if leader else None
            by = self._served_by(leader, group) if group is not None and is_borne else None
            before, since = self._served.get(number, (None, now))
            if by is None:
                self._served[number] = None, now
                continue
            # `since` may lie ahead, after a fault between leader and decider.
            if by != before:
                since = max(now, since)
            if not self._is_plain(leader):
                since = now + RECOVERS_SECONDS
            self._served[number] = by, since
            assert group is not None
            seen |= self._judge(number, group, since)
        self._open = {key: since for key, since in self._open.items() if key in seen}

    def _judge(self, number: int, group: Group, served_since: float) -> set[tuple[int, str]]:
        """Judge the open transactions of a group that is served; returns their keys."""
        machine, now = group.machine, self._state.agenda.now
        seen: set[tuple[int, str]] = set()
        if not isinstance(machine, PartitionMachine):
            return seen
        for transaction in machine.transactions.open.values():
            if transaction.producer_group != SHOP:
                continue
            key = number, transaction.note
            seen.add(key)
            if key not in self._open:
                self._open[key] = now
                self.compared[COMPARED] += 1
            asked = self._withholding.asked.get(transaction.note, 0.0)
            late = now - max(self._open[key], served_since, asked)
            if late > ASKED_SECONDS_MAX and key not in self._late:
                self._late.add(key)
                text = (
                    f"group {number} is led by node {self._state.cluster.leader(number)}, and for "
                    f"{late:.0f} s no check-back was asked about its transaction "
                    f"{transaction.note!r}"
                )
                self.violations.append(Violation("V9", self._state.watch.now_ms, text))
        return seen

    def end(self) -> None:
        """Take over the reader's findings: see `Withholding.passed_over`."""
        at_ms, withholding = self._state.watch.now_ms, self._withholding
        self.violations += [Violation("V9", at_ms, text) for text in withholding.passed_over]
        if withholding.behind:
            self.compared[COMPARED_BEHIND] += withholding.behind

    def _is_borne(self) -> bool:
        """False if something slows or misleads all groups."""
        machines = self._state.cluster.machines.values()
        if any(machine.slowness != 1 for machine in machines):
            return False
        if any(machine.clock.ahead_ms_max or machine.clock.behind_ms_max for machine in machines):
            return False
        return self._availability.lasting <= BORNE

    def _served_by(self, leader: int, group: Group) -> object | None:
        """Identity of the service of a group, which changes with leader, term and decider; None:
        the group is not served."""
        state, since = self._state, self._withholding.checks_since
        if DECIDER not in state.clients.names() or since > state.agenda.now:
            return None
        if state.clients.process(DECIDER).is_frozen or state.cluster.processes[leader].is_frozen:
            return None
        if not group.is_current or group.stopping:
            return None
        return leader, state.cluster.incarnations[leader], group.raft.term, since

    def _is_plain(self, leader: int) -> bool:
        """True if nothing is wrong between a leader and the decider."""
        network, node = self._state.cluster.network, self._state.host(leader)
        return network.link(node, DECIDER).is_plain and network.link(DECIDER, node).is_plain
