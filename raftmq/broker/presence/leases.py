"""Leases that clients take through this node.

The directory gives a lease to a node. This module gives it to the node's connections, in the order
of their requests.

    take   ──> the answer waits until the node has the lease and the connection's turn has come
    keep   ──> the answer waits until the lease is lost, or its time is over: then ask again
    release, or no `keep` comes for `HOLDER_SILENT_SECONDS`
           ──> the next one's turn; without one the node gives the lease up

A client counts on its lease for `HOLD_SECONDS` after its newest request that was confirmed. If its
connection breaks, the node keeps the lease for that time.

Invariants:
- One connection at most has a lease, and only while the node has it.
- A lease that its holder did not release stays at this node, unused, until that client must have
  given up.
- A request is answered once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, assert_never

import trio

from raftmq.broker.host import Host
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.errors import Reason
from raftmq.wire.directory import HOLD_SECONDS, AskLease, LeaseAnswer
from raftmq.wire.messages import ErrorReply

if TYPE_CHECKING:
    from raftmq.directory.directory import Directory

LEASES_MAX = 1_000
"""Leases that are held or wanted through one node."""
WAITING_MAX = 1_000
"""Requests that wait for one lease, at one node."""
HOLDER_SILENT_SECONDS = 2 * HOLD_SECONDS
"""A holder that does not ask to keep a lease for this long has lost it."""


def not_here(node: Host) -> ErrorReply:
    """The refusal of a request about the directory at a node that has none, or not yet."""
    if node.settings.directory.is_on:
        return ErrorReply("unavailable", "this node is loading the directory", retry_ms=500)
    text = "this cluster keeps no directory: set is_on = true in [directory] on all nodes"
    return ErrorReply(Reason.BAD_ARGUMENT.value, text)


@dataclass(slots=True)
class _Waiting:
    """A request without an answer."""

    asked: OpenRequest
    until: float


@dataclass(slots=True)
class _Lease:
    """A lease that connections of this node have or want."""

    holder: Connection | None = None
    heard_at: float = -inf
    """When the holder last asked."""
    busy_until: float = -inf
    """Until then the client that had it last may count on it, as it did not give it up."""
    keeping: _Waiting | None = None
    """The holder's open request."""
    takers: list[_Waiting] = field(default_factory=list)
    """In the order in which they asked."""


class Lessor:
    """The leases of one node's connections."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._directory: Directory | None = None
        self._leases: dict[str, _Lease] = {}

    def begin(self, directory: "Directory") -> None:
        """Get leases for the node from here."""
        self._directory = directory

    def held(self) -> Iterator[tuple[str, Connection]]:
        """The leases that connections have, and who."""
        for name, lease in self._leases.items():
            if lease.holder is not None:
                yield name, lease.holder

    def answer(self, request: AskLease, asked: OpenRequest) -> Answer:
        """Answer a LEASE request, now or later."""
        if self._directory is None:
            return not_here(self._node)
        lease = self._leases.get(request.name)
        waiting = _Waiting(asked, trio.current_time() + request.wait_ms / 1000)
        match request.act:
            case "take":
                if not self._directory.leader:
                    # The client may reach another node, which hears a majority.
                    text = "this node hears no majority of the nodes"
                    return ErrorReply("unavailable", text, retry_ms=200)
                return self._take(request.name, lease, waiting)
            case "keep":
                return self._keep(request.name, lease, waiting)
            case "release":
                if lease is not None:
                    self._drop_takers(lease, asked.connection)
                    if lease.holder is asked.connection:
                        self._end_hold(lease)
                        lease.busy_until = -inf
                    self._look(request.name, lease)
                return LeaseAnswer(is_held=False)
        assert_never(request.act)

    def _take(self, name: str, lease: _Lease | None, waiting: _Waiting) -> Answer:
        if lease is None:
            if len(self._leases) >= LEASES_MAX:
                text = f"{LEASES_MAX} leases are in use at this node: release some, or ask another"
                return ErrorReply("busy", text, retry_ms=1000)
            lease = self._leases[name] = _Lease()
        if lease.holder is waiting.asked.connection:
            lease.heard_at = trio.current_time()
            return LeaseAnswer(is_held=True)
        if len(lease.takers) >= WAITING_MAX:
            text = f"{WAITING_MAX} requests wait for this lease at this node: ask later"
            return ErrorReply("busy", text, retry_ms=1000)
        lease.takers.append(waiting)
        assert self._directory is not None
        self._directory.leases.want(name)
        self._look(name, lease)
        return LATER

    def _keep(self, name: str, lease: _Lease | None, waiting: _Waiting) -> Answer:
        if lease is not None:
            # After a standstill of the process the node may have lost it, and no look came since.
            self._look(name, lease)
        if lease is None or lease.holder is not waiting.asked.connection:
            return LeaseAnswer(is_held=False)
        lease.heard_at = trio.current_time()
        # One open request is enough: a newer one ends the wait of the one before.
        before, lease.keeping = lease.keeping, waiting
        if before is not None:
            before.asked.answer(LeaseAnswer(is_held=True))
        return LATER

    def closed(self, connection: Connection) -> None:
        """Forget what a connection wants."""
        for lease in self._leases.values():
            self._drop_takers(lease, connection)

    def _drop_takers(self, lease: _Lease, connection: Connection) -> None:
        for waiting in lease.takers:
            if waiting.asked.connection is connection:
                waiting.asked.answer(LeaseAnswer(is_held=False))
        lease.takers = [each for each in lease.takers if each.asked.connection is not connection]

    def look(self) -> None:
        """Hand out leases that have come, and take back those that are lost."""
        for name, lease in list(self._leases.items()):
            self._look(name, lease)

    def _look(self, name: str, lease: _Lease) -> None:
        assert self._directory is not None
        of_node = self._directory.leases
        now, is_here = trio.current_time(), of_node.is_held(name)
        if lease.holder is not None:
            # A closed connection sends nothing more, but its client may count on the lease still.
            limit = HOLD_SECONDS if lease.holder.is_closed else HOLDER_SILENT_SECONDS
            if not is_here or now - lease.heard_at > limit:
                self._end_hold(lease)
        keeping = lease.keeping
        if keeping is not None and now >= keeping.until:
            lease.keeping = None
            keeping.asked.answer(LeaseAnswer(is_held=True))
        is_free = lease.holder is None and now >= lease.busy_until
        if is_free and is_here and lease.takers:
            first = lease.takers.pop(0)
            lease.holder, lease.heard_at = first.asked.connection, now
            first.asked.answer(LeaseAnswer(is_held=True))
        late = [each for each in lease.takers if now >= each.until]
        lease.takers = [each for each in lease.takers if now < each.until]
        for each in late:
            each.asked.answer(LeaseAnswer(is_held=False))
        if lease.holder is None and not lease.takers and now >= lease.busy_until:
            of_node.give_up(name)
            del self._leases[name]

    def _end_hold(self, lease: _Lease) -> None:
        lease.holder, lease.busy_until = None, lease.heard_at + HOLD_SECONDS
        if lease.keeping is not None:
            lease.keeping.asked.answer(LeaseAnswer(is_held=False))
            lease.keeping = None
