"""Clients of the core simulator: they propose records, each with a payload of its own, and ask for
linearizable reads.

A client usually finds the leader, sometimes another node. A new leader has clients at once, and a
deposed leader that does not know of its end keeps some of its clients for a while. A record is
acknowledged when the node that took the record has applied it; otherwise the record is lost, or its
outcome stays unknown.

A request over a cut link is lost. An answer is judged whether a link carries it or not, as a node
must keep what it says.

Invariants:
- An acknowledged record is committed, and stays at its index (checked at the end of the run).
"""

from collections.abc import Callable, Mapping
from random import Random

from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.node import Node
from raftmq.chaos.core.replica.replica import Replica
from raftmq.chaos.faults.arena import CLIENTS
from raftmq.consensus import Proposal, ProposalDropped
from raftmq.log.record import Kind, Record
from raftmq.results import Result
from raftmq.wire.messages import ErrorReply

BURSTS = (0, 0, 0, 0, 3, 6)
"""Numbers of further reads that follow a read soon after; one is drawn."""

WRITE_BURSTS, BURST_US = (0,) * 14 + (8,), 10_000
"""Numbers of further writes, of which one is drawn, and the time within which these follow a write,
so that several writes are under way."""

LOYAL_SECONDS = 1.0
"""Time for which clients come back to a leader that was deposed."""


class Asked:
    """A client that waits for the outcome of its record: a `Ticket` of the broker."""

    def __init__(self, clients: "Clients", replica: Replica) -> None:
        self._clients = clients
        self._replica = replica

    def done(self, results: list[Result]) -> None:
        """The record was applied a moment ago."""
        record = self._replica.watched.record
        assert record is not None
        self._clients.acknowledged(record)

    def failed(self, error: ErrorReply) -> None:
        """The record was refused, or its fate is unknown."""
        self._clients.refused(error)


class Clients:
    """All clients. It is state."""

    def __init__(self, environment: Environment, nodes: Mapping[int, Node]) -> None:
        """`nodes`: by id, every node that ever existed."""
        self._environment = environment
        self._nodes = nodes
        self._random = Random(f"clients {environment.seed}")
        self._at_elections = Random(f"clients at elections {environment.seed}")
        self._proposed = 0
        self.acked: dict[int, int] = {}
        """By index: the checksum of the record that was acknowledged."""
        self.is_active = True

    def begin(self) -> None:
        """Go to work."""
        self._later(self._propose, self._environment.settings.proposals_per_second)
        self._later(self._read, self._environment.settings.reads_per_second)

    def _later(self, call: Callable[[], None], per_second: float) -> None:
        self._environment.loop.after(int(self._random.expovariate(per_second) * 1e6) + 1, call)

    def _pick(self) -> Replica | None:
        up = [node.replica for node in self._nodes.values() if node.replica is not None]
        leading = [replica for replica in up if replica.is_leader]
        dice = self._random.random()
        if leading and dice < self._environment.settings.newest_share:
            return max(leading, key=lambda replica: replica.core.term)
        if leading and dice < 0.9:
            # A leader that was cut off may believe that it still leads.
            return self._random.choice(leading)
        return self._random.choice(up) if up else None

    def _propose(self) -> None:
        if not self.is_active:
            return
        self._later(self._propose, self._environment.settings.proposals_per_second)
        replica = self._pick()
        if replica is not None:
            self._write_at(replica, self._random)
            for _ in range(self._random.choice(WRITE_BURSTS)):
                delay_us = int(self._random.random() * BURST_US) + 1
                self._environment.loop.after(delay_us, self._write_at, replica, self._random)

    def _write_at(self, replica: Replica, random: Random) -> None:
        count, size = random.choice((1, 1, 1, 2, 4)), random.choice((0, 20, 100, 300))
        if replica.is_full or replica.is_gone or not self._reach(replica):
            return
        items = [(int(Kind.BATCH), self._value(size), 1) for _ in range(count)]
        replica.turn(self._propose_to, replica, items)

    def _reach(self, replica: Replica) -> bool:
        """Whether a request that leaves now arrives."""
        return not self._environment.network.holds(CLIENTS, replica.node.place)

    def _value(self, size: int) -> bytes:
        self._proposed += 1
        return b"%d " % self._proposed + bytes(size)

    def _propose_to(self, replica: Replica, items: list[Proposal]) -> None:
        if replica.is_leader or not self._environment.settings.forwards_proposals:
            for item in items:
                replica.group.propose(item[0], item[1], Asked(self, replica))
            return
        counts = self._environment.counts
        # A forwarded record has no ticket here: it counts as forwarded, never as acknowledged.
        try:
            replica.raft.propose(items, now=replica.node.now_ms())
        except ProposalDropped:
            counts["refused"] += len(items)
        else:
            counts["forwarded"] += len(items)

    def acknowledged(self, record: Record) -> None:
        """A client learns that its record is committed."""
        self.acked[record.index] = record.crc
        self._environment.counts["acked"] += 1

    def refused(self, error: ErrorReply) -> None:
        """A client learns that its record was not taken, or that the record's fate is unknown."""
        is_unknown = error.code == "outcome_unknown"
        self._environment.counts["outcome unknown" if is_unknown else "refused"] += 1

    def elected(self, replica: Replica) -> None:
        """A node won an election: clients visit it, and other nodes that believe that they lead."""
        random, loop = self._at_elections, self._environment.loop
        loop.after(int(random.random() ** 2 * 20_000) + 1, self._visit, replica)
        for node in self._nodes.values():
            other = node.replica
            if other is not None and other is not replica and other.is_leader:
                for _ in range(random.randint(0, 3)):
                    delay_us = int(random.random() * LOYAL_SECONDS * 1e6) + 1
                    loop.after(delay_us, self._visit, other)

    def _visit(self, replica: Replica) -> None:
        if not self.is_active or replica.is_gone:
            return
        if self._at_elections.random() < 0.7:
            self.read_at(replica)
        else:
            self._write_at(replica, self._at_elections)

    def _read(self) -> None:
        if not self.is_active:
            return
        self._later(self._read, self._environment.settings.reads_per_second)
        replica = self._pick()
        if replica is not None:
            self.read_at(replica)
            # Reads come in bursts, with writes between them: a client asks the same node again,
            # which may have been deposed meanwhile.
            for _ in range(self._random.choice(BURSTS)):
                delay_us = int(self._random.expovariate(4.0) * 1e6)
                self._environment.loop.after(delay_us, self._read_again, replica)

    def _read_again(self, replica: Replica) -> None:
        if self.is_active and not replica.is_gone:
            self.read_at(replica)

    def read_at(self, replica: Replica) -> None:
        """Ask a node for a linearizable read, if a client reaches the node."""
        if not self._reach(replica):
            return
        # Taken before the read begins: a linearizable read must see all that was committed by then.
        safety, floor = self._environment.safety, self._environment.safety.top

        def answer(error: ErrorReply | None) -> None:
            if error is None:
                safety.read_answered(replica, floor)

        replica.turn(replica.read, answer)
