"""Places and bytes that all connections of a node hold together.

Places are few, and a connection has one from its first moment. A connection is *silent* until it
has said Hello and, where it must, logged in. A silent connection gives way to a newcomer when all
places are taken: silent connections keep no client out. The connections from another machine have a
share of the places, so that no single machine takes them all; above its share an address pushes out
its own silent connections, and none of others.

Invariants:
- A connection is counted once, under its address and in all, from `take_place` to `leave`.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Protocol, Self

import trio

from raftmq.broker.settings import Limits

from .outbox import Step

NODE_PLACES = 64
"""Places for connections that clients leave to nodes: a cluster that clients fill must still
elect."""
FINISH_SECONDS_MAX = 10.0
"""The longest for which connections wait until another one has read its frame to the end: it may
bring 64 KiB each 30 s, and hold up all others with more than their share for hours."""

_BOUNDS = "limits.connections_max and half of the process's descriptors bound them"


class Placed(Protocol):
    """A connection, as the load sees it."""

    address: str
    """The address of the other end; empty: it is on this machine, and has no bound."""
    has_place: bool
    """True while the connection has one of the node's places."""

    @property
    def is_of_client(self) -> bool:
        """True: a client has said Hello."""

    def wake(self) -> None:
        """Check again whether there is room to read."""

    def end(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _Address:
    """The connections from one address."""

    open: int = 0
    silent: dict[Placed, None] = field(default_factory=dict)
    """Silent ones, oldest first."""

    @property
    def greeted(self) -> int:
        """Those that are no longer silent, of nodes as well."""
        return self.open - len(self.silent)


class Load:
    """The bytes and places of a node.

    Args:
        bytes_max: the limit of `request_bytes`; at the limit, only connections that hold less than
            their share read on.
        places: the limit of `connections`.
        address_places: the share of one address; nodes have `NODE_PLACES` beside it.
    """

    def __init__(self, *, bytes_max: int, places: int, address_places: int) -> None:
        self.bytes_max = bytes_max
        self.places = places
        self.address_places = address_places
        self.connections = 0
        """Open connections."""
        self.request_bytes = 0
        """Bytes of requests that are not whole or not answered yet, of answers being read from
        disk, and of answers that are not sent yet."""
        self.silent: dict[Placed, None] = {}
        """Silent connections, oldest first."""
        self._addresses: dict[str, _Address] = {}
        self.handshakes_failed = 0
        """Handshakes of TLS that have failed."""
        self.handshake_error = ""
        """Why the last one failed, for people; empty: none has."""
        self.secured: dict[Placed, None] = {}
        """Connections under TLS."""
        self.finisher: Placed | None = None
        """The connection that may read to the end of its frame beyond the limit."""
        self.finish_due = inf
        """When it is ended; `inf`: no other waits for it."""
        self.waiting: dict[Placed, None] = {}
        """Connections that do not read for no other reason than that the node is at its limit."""
        self.step = Step()
        """Gathers the frames that are sent within one step of the node's loop."""

    @classmethod
    def within(cls, limits: Limits, *, descriptors_max: int) -> Self:
        """An empty load with the limits of these settings; `descriptors_max` is the process's."""
        places = places_for_connections(limits.connections_max, descriptors_max)
        return cls(
            bytes_max=limits.requests_bytes_max,
            places=places,
            address_places=min(limits.address_connections_max, max(1, places // 2)),
        )

    @property
    def greeted(self) -> int:
        """Connections that are no longer silent."""
        return self.connections - len(self.silent)

    def is_over(self, held: int) -> bool:
        """True for a connection with more than its share where the node is at its limit.

        The share goes by the places and not by the connections there are: newcomers would each
        have a share beyond the limit, and all of them together many times the limit.
        """
        return self.request_bytes >= self.bytes_max and held > self.bytes_max // self.places

    def add(self, size: int) -> None:
        """Count bytes that are held from now on; fewer: negative."""
        was_full = self.request_bytes >= self.bytes_max
        self.request_bytes += size
        if was_full and self.request_bytes < self.bytes_max:
            self.finish_due = inf
            self.wake()

    def wake(self) -> None:
        """Have the waiting connections check whether they may read."""
        for connection in self.waiting:
            connection.wake()

    def take_place(self, connection: Placed) -> bool:
        """Give a connection a place, if need be the place of the oldest silent connection."""
        address = self._address_of(connection)
        if address.open >= self._address_max(connection) and not self._push_out(address.silent):
            return False
        if self.connections >= self.places and not self._push_out(self.silent):
            return False
        # The connection pushed out may have been the last one of this address.
        address = self._addresses.setdefault(connection.address, _Address())
        self.connections += 1
        address.open += 1
        self.silent[connection] = address.silent[connection] = None
        connection.has_place = True
        return True

    def why_no_place(self, connection: Placed) -> str:
        """Why a connection got no place, in words."""
        if self._address_of(connection).open >= self._address_max(connection):
            return self._why_address_full(connection)
        return f"all {self.places} places for connections are taken: {_BOUNDS}"

    def why_no_client(self, connection: Placed) -> str:
        """Why a client that says Hello must go; empty: it may stay."""
        clients_max = max(1, self.places - NODE_PLACES)
        if self.greeted >= clients_max:
            return f"this node serves {clients_max} connections of clients: {_BOUNDS}"
        address = self._address_of(connection)
        if connection.address and address.greeted >= self.address_places:
            return self._why_address_full(connection)
        return ""

    def _why_address_full(self, connection: Placed) -> str:
        text = f"{connection.address} has all {self.address_places} connections of its share"
        return f"{text}: limits.address_connections_max and half of all places bound it"

    def greet(self, connection: Placed) -> None:
        """A connection has said Hello and, where it must, logged in."""
        self.silent.pop(connection, None)
        self._address_of(connection).silent.pop(connection, None)

    def leave(self, connection: Placed) -> None:
        """Free the place of a connection that is gone, or about to go."""
        if connection.has_place:
            connection.has_place = False
            self.connections -= 1
            address = self._address_of(connection)
            address.open -= 1
            address.silent.pop(connection, None)
            if not address.open:
                del self._addresses[connection.address]
        self.silent.pop(connection, None)
        self.secured.pop(connection, None)
        self.finished(connection)

    def may_finish(self, connection: Placed) -> bool:
        """True if a connection that waits may read to the end of its frame beyond the limit."""
        now = trio.current_time()
        if self.finisher is None:
            self.finisher, self.finish_due = connection, inf
        elif self.finisher is not connection and self.finish_due == inf:
            self.finish_due = now + FINISH_SECONDS_MAX
        elif self.finisher is not connection and now >= self.finish_due:
            self.finish_due = inf
            self.finisher.end()
        return self.finisher is connection

    def finished(self, connection: Placed) -> None:
        """If `connection` was the finisher, let another connection become the finisher."""
        if self.finisher is connection:
            self.finisher = None
            self.wake()

    def _address_of(self, connection: Placed) -> _Address:
        """The connections from the same address; an empty share counts none of them yet."""
        return self._addresses.get(connection.address) or _Address()

    def _address_max(self, connection: Placed) -> float:
        """The most connections from the same address, those of nodes among them."""
        return self.address_places + NODE_PLACES if connection.address else inf

    def _push_out(self, silent: dict[Placed, None]) -> bool:
        """End the oldest of some silent connections; False: there is none."""
        oldest = next(iter(silent), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.end()
        return True


def places_for_connections(connections_max: int, descriptors_max: int) -> int:
    """How many connections a node accepts, silent ones and those of nodes among them.

    Half of the descriptors stay for files: each sealed segment keeps its index file mapped.
    """
    return max(NODE_PLACES, min(connections_max + NODE_PLACES, descriptors_max // 2))
