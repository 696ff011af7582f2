"""The arena: the verbs by which faults act on a cluster, and the form in which a fault is written.

A fault is written once, as a generator over an arena: it acts by verbs, waits by `yield`, and ends
its acts in `with` blocks. Each world implements the verbs and plays the generators.

    def flap(arena, event):
        one, other = event.nodes
        pairs = between([one], [other])
        while True:
            with arena.cut(pairs):
                yield event.level / 1000
            yield event.level / 1000

| the fault | the world |
|---|---|
| yields seconds | resumes it after that time, and not before the verbs called so far are done |
| yields None | lets it stand until its end |
| returns | the fault has happened; a fault that lasts stands until its end all the same |
| raises `Skipped` | counts it as not made, with the reason; after a wait, lets it end there |

A world closes the generator at the end of the event, and at the heal at the latest: the `with`
blocks that are open then undo what they did.

Invariants:
- A fault knows its world by the verbs alone, and draws from `Arena.random` alone.
- The nodes of an event are resolved before the fault begins: see `aimed`.
- A verb that a world lacks raises `CannotMake`, which names the verb.

Sources: the form of Jepsen's `Net`, `Kill` and `Pause` protocols, and of its nemeses' grudges.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Literal

from raftmq.consensus import MessageKind

from .catalogue import FAULTS, Aim, World
from .schedule import Event

Pair = tuple[int, int]
"""A direction between two parties, sender first: nodes by number, clients as `CLIENTS`."""

CLIENTS = 0
"""The party that stands for all clients together."""

DiskCall = Literal["sync", "write", "read"]

OddAck = Literal["twice", "late"]

WrongClock = Literal["skew", "drift", "strobe", "periodic"]
"""How a clock is wrong."""

Lasting = AbstractContextManager[object]
"""An effect that lasts until the block ends."""


class Skipped(Exception):
    """The fault cannot be made now; the text says why."""


class CannotMake(Exception):
    """This world has no such verb."""

    def __init__(self, arena: "Arena", verb: str) -> None:
        super().__init__(f"the {arena.world.value} world cannot {verb}")


class Arena(ABC):
    """A cluster under faults. A world overrides the verbs that it can do."""

    world: World
    damages: Collection[str] = ()
    """The kinds of damage that the world can do."""
    random: Random
    """Draws all that an event leaves open."""

    # The cluster

    @abstractmethod
    def members(self) -> list[int]:
        """The nodes that belong to the cluster now, in order."""

    @abstractmethod
    def leader(self) -> int:
        """The leader of the busiest partition group, as far as it is known; 0: none."""

    # Links. `pairs` may name clients.

    def cut(self, pairs: Iterable[Pair], *, resets: bool = False) -> Lasting:
        """Let nothing travel along these pairs; with `resets` break the open connections, too."""
        raise CannotMake(self, "cut links")

    def delay(self, ms: float) -> Lasting:
        """Let everything take longer, sometimes much longer."""
        raise CannotMake(self, "delay messages")

    def reorder(self, share: float) -> Lasting:
        """Let a share of the messages be overtaken."""
        raise CannotMake(self, "reorder messages")

    def duplicate(self, share: float) -> Lasting:
        """Let a share of the messages arrive twice."""
        raise CannotMake(self, "duplicate messages")

    def lose(self, share: float) -> Lasting:
        """Lose a share of the messages."""
        raise CannotMake(self, "lose messages")

    def drop(self, kinds: frozenset[MessageKind]) -> Lasting:
        """Lose all messages of these kinds."""
        raise CannotMake(self, "drop kinds of messages")

    def limit(self, pairs: Sequence[Pair], bytes_per_second: float) -> Lasting:
        """Let links carry this much only."""
        raise CannotMake(self, "limit links")

    def swallow(self, pairs: Sequence[Pair]) -> Lasting:
        """Let connections take everything and deliver nothing; they break at the end."""
        raise CannotMake(self, "swallow what is sent")

    def replay(self, pair: Pair) -> None:
        """Send messages of long ago again: those of a pair of nodes, where a world can choose."""
        raise CannotMake(self, "replay messages")

    def cut_frame(self, pair: Pair) -> None:
        """Break a connection between two nodes in the middle of its next frame."""
        raise CannotMake(self, "cut frames")

    def corrupt_frame(self, pair: Pair) -> None:
        """Change a bit of the next frame between two nodes."""
        raise CannotMake(self, "corrupt frames")

    def stranger(self, node: int) -> Lasting:
        """Let a stranger attack a node's port."""
        raise CannotMake(self, "send strangers")

    # Processes

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """End a process at once; it starts again after this time, or some time up to seconds."""
        raise CannotMake(self, "kill processes")

    def stop(self, node: int) -> None:
        """Ask a process to end; it starts again once it has."""
        raise CannotMake(self, "stop processes")

    def pause(self, node: int) -> Lasting:
        """Let a process stand still."""
        raise CannotMake(self, "pause processes")

    def slow(self, node: int, times: float) -> Lasting:
        """Let a process get one part in `times` of its processor."""
        raise CannotMake(self, "slow processes")

    def stall(self, node: int, seconds: float) -> None:
        """Keep a process busy with one step."""
        raise CannotMake(self, "stall event loops")

    def crash_at_failpoint(self, node: int) -> None:
        """End a process at a failpoint that the world draws, when it comes there."""
        raise CannotMake(self, "reach failpoints")

    def power_off(self, nodes: Sequence[int]) -> None:
        """Cut the power of machines, all at once: writes that were not synced are lost or torn."""
        raise CannotMake(self, "cut the power")

    # Disks

    def refuse(self, node: int, call: DiskCall) -> None:
        """Let the next call of this kind fail."""
        raise CannotMake(self, "refuse calls of disks")

    def lie(self, node: int) -> None:
        """Let the next sync fail, and the one after it succeed: the data is lost."""
        raise CannotMake(self, "lie about syncs")

    def tear_write(self, node: int) -> None:
        """Cut the power inside a write that comes soon."""
        raise CannotMake(self, "tear writes")

    def shorten_write(self, node: int) -> None:
        """Let the next write take a part of its bytes, and say so."""
        raise CannotMake(self, "shorten writes")

    def interrupt_write(self, node: int) -> None:
        """Interrupt the next write by a signal."""
        raise CannotMake(self, "interrupt writes")

    def fill(self, node: int, space_bytes: int) -> Lasting:
        """Let only this much more fit on the disk."""
        raise CannotMake(self, "fill disks")

    def fill_quota(self, node: int, space_bytes: int) -> Lasting:
        """Let only this much more fit into the quota."""
        raise CannotMake(self, "use up quotas")

    def forbid_writes(self, node: int) -> Lasting:
        """Let the disk be read only."""
        raise CannotMake(self, "forbid writes")

    def slow_disk(self, node: int, times: float) -> Lasting:
        """Multiply the time of each call by this factor."""
        raise CannotMake(self, "slow disks")

    def damage(self, node: int, kind: str) -> None:
        """Damage what the disk of a node holds; the kinds are those of `disks.DAMAGES`."""
        raise CannotMake(self, "damage disks")

    def clone(self, node: int, source: int) -> None:
        """Let a node come back with the disk of another."""
        raise CannotMake(self, "clone disks")

    # Clocks

    def distort(self, node: int, effect: WrongClock, level: float) -> Lasting:
        """Let a clock be off by a constant (ms), run fast (share), jump to and fro (ms), or swing
        slowly (ms)."""
        raise CannotMake(self, "distort clocks")

    def step_clock(self, node: int, ms: float) -> None:
        """Let a clock jump; it stays wrong until the heal."""
        raise CannotMake(self, "step clocks")

    # Members. All verbs ask for a change, and return before it is made. A world may put its next
    # question only when it has the answer.

    def add_member(self) -> None:
        """Ask for one more node."""
        raise CannotMake(self, "add members")

    def promote_learner(self) -> None:
        """Ask for a learner, and for its vote when it has learned for a while."""
        raise CannotMake(self, "promote learners")

    def remove_member(self, node: int) -> None:
        """Ask for the removal of a node; the world may add another one first."""
        raise CannotMake(self, "remove members")

    def replace_member(self, node: int) -> None:
        """Ask for a new node in place of another."""
        raise CannotMake(self, "replace members")

    def drain(self, node: int) -> Lasting:
        """Ask that a node leads nothing, and at the end that it leads again."""
        raise CannotMake(self, "drain nodes")

    def even_out(self) -> None:
        """Ask for moves of groups, and of leaderships, by a plan."""
        raise CannotMake(self, "move groups by a plan")

    def bring_back(self, node: int) -> None:
        """Start a removed node with its old data; if none was removed, the world may remove this
        one."""
        raise CannotMake(self, "bring members back")

    # Clients

    def crash_client(self) -> None:
        """End a client in the middle of what it does."""
        raise CannotMake(self, "end clients")

    def end_consumers(self) -> None:
        """End one or more consumers; others take over."""
        raise CannotMake(self, "end consumers")

    def hang_consumers(self) -> Lasting:
        """Let one or more consumers stand still with the messages that they have."""
        raise CannotMake(self, "hang consumers")

    def slow_consumers(self) -> Lasting:
        """Let consumers need longer for each batch."""
        raise CannotMake(self, "slow consumers")

    def resend(self) -> None:
        """Send requests of clients again, also to other nodes, with their old numbers."""
        raise CannotMake(self, "resend requests")

    def ack_oddly(self, how: OddAck) -> None:
        """Send the next commit or ack twice, or an older one after it."""
        raise CannotMake(self, "repeat acks")

    def reset_clients(self) -> None:
        """Break all connections of clients."""
        raise CannotMake(self, "reset clients")


Steps = Generator[float | None, None, None]
"""A fault that is being made."""

Make = Callable[[Arena, Event], Steps]
"""Makes a fault; the nodes of the event are those that `aimed` found."""


def while_lasts(verb: Callable[[Arena, Event], Lasting]) -> Make:
    """The fault that does one thing as long as it lasts."""

    def fault(arena: Arena, event: Event) -> Steps:
        with verb(arena, event):
            yield None

    return fault


def at_once(verb: Callable[[Arena, Event], None]) -> Make:
    """The fault that does one thing once."""

    def fault(arena: Arena, event: Event) -> Steps:
        verb(arena, event)
        yield from ()

    return fault


def aimed(event: Event, nodes: Sequence[int], leader: int) -> Event:
    """The event with the nodes that it hits now.

    Args:
        event: of a schedule.
        nodes: the nodes that stand for the event's, such as the successors of replaced nodes.
        leader: the leader of the moment; 0: none.

    Raises:
        Skipped: there is no such node.
    """
    aim = FAULTS[event.fault].aim
    if aim is Aim.LEADER:
        if not leader:
            raise Skipped("no node leads")
        nodes = [leader]
    if aim is Aim.PAIR and len(nodes) < 2:
        raise Skipped("there is no pair")
    return event._replace(nodes=tuple(nodes))


class RunningFault:
    """A fault that has begun, in a world that makes calls later."""

    def __init__(self, steps: Steps, later: Callable[[float, Callable[[], None]], None]) -> None:
        """`later` makes a call after some seconds."""
        self._steps = steps
        self._later = later
        self._is_begun = False
        self._is_over = False

    def go_on(self) -> None:
        """Begin the fault, or resume it after a wait. Raises `Skipped` if it cannot begin."""
        if self._is_over:
            return
        try:
            seconds = next(self._steps, None)
        except Skipped:
            if not self._is_begun:
                raise
            self._is_over = True
            return
        self._is_begun = True
        if seconds is not None:
            self._later(seconds, self.go_on)

    def end(self) -> None:
        """Undo the fault: its later steps are not made."""
        self._is_over = True
        self._steps.close()
