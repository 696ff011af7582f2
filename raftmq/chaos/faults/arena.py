"""The arena: the verbs by which faults act on a cluster, and the form in which a fault is written.

A fault is written once, as a generator over an arena: it acts by verbs, waits by `yield`, and ends
its acts in `with` blocks. Each world implements the verbs and plays the generators.

    def flap(arena, event):
        pairs = both(*event.nodes)
        while True:
            with arena.cut(pairs):
                yield event.level / 1000
            yield event.level / 1000

| the fault | the world |
|---|---|
| yields seconds | resumes it after that time, and not before the verbs called so far are done |
| yields None | lets it stand until its end |
| returns | the fault has happened; a fault that lasts stands until its end all the same |
| raises `Skipped` | counts it as not made, with the reason |

A world closes the generator at the end of the event, and at the heal at the latest: the `with`
blocks that are open then undo what they did.

Invariants:
- A fault knows its world by the verbs alone, and draws from `Arena.random` alone.
- The nodes of an event are resolved before the fault begins: see `aimed`.
- A verb that a world lacks raises `CannotMake`, which names the verb.

Sources: the form of Jepsen's `Net`, `Kill` and `Pause` protocols, and of its nemeses' grudges.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
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

WrongClock = Literal["skew", "drift", "strobe", "periodic"]
"""How a clock is wrong."""

Lasting = AbstractContextManager[object]
"""What a verb does until the block ends."""


class Skipped(Exception):
    """The fault cannot be made now; the text says why."""


class CannotMake(Exception):
    """This world has no such verb."""

    def __init__(self, arena: "Arena", verb: str) -> None:
        super().__init__(f"the {arena.world.value} world cannot {verb}")


class Arena:
    """A cluster under faults. A world overrides the verbs that it can do."""

    world: World
    random: Random
    """Draws all that an event leaves open."""

    # The cluster

    def members(self) -> list[int]:
        """The nodes that belong to the cluster now, in order."""
        raise NotImplementedError

    def leader(self) -> int:
        """The leader of the busiest partition group, as far as it is known; 0: none."""
        raise NotImplementedError

    # Links. `pairs` may name clients; a world without clients on its network ignores these.

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

    def crash_at_point(self, node: int) -> None:
        """End a process at a point of its code that the world draws, when it comes there."""
        raise CannotMake(self, "reach crash points")

    def power_off(self, nodes: Sequence[int]) -> None:
        """Cut the power of machines, all at once: writes that were not synced are lost or torn."""
        raise CannotMake(self, "cut the power")

    # Clocks

    def distort(self, node: int, effect: WrongClock, level: float) -> Lasting:
        """Let a clock be off by a constant (ms), run fast (share), jump to and fro (ms), or swing
        slowly (ms)."""
        raise CannotMake(self, "distort clocks")

    def step_clock(self, node: int, ms: float) -> None:
        """Let a clock jump; it stays wrong until the heal."""
        raise CannotMake(self, "step clocks")


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
            raise Skipped("nobody leads")
        nodes = [leader]
    if aim is Aim.PAIR and len(nodes) < 2:
        raise Skipped("there is no pair")
    return event._replace(nodes=tuple(nodes))


class Player:
    """Plays a fault in a world that makes calls later."""

    def __init__(self, steps: Steps, later: Callable[[float, Callable[[], None]], None]) -> None:
        """`later` makes a call after some seconds."""
        self._steps = steps
        self._later = later
        self._is_over = False

    def go_on(self) -> None:
        """Begin the fault, or resume it after a wait. Raises `Skipped`."""
        if self._is_over:
            return
        seconds = next(self._steps, None)
        if seconds is not None:
            self._later(seconds, self.go_on)

    def end(self) -> None:
        """Undo the fault: its later steps are not made."""
        self._is_over = True
        self._steps.close()
