"""A node counts for its connections all that the open ones hold, and nothing beyond.

Each node is looked at after the records that it applies, and in the end. A connection that ends
gives back its place and its bytes, so a count that is above the sum over open connections stays
too high until the node restarts, and at the limit the node reads no large frame.

| count | sum over |
|---|---|
| `Load.request_bytes` | bytes of open connections |
| `Load.connections` | open connections that have a place |
| `Share.open`, of a user with a bound | open requests of the user's connections |

Invariants:
- Observing changes nothing.

Left out: requests that stay open on a connection for ever, which `answered-late` finds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raftmq.broker.replica.group import Group
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.observed import ObservedNode
from raftmq.consensus import Message
from raftmq.log.record import Record

COMPARED = "B7 counts of connections"
"""Name of a comparison."""


class _Count(NamedTuple):
    """A count of a node beside what it should be."""

    what: str
    counted: int
    held: int


class Loads:
    """An observer of all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[Violation] = []
        """The first difference, if there was one."""
        self.compared: Counter[str] = Counter({COMPARED: 0})
        """Counts that were compared while a connection was open."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        self._look(self._cluster.nodes[node])

    def end(self) -> None:
        """Look at all nodes that run."""
        for _, node in sorted(self._cluster.nodes.items()):
            self._look(node)

    def _look(self, node: ObservedNode) -> None:
        for what, counted, held in _counts(node):
            self.compared[COMPARED] += bool(held)
            if counted != held and not self.violations:
                at_ms = int(self._cluster.agenda.now * 1000)
                text = f"node {node.id} counts {counted} {what}, and its open connections have"
                self.violations.append(Violation("B7", at_ms, f"{text} {held}"))


def _counts(node: ObservedNode) -> Iterator[_Count]:
    load, connections = node.load, node.load.counted
    held = sum(connection._held_bytes for connection in connections)
    yield _Count("bytes of requests and answers", load.request_bytes, held)
    placed = sum(connection.has_place for connection in connections)
    yield _Count("connections", load.connections, placed)
    if not node.is_serving:
        return
    shares = node.quotas._shares
    for user in shares.users():
        share = shares._shares.get(user)
        if share is not None:
            open_ = sum(connection.open_requests for connection in shares.connections(user))
            yield _Count(f"open requests of user {user}", share.open, open_)
