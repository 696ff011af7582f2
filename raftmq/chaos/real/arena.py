"""The real world as an arena: how faults reach the processes of a run, their links and their disks.

Verbs are plain calls, and much of their work has to wait: for a process to end, for the disk's
daemon to answer. Such work is queued, and done before the fault goes on: `done` does it.

Invariants:
- When a fault was closed and `done` has returned, the fault is over.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from raftmq.chaos.faults import Event, World
from raftmq.chaos.faults.arena import CLIENTS, Arena, Lasting, Pair, Skipped, Steps
from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real.faults.hostile import Stranger
from raftmq.chaos.real.network.rules import Kind, Rule
from raftmq.chaos.real.stage import Stage, leaders_of
from raftmq.chaos.real.waiting import wait_true
from raftmq.chaos.real.watch import Watch
from raftmq.consensus import MessageKind

FRAME_SECONDS_MAX = 3.0
"""Time within which a frame must come by that a fault is to hit."""
REPLAYS = 30
"""Most old frames of a direction that one replay sends again."""


class RealArena(Arena):
    """The surroundings of one fault."""

    world = World.REAL

    def __init__(self, stage: Stage, watch: Watch) -> None:
        self.stage = stage
        self.random = stage.random
        self._watch = watch
        self._queue: list[Callable[[], Awaitable[object]]] = []

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """Queue work; it may raise `Skipped`."""
        self._queue.append(work)

    async def done(self) -> None:
        """Do what was queued. Cancelling leaves the rest queued."""
        while self._queue:
            await self._queue.pop(0)()

    @contextmanager
    def task(self, work: Callable[[], Awaitable[object]]) -> Iterator[None]:
        """Run a task until the end of the block."""
        scope, is_over = trio.CancelScope(), trio.Event()

        async def run() -> None:
            with scope:
                await work()
            is_over.set()

        self.stage.nursery.start_soon(run)
        try:
            yield
        finally:
            scope.cancel()
            self.later(is_over.wait)

    def members(self) -> list[int]:
        """The members' numbers."""
        return self.stage.everyone

    def leader(self) -> int:
        """The leader of the first data group when all nodes were last asked; 0: none was seen."""
        leaders = leaders_of(self._watch.statuses)
        return next((leaders[group] for group in sorted(leaders) if group), 0)

    # Links

    @contextmanager
    def rule(
        self,
        kind: Kind,
        pairs: Iterable[Pair] | None = None,
        level: float = 0.0,
        kinds: frozenset[MessageKind] = frozenset(),
    ) -> Iterator[Rule]:
        """Keep a rule of the network; without `pairs` it covers all connections."""
        rule = self.stage.rules.add(kind, pairs, level, kinds)
        try:
            yield rule
        finally:
            self.stage.rules.remove(rule)

    @contextmanager
    def cut(self, pairs: Iterable[Pair], *, resets: bool = False) -> Iterator[None]:
        """Frames wait until the end, and fill the sender's socket."""
        pairs = set(pairs)
        with self.rule(Kind.BLOCK, pairs):
            if resets:
                self.stage.network.break_connections(pairs)
            yield

    def delay(self, ms: float) -> Lasting:
        """Each frame comes later, one in ten four times as late."""
        return self.rule(Kind.DELAY, level=ms)

    def reorder(self, share: float) -> Lasting:
        """A share of the frames waits a little, so that other connections overtake it."""
        return self.rule(Kind.REORDER, level=share)

    def duplicate(self, share: float) -> Lasting:
        """A share of the frames comes a second time, on a connection of its own."""
        return self.rule(Kind.DUPLICATE, level=share)

    def lose(self, share: float) -> Lasting:
        """A share of the frames breaks its connection."""
        return self.rule(Kind.LOSS, level=share)

    def drop(self, kinds: frozenset[MessageKind]) -> Lasting:
        """Frames with messages of these kinds are gone, and the connections stay."""
        if not self.stage.network.is_proxy:
            raise Skipped("packets have no kinds")
        return self.rule(Kind.DROP, kinds=kinds)

    def limit(self, pairs: Sequence[Pair], bytes_per_second: float) -> Lasting:
        """Frames wait for their turn."""
        return self.rule(Kind.RATE, pairs, bytes_per_second)

    @contextmanager
    def swallow(self, pairs: Sequence[Pair]) -> Iterator[None]:
        """Frames are gone, and the connections stay until the end."""
        with self.rule(Kind.SWALLOW, pairs):
            try:
                yield
            finally:
                # The swallowed frames are missing from the streams: these are of no use any more.
                self.stage.network.break_connections(set(pairs))

    def replay(self, pair: Pair) -> None:
        """Old frames come again: of two nodes to each other, and of clients to both."""
        pairs = [*between(pair[:1], pair[1:]), *((CLIENTS, node) for node in pair)]
        if not sum([self.stage.network.repeat_old(flow, REPLAYS) for flow in pairs]):
            raise Skipped("nothing to repeat yet")

    def cut_frame(self, pair: Pair) -> None:
        """Break a connection of two nodes inside a frame."""
        self.later(partial(self._strike, Kind.CUT, pair))

    def corrupt_frame(self, pair: Pair) -> None:
        """Change a bit of a frame between two nodes."""
        self.later(partial(self._strike, Kind.CORRUPT, pair))

    async def _strike(self, kind: Kind, pair: Pair) -> None:
        with self.rule(kind, between(pair[:1], pair[1:])) as rule:
            is_struck = await wait_true(lambda: rule.struck > 0, timeout=FRAME_SECONDS_MAX)
        if not is_struck:
            raise Skipped("no frame came by")

    @contextmanager
    def stranger(self, node: int) -> Iterator[None]:
        """Connections of a stranger to the node's private port, which no rule covers."""
        self.stage.running(node)
        with self.task(Stranger(self.stage, node).run):
            yield


Make = Callable[[RealArena, Event], Steps]
