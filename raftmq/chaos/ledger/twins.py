"""A second replica with another history, which must never differ from the first one.

    twin = Twin(Random("twin 7"))
    for record in records:
        results = machine.apply(record)
        fact = twin.follow(record, results, machine.pop_groups.take_handed(),
                           machine.pop_groups.take_traced(), machine)

Both replicas apply each record. Between records the twin meets events that one replica may meet and
the other not: it is restored from its own snapshot, so that its timers are those of present leases
only; and it is woken although nothing is due, as by a timer whose lease was settled since. Neither
event may show: not in a result, a hand-out, an event, a digest or a snapshot.

Invariants:
- Equal seeds and records give equal histories; the first replica is only read.

Sources: Raft §2 (replicated state machines); the state checker of TigerBeetle.
"""

from collections.abc import Sequence
from random import Random

from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import Delivery, Traced
from raftmq.pop.groups import PopGroup
from raftmq.results import Result

RESTORED = 1 / 25
"""How often the twin is restored from its snapshot, per record."""
WOKEN = 1 / 4
"""How often the twin is woken though nothing is due, per record."""
COMPARED = 1 / 10
"""How often both snapshots are compared as a whole, per record; the comparison is slow."""


class Twin:
    """The second replica."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.machine = PartitionMachine()
        """The replicated state as this replica has it."""
        self.compared = 0
        """Snapshots that were compared; a whole run with 0 would prove nothing."""
        self.woken = 0
        """Groups that were woken in vain."""

    def follow(
        self,
        record: Record,
        results: Sequence[Result],
        handed: Sequence[Delivery],
        traced: Sequence[Traced],
        machine: PartitionMachine,
    ) -> str:
        """Apply one more record, and compare with the outcome at the first replica. Returns how the
        twin differs; empty: it does not."""
        own = self.machine
        pairs = (
            ("results", results, own.apply(record)),
            ("hand-outs", handed, own.pop_groups.take_handed()),
            ("events", traced, own.pop_groups.take_traced()),
            ("digests", machine.digest, own.digest),
        )
        for what, first, second in pairs:
            if first != second:
                return f"the {what} of two replicas differ: {first!r} and {second!r}"
        rng = self._rng
        if rng.random() < WOKEN and (fact := self._wake(record.timestamp)):
            return fact
        if rng.random() < RESTORED:
            self.machine = PartitionMachine.restore(self.machine.snapshot())
        return self.compare(machine) if rng.random() < COMPARED else ""

    def compare(self, machine: PartitionMachine) -> str:
        """How the states of both replicas differ, byte for byte; empty: they do not."""
        self.compared += 1
        if self.machine.snapshot() != machine.snapshot():
            return "two replicas have another state after the same records"
        return ""

    def _wake(self, now: int) -> str:
        """Wake the groups in which nothing is due. Returns how a group changed; empty: none did."""
        for number, attached in self.machine.pop_groups.attached.items():
            timer = attached.group.next_timer
            if timer is None or timer > now:
                self.woken += 1
                fact = woken_in_vain(attached.group, self.machine.ends, now)
                if fact:
                    return f"group {number}: {fact}"
        return ""


def woken_in_vain(group: PopGroup, ends: dict[int, int], now: int) -> str:
    """Wake a group in which nothing is due at `now`, the time of the last record; what changed."""
    before = group.dump(now)
    group.pass_time(now)
    handed = group.hand_out(ends, now, lambda: 0)
    if handed or group.events or group.dump(now) != before:
        return f"a timer for nothing changed it: {handed or group.events or 'its state'}"
    return ""
