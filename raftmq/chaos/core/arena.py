"""The core simulator as an arena: how its cluster does the verbs of faults.

One arena stands for one fault: it has the event, and a random generator for this event alone. Nodes
are named by their places. Clients are not on the network, so a cut ignores them.

Invariants:
- A fault's random generator depends on the seed and the event alone, so that leaving out other
  events does not change what this event does.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import Arena, Lasting, Pair, Skipped, Steps
from raftmq.consensus import MessageKind

from .faults.effects import AGAIN

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster
    from raftmq.chaos.core.node import Node

REPLAYS = 40
"""Most old messages that one replay sends again."""

Make = Callable[["CoreArena", Event], Steps]


@dataclass(slots=True, eq=False)
class CoreArena(Arena):
    """The surroundings of one fault."""

    cluster: "Cluster"
    event: Event
    random: Random
    end_us: int
    """When the fault is to end; for a fault that does not last, when everything heals."""

    is_over: bool = False

    world = World.CORE

    def members(self) -> list[int]:
        """All places that are taken."""
        return sorted(self.cluster.at_place)

    def leader(self) -> int:
        """The place of the node that leads; 0: none does."""
        leader = self.cluster.leader()
        return 0 if leader is None else leader.node.place

    # Links

    @contextmanager
    def cut(self, pairs: Iterable[Pair], *, resets: bool = False) -> Iterator[None]:
        """A message that arrives on a cut link is lost; there are no connections to reset."""
        pairs, network = list(pairs), self.cluster.network
        network.cut(pairs)
        try:
            yield
        finally:
            network.mend(pairs)

    def delay(self, ms: float) -> Lasting:
        """Most messages come up to twice `ms` later, few up to ten times."""
        return self._adding("delay_ms", ms)

    def reorder(self, share: float) -> Lasting:
        """A share of the messages comes up to 50 ms later than its link's order asks for."""
        return self._adding("reordering", share)

    def duplicate(self, share: float) -> Lasting:
        """A share of the messages comes again, up to 200 ms later."""
        return self._adding("duplication", share)

    def lose(self, share: float) -> Lasting:
        """A share of the messages never arrives."""
        return self._adding("loss", share)

    @contextmanager
    def _adding(self, field: str, amount: float) -> Iterator[None]:
        network = self.cluster.network

        # Rounded, so that the field is exactly 0 after the last undo, as `settle` looks for that.
        def add(amount: float) -> None:
            setattr(network, field, max(round(getattr(network, field) + amount, 6), 0.0))
            network.settle()

        add(amount)
        try:
            yield
        finally:
            add(-amount)

    @contextmanager
    def drop(self, kinds: frozenset[MessageKind]) -> Iterator[None]:
        """Messages of these kinds never arrive; chunks go with the snapshots."""
        network = self.cluster.network
        chunks = {CHUNK} if MessageKind.SNAPSHOT in kinds else set()
        dropped = (kinds | chunks) - network.lost_kinds
        network.lost_kinds |= dropped
        network.settle()
        try:
            yield
        finally:
            network.lost_kinds -= dropped
            network.settle()

    def replay(self, pair: Pair) -> None:
        """Messages of long ago between any nodes arrive once more."""
        network = self.cluster.network
        old = [m for m in network.old if m.to in self.cluster.nodes]
        if not old:
            raise Skipped("there are no messages of long ago")
        for message in self.random.sample(old, min(len(old), REPLAYS)):
            network.send(message)
            self.cluster.loop.effects[AGAIN] += 1

    # For handlers

    def node(self, which: int = 0) -> "Node":
        """The node at the event's place."""
        return self.cluster.at_place[self.event.nodes[which]]

    def targets(self) -> "list[Node]":
        """The nodes at all of the event's places."""
        return [self.cluster.at_place[place] for place in self.event.nodes]

    def leading(self) -> "Node":
        """The node that leads now. Raises `Skipped` if none does."""
        leader = self.cluster.leader()
        if leader is None:
            raise Skipped("nobody leads")
        return leader.node

    def later(self, delay_us: int, call: Callable[..., None], *args: object) -> None:
        """Do something later, unless the fault is over by then."""
        self.cluster.loop.after(max(delay_us, 1), self._if_not_over, call, args)

    def _if_not_over(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.is_over:
            call(*args)


Undo = Callable[[], None]
Handler = Callable[[CoreArena], Undo | None]


def made_by(handler: Handler) -> Make:
    """The generator of a fault that is written as a handler: a function that returns its undo."""

    def steps(arena: CoreArena, event: Event) -> Steps:
        undo = handler(arena)
        if undo is not None:
            try:
                yield None
            finally:
                arena.is_over = True
                undo()

    return steps
