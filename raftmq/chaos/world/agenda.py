"""Time in a made-up world: trio's clock jumps, and what is to happen stands in an agenda.

A network that delivers, a disk that finishes, a fault that begins: each is a plain call at a time,
kept in a heap. When no task can run, the clock jumps to whatever is next, an entry of the agenda or
a deadline of trio. So a message on its way costs a heap entry, not a task.

    tasks run until all wait ─> the clock jumps ─> calls that are due ─> tasks run ...

Invariants:
- Calls due at one time are made in the order in which they were asked for.
- A call never runs while a task does.
- The same seed gives the same run: trio shuffles what is ready with a seeded random, after sorting
  it (its own switch for deterministic tests), and nothing here looks at addresses or real time.

Left out: time that passes while code runs; a step of the event loop takes none.

Sources: discrete-event simulation as in FoundationDB's; trio's `MockClock`, of which one instance
is told to jump differently.
"""

import heapq
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from itertools import count
from math import inf
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")


class Agenda:
    """What happens when."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._hash = blake2b(digest_size=16)
        self.now = 0.0
        """Seconds since the run began."""
        self.calls = 0
        """Calls made so far."""

    @staticmethod
    def current() -> "Agenda":
        """That of the run that this task belongs to."""
        clock: Any = trio.lowlevel.current_clock()
        agenda: Agenda = clock.agenda
        return agenda

    def call_at(self, when: float, call: Callable[[], object]) -> None:
        """Make a call at a time, or as soon as no task can run if that has passed."""
        heapq.heappush(self._heap, (when, next(self._order), call))

    def call_after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call after some time."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), call))

    def trace(self, event: bytes) -> None:
        """Something happened that two runs of one seed must have in common."""
        self._hash.update(event)

    @property
    def trace_hash(self) -> str:
        """Of all that was traced, and of the times of all calls."""
        return self._hash.hexdigest()

    def jump(self) -> None:
        """No task can run: let time pass up to what comes next, and do that."""
        heap = self._heap
        # trio keeps its deadlines there; asking by its public statistics costs ten times as much.
        deadline = _runner().deadlines.next_deadline()
        if not heap or heap[0][0] > deadline:
            if deadline < inf:
                self.now = max(self.now, deadline)
            return
        self.now = max(self.now, heap[0][0])
        while heap and heap[0][0] <= self.now:
            self.calls += 1
            heapq.heappop(heap)[2]()


def _runner() -> Any:
    from trio._core._run import GLOBAL_RUN_CONTEXT

    return GLOBAL_RUN_CONTEXT.runner


def run(
    main: Callable[..., Awaitable[T]], *args: Any, seed: int, agenda: Agenda | None = None
) -> T:
    """Run an async function in made-up time on a seeded scheduler."""
    import trio._core._run as scheduler

    agenda = agenda or Agenda()
    clock: Any = trio.testing.MockClock(autojump_threshold=0)
    clock.agenda = agenda
    clock._autojump = agenda.jump
    clock.current_time = lambda: agenda.now
    # What is ready runs in an order drawn from this; trio's own tests seed it the same way.
    scheduler._r.seed(seed)
    switch, sorts = "_ALLOW_DETERMINISTIC_SCHEDULING", vars(scheduler)
    before, sorts[switch] = sorts[switch], True
    try:
        return trio.run(partial(main, *args), clock=clock)
    finally:
        sorts[switch] = before
