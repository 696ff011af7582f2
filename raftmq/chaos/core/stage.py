"""The tools of fault handlers: the cluster, the event, and a random generator for this event alone.

A handler makes a fault happen and returns a function that undoes the fault, or None if there is
nothing to undo. The handler raises `Skipped` if the fault cannot be made now: there is no such
node, or the atlas forbids the fault.

Invariants:
- A handler's random generator depends on the seed and the event alone, so that leaving out other
  events does not change what this event does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.faults import Event

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster
    from raftmq.chaos.core.node import Node

Undo = Callable[[], None]


class Skipped(Exception):
    """The fault could not be made; the text says why."""


@dataclass(slots=True, eq=False)
class Stage:
    """One fault's surroundings."""

    cluster: "Cluster"
    event: Event
    random: Random
    end_us: int
    """When the fault is to end; for a fault that does not last, when everything heals."""
    is_over: bool = False
    """True once the fault was undone: calls that it planned for later are not made."""

    def places(self) -> list[int]:
        """All places that are taken."""
        return sorted(self.cluster.at_place)

    def node(self, which: int = 0) -> "Node":
        """The node at the event's place."""
        return self.cluster.at_place[self.event.nodes[which]]

    def targets(self) -> "list[Node]":
        """The nodes at all of the event's places."""
        return [self.cluster.at_place[place] for place in self.event.nodes]

    def leader(self) -> "Node":
        """The node that leads now. Raises `Skipped` if none does."""
        leader = self.cluster.leader()
        if leader is None:
            raise Skipped("no node leads")
        return leader.node

    def later(self, delay_us: int, call: Callable[..., None], *args: object) -> None:
        """Do something later, unless the fault is over by then."""
        self.cluster.loop.after(max(delay_us, 1), self._if_not_over, call, args)

    def _if_not_over(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.is_over:
            call(*args)


Handler = Callable[[Stage], Undo | None]
