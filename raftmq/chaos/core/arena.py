"""The core simulator as an arena: how its cluster does the verbs of faults.

One arena stands for one fault: it has the event, and a random generator for this event alone. Nodes
are named by their places. Clients are not on the network, so a cut ignores them.

Invariants:
- A fault's random generator depends on the seed and the event alone, so that leaving out other
  events does not change what this event does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import Arena, Lasting, Pair, Skipped, Steps, WrongClock
from raftmq.chaos.world.disk import POINTS
from raftmq.consensus import MessageKind

from .faults.effects import AGAIN

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster
    from raftmq.chaos.core.node import Node
    from raftmq.chaos.core.replica import Replica

REPLAYS = 40
"""Most old messages that one replay sends again."""

SLOW_US = 3000
"""Extra time of a slow node's messages, times the level."""

HAND_OVER_US = 300_000
"""Time from a request to end until the process ends."""

CHANGE_POINTS = (
    "change written", "changes written", "change synced", "changes synced", "commit written",
)  # fmt: skip
"""Points after the write or the sync of a change of members, or of several, and after a write that
commits records of its own: see `WatchedLog`."""

CORE_POINTS = (
    "before sync", "after sync", "before apply", "after apply", "before snapshot", *CHANGE_POINTS,
)  # fmt: skip
"""Points of the simulated process, beside those of the disk's calls: see `Replica.point`."""

_LOG_POINTS = [
    point for point in POINTS if point.endswith((" log", " snapshot", " partial", " index"))
]
DISK_POINTS = (*_LOG_POINTS, "sync_folder log")
"""Names of disk calls where a process may end."""

CLOCK_FIELDS: Mapping[WrongClock, str] = {
    "skew": "offset_ms",
    "drift": "drift",
    "strobe": "strobe_ms",
    "periodic": "swing_ms",
}

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

    # Processes

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """No effect on a node that is down."""
        self._end(node, down_us=int((down_seconds or 0) * 1e6))

    def power_off(self, nodes: Sequence[int]) -> None:
        """No effect on nodes that are down."""
        for node in nodes:
            self._end(node, power=True)

    def _end(self, place: int, *, power: bool = False, down_us: int = 0) -> None:
        node = self.cluster.at_place[place]
        if node.is_up:
            node.end(power=power)
            node.start_later(down_us)

    def stop(self, node: int) -> None:
        """A leader hands over, if it can within a moment; then the process ends."""
        replica = self.cluster.at_place[node].replica
        if replica is None:
            return
        followers = sorted(set(replica.conf_state.voters) - {replica.node.id})
        if replica.is_leader and followers:
            members = replica.core.members
            heir = max(followers, key=lambda number: members[number].match)
            replica.turn(replica.raft.transfer_leadership, heir)
        self.cluster.loop.after(HAND_OVER_US, self._end_life, replica)

    def _end_life(self, replica: "Replica") -> None:
        if not replica.is_gone:
            self._end(replica.node.place)

    @contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """Calls that come meanwhile are made afterwards."""
        paused = self.cluster.at_place[node]
        if paused.replica is not None:
            # A busy node has work under way at any moment: a read begins right before the pause.
            self.cluster.clients.read_at(paused.replica)
        paused.pause()
        try:
            yield
        finally:
            paused.resume()

    @contextmanager
    def slow(self, node: int, times: float) -> Iterator[None]:
        """Each message to or from the node takes longer."""
        network = self.cluster.network
        network.lag_us[node] = int(times * SLOW_US)
        network.settle()
        try:
            yield
        finally:
            network.lag_us.pop(node, None)
            network.settle()

    def crash_at_point(self, node: int) -> None:
        """A point of the process or of a disk call, with the power or without."""
        crashing = self.cluster.at_place[node]
        crashing.loses_power = self.random.random() < 0.5
        if self.random.random() < 0.3:
            crashing.crash_point = self.random.choice(CORE_POINTS)
        else:
            point = self.random.choice(DISK_POINTS)
            crashing.disk.armed().crash_at_point(point, after=self.random.random() < 0.5)

    # Clocks

    @contextmanager
    def distort(self, node: int, effect: WrongClock, level: float) -> Iterator[None]:
        """Levels of several faults add up, and the first that ends sets the clock right."""
        clock, field = self.cluster.at_place[node].clock, CLOCK_FIELDS[effect]
        setattr(clock, field, getattr(clock, field) + level)
        try:
            yield
        finally:
            setattr(clock, field, 0.0)

    def step_clock(self, node: int, ms: float) -> None:
        """The clock of a node jumps."""
        self.cluster.at_place[node].clock.offset_ms += ms

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
