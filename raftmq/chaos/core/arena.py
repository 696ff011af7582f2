"""The core simulator as an arena: how its cluster does the verbs of faults.

One arena stands for one fault: it has the event, and a random generator for this event alone. Nodes
are named by their places, and all clients by `CLIENTS`; see `network`.

Invariants:
- A fault's random generator depends on the seed and the event alone, so that leaving out other
  events does not change what this event does.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.disk import CoreDisk
from raftmq.chaos.core.network import CHUNK
from raftmq.chaos.core.operator import adding, removing, replacing
from raftmq.chaos.core.replica.replica import Replica
from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import (
    Arena,
    DiskCall,
    Lasting,
    Pair,
    RunningFault,
    Skipped,
    Steps,
    WrongClock,
)
from raftmq.chaos.world.disk import DISK_CALLS, FAILPOINTS
from raftmq.consensus import ChangeKind, MessageKind

from .faults import damage
from .faults.effects import AGAIN

REPLAYS = 40
"""Most old messages that one replay sends again."""

SLOW_US = 3000
"""Extra time of a slow node's messages, times the level."""

LEARNING_US = 2_000_000
"""Time for which a node is a learner before it is to vote."""

HAND_OVER_US = 300_000
"""Time from a request to end until the process ends."""

CHANGE_FAILPOINTS = (
    "change written", "changes written", "change synced", "changes synced", "commit written",
)  # fmt: skip
"""Failpoints after the write or the sync of a change of members, or of several, and after a write
that commits records of its own: see `WatchedLog`."""

CORE_FAILPOINTS = (
    "before sync", "after sync", "before apply", "after apply", "before snapshot",
    *CHANGE_FAILPOINTS,
)  # fmt: skip
"""Failpoints of the simulated process besides those of its disk: see `Host.reach`."""

_LOG_FAILPOINTS = [
    point for point in FAILPOINTS if point.endswith((" log", " snapshot", " partial", " index"))
]
DISK_FAILPOINTS = (*_LOG_FAILPOINTS, "sync_folder log")
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

    cluster: Cluster
    event: Event
    random: Random
    end_us: int
    """When the fault is to end; for a fault that does not last, when everything heals."""

    world = World.CORE
    damages = damage.HARMS.keys()

    def members(self) -> list[int]:
        """All places that are taken."""
        return sorted(self.cluster.at_place)

    def leader(self) -> int:
        """The place of the node that leads; 0: none does."""
        leader = self.cluster.leader()
        return 0 if leader is None else leader.node.place

    def play(self, steps: Steps) -> RunningFault:
        """A fault that is resumed by the event loop; `go_on` begins it."""
        return RunningFault(steps, self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.cluster.loop.after(max(int(seconds * 1e6), 1), call)

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
        """Deliver old messages between any nodes again."""
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

    def _end_life(self, replica: Replica) -> None:
        if not replica.is_gone:
            self._end(replica.node.place)

    @contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """Calls that come meanwhile are made afterwards."""
        paused = self.cluster.at_place[node]
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

    def crash_at_failpoint(self, node: int) -> None:
        """A failpoint of the process or of a disk call, with the power or without."""
        crashing = self.cluster.at_place[node]
        crashing.loses_power = self.random.random() < 0.5
        if self.random.random() < 0.3:
            crashing.failpoint = self.random.choice(CORE_FAILPOINTS)
        else:
            point = self.random.choice(DISK_FAILPOINTS)
            crashing.disk.armed().crash_at_failpoint(point, after=self.random.random() < 0.5)

    # Disks

    def refuse(self, node: int, call: DiskCall) -> None:
        """The next call of the kind that logs make."""
        self._armed(node).fail_next(DISK_CALLS[call], errno.EIO)

    def _armed(self, node: int) -> CoreDisk:
        return self.cluster.at_place[node].disk.armed()

    def lie(self, node: int) -> None:
        """The data of the refused sync is lost, although later syncs succeed."""
        self._armed(node).lie_next()

    def tear_write(self, node: int) -> None:
        """The power goes inside one of the next writes."""
        self.cluster.at_place[node].loses_power = True
        self._armed(node).crash_at(self.random.randint(1, 3))

    @contextmanager
    def fill(self, node: int, space_bytes: int) -> Iterator[None]:
        """The disk takes only this much more."""
        disk = self._armed(node)
        disk.space = disk.used() + space_bytes
        try:
            yield
        finally:
            disk.space = None

    @contextmanager
    def slow_disk(self, node: int, times: float) -> Iterator[None]:
        """Every pass and every job of the disk takes longer."""
        slow = self.cluster.at_place[node]
        slow.disk_factor = times
        try:
            yield
        finally:
            slow.disk_factor = 1.0

    def damage(self, node: int, kind: str) -> None:
        """Done if the atlas allows it, and where the log can detect it: see `faults.damage`."""
        harm = damage.Harm(self.cluster, self.event.fault, self.random, self.end_us)
        damage.HARMS[kind](harm, self.cluster.at_place[node])

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

    # Members

    def add_member(self) -> None:
        """A spare node becomes a voter."""
        operator = self.cluster.operator
        operator.ask(adding(operator.spare().id))

    def promote_learner(self) -> None:
        """A spare node becomes a learner, and a voter two seconds later."""
        operator = self.cluster.operator
        number = operator.spare().id
        operator.ask(adding(number, ChangeKind.ADD_LEARNER))
        self.cluster.loop.after(LEARNING_US, operator.ask, adding(number))

    def remove_member(self, node: int) -> None:
        """The operator spares a quorum of intact voters."""
        self.cluster.operator.ask(removing(self.cluster.at_place[node].id))

    def replace_member(self, node: int) -> None:
        """A spare node takes the place of a voter."""
        operator = self.cluster.operator
        operator.ask(replacing(self.cluster.at_place[node].id, operator.spare().id))

    def bring_back(self, node: int) -> None:
        """A removed node becomes a voter again, under its id."""
        conf = self.cluster.newest_conf()
        members = {*conf.voters, *conf.learners, *conf.voters_outgoing}
        gone = [
            each
            for each in self.cluster.at_place.values()
            if each.id not in members and each.applied and not each.is_damaged and not each.refusal
        ]
        if not gone:
            raise Skipped("no node was removed")
        self.cluster.operator.ask(adding(self.random.choice(gone).id))
