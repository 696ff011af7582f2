"""Time in a simulated world: trio's clock jumps, and an agenda holds the calls to come.

A network that delivers, a disk that finishes, a fault that begins: each is a plain call at a time,
kept in a heap. When no task can run, the clock jumps to the next entry of the agenda or to the next
deadline of trio. So a message on its way costs a heap entry, not a task.

    tasks run until all wait ─> the clock jumps ─> calls that are due ─> tasks run ...

Invariants:
- Calls due at one time are made in the order in which they were asked for.
- A call never runs while a task does.
- The same seed gives the same run: trio shuffles what is ready with a seeded random, after sorting
  it (its own switch for deterministic tests), and nothing here looks at addresses or real time.

- Time goes on: a moment in which the clock is read `LOOKS_MAX` times ends the run with
  `TimeStandsStill`. Code that retries a refused call at once never lets the clock jump.

Left out: time that passes while code runs; a step of the event loop takes none. So code that loops
without a look at the clock, and without a task switch, is not found.

Sources: discrete-event simulation as in FoundationDB; trio's `MockClock`, of which one instance
gets another function to jump.
"""

import gc
import heapq
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from math import inf
from traceback import FrameSummary
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")

LOOKS_MAX = 20_000
"""Looks at the clock in one moment; runs without a finding have up to some thousand."""
SAMPLES = 50
"""Further looks whose stacks are counted, to find the code that does not let time go on."""
STACKS = 3
"""Number of most frequent stacks that the message shows."""
FRAMES = 12
"""Frames shown of a stack, innermost first; frames of trio and of this module are left out."""


class TimeStandsStill(Exception):
    """Simulated time does not go on; the message has the stacks of the code that keeps it."""


class _Watchdog:
    """Counts looks at the clock in one moment, those of trio's scheduler among them."""

    __slots__ = ("_looks", "_moment", "_stacks", "on_finding")

    def __init__(self) -> None:
        self._moment = -1.0
        self._looks = 0
        self._stacks: Counter[str] = Counter()
        self.on_finding: Callable[[TimeStandsStill], None] | None = None

    def look(self, now: float, call: Callable[[], object] | None = None) -> None:
        """A look at the clock, or a call of the agenda."""
        if now != self._moment:
            self._moment, self._looks = now, 0
            return
        self._looks += 1
        if self._looks > LOOKS_MAX:
            self._sample(call)

    def _sample(self, call: Callable[[], object] | None) -> None:
        # A list: a generator would run inside `update`, which would be in each stack.
        self._stacks.update(list(_stacks()) if call is None else [_told_of(call)])
        if self._looks <= LOOKS_MAX + SAMPLES:
            return
        most = [stack for stack, _ in self._stacks.most_common(STACKS)]
        text = (
            f"time stands still at {self._moment:.6f} s: more than {LOOKS_MAX} looks at the clock; "
            "the most frequent stacks:\n" + "\n".join(most)
        )
        self._looks = 0
        # A second finding, after the run was cancelled, raises: a task that does not unwind must
        # not keep the run.
        on_finding, self.on_finding = self.on_finding, None
        if on_finding is None:
            raise TimeStandsStill(text)
        on_finding(TimeStandsStill(text))


def _stacks() -> Iterator[str]:
    """The stack of the look; if the scheduler looked, the stacks of the tasks that can run."""
    found: list[FrameSummary] = []
    for frame in reversed(traceback.extract_stack()):
        if frame.name == "unrolled_run":
            break
        found.append(frame)
    text = _told(found)
    if text:
        yield text
        return
    for task in list(_runner().runq):
        frames = traceback.StackSummary.extract(task.iter_await_frames())
        yield _told(list(reversed(frames)))


def _told(frames: list[FrameSummary]) -> str:
    own = [f for f in frames if "/trio/" not in f.filename and f.filename != __file__]
    return "".join(f"  {f.filename}:{f.lineno} {f.name}\n" for f in own[:FRAMES])


def _told_of(call: Callable[[], object]) -> str:
    function = call.func if isinstance(call, partial) else call
    return f"  {getattr(function, '__qualname__', type(function).__name__)}, a call of the agenda\n"


class Agenda:
    """The calls to come, by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._hash = blake2b(digest_size=16)
        self._watchdog = _Watchdog()
        self.now = 0.0
        """Seconds since the run began."""
        self.calls = 0
        """Calls made so far."""
        self.effects: Counter[str] = Counter()
        """By kind: effects of faults on the world so far, as pieces held or processes ended."""

    @staticmethod
    def current() -> "Agenda":
        """The agenda of the run that this task belongs to."""
        clock: Any = trio.lowlevel.current_clock()
        agenda: Agenda = clock.agenda
        return agenda

    def call_at(self, when: float, call: Callable[[], object]) -> None:
        """Make a call at a time, or as soon as no task can run if the time has passed."""
        heapq.heappush(self._heap, (when, next(self._order), call))

    def call_after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call after some time."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), call))

    def watch(self, on_finding: Callable[[TimeStandsStill], None]) -> None:
        """Have a function called once if time stands still."""
        self._watchdog.on_finding = on_finding

    def look(self) -> float:
        """The simulated time; counts as a look at the clock."""
        self._watchdog.look(self.now)
        return self.now

    def trace(self, event: bytes) -> None:
        """Add an event to the trace: two runs of one seed must have it in common."""
        self._hash.update(event)

    @property
    def trace_hash(self) -> str:
        """The hash of all events traced so far."""
        return self._hash.hexdigest()

    def jump(self) -> None:
        """No task can run: let time pass up to the next deadline or call; make the due calls."""
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
            self._watchdog.look(self.now, heap[0][2])
            heapq.heappop(heap)[2]()
            if self._watchdog.on_finding is None:
                # Time stood still and the run was cancelled: tasks must run now to be unwound.
                return


def _runner() -> Any:
    from trio._core._run import GLOBAL_RUN_CONTEXT

    return GLOBAL_RUN_CONTEXT.runner


def run(
    main: Callable[..., Awaitable[T]], *args: Any, seed: int, agenda: Agenda | None = None
) -> T:
    """Run an async function in simulated time on a seeded scheduler.

    Raises:
        TimeStandsStill: time did not go on; what the function was doing is cancelled.
    """
    import trio._core._run as scheduler

    agenda = agenda or Agenda()
    clock: Any = trio.testing.MockClock(autojump_threshold=0)
    clock.agenda = agenda
    clock._autojump = agenda.jump
    clock.current_time = agenda.look
    # Ready tasks run in an order drawn from this generator; trio's own tests seed it the same way.
    scheduler._r.seed(seed)
    switch, sorts = "_ALLOW_DETERMINISTIC_SCHEDULING", vars(scheduler)
    before, sorts[switch] = sorts[switch], True
    found: list[TimeStandsStill] = []
    roots: list[trio.lowlevel.Task] = []

    async def watched() -> T:
        root = trio.lowlevel.current_root_task()
        assert root is not None, "a task of a run has a root"
        roots.append(root)
        with trio.CancelScope() as scope:

            def end(finding: TimeStandsStill) -> None:
                found.append(finding)
                scope.cancel()

            agenda.watch(end)
            return await main(*args)
        raise found[0]

    try:
        return trio.run(watched, clock=clock)
    except trio.TrioInternalError:
        if not found:
            _end_tasks(roots)
            raise
    finally:
        sorts[switch] = before
    # Some tasks cannot be unwound: tasks of processes that stand still, or that refuse to end.
    _forget_tasks()
    raise found[0]


def _end_tasks(tasks: list[trio.lowlevel.Task]) -> None:
    """Unwind the tasks of a run whose scheduler broke, as by the alarm of a test that takes too
    long. The error holds these tasks; the collector would unwind them in the middle of a later run.
    """
    nurseries: list[Any] = []
    for task in tasks:
        for nursery in task.child_nurseries:
            nurseries.append(nursery)
            tasks.extend(nursery.child_tasks)
    for task in reversed(tasks):
        # The scheduler is gone, so an unwound task may raise anything.
        with suppress(BaseException):
            task.coro.close()
    for nursery in nurseries:
        # A nursery complains in the collector of tasks that no scheduler took out.
        nursery._children.clear()


def _forget_tasks() -> None:
    """Collect the tasks that a run left behind, without a warning about each."""
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = told
