"""The `nemesis` of a test: plays faults in real time, in a thread of its own.

    with nemesis:
        while not nemesis.is_over:
            ...                                  # work, and record it

The nemesis makes the faults that were registered with `can`: those of the processes of a
`raftmq.testing.Cluster`, and those that a test registers. A seed decides which faults strike, when,
and which nodes; a seed does not decide what the system under test does in real time.

| phase | share of the time | what happens |
|---|---|---|
| faults | three quarters | the schedule is played |
| calm | the rest | everything is healed: dead nodes start, paused nodes go on |

Invariants:
- After the block no fault is left, whether the block ended or raised.
- A fault that cannot be made fails the test; it is never skipped in silence.

Sources: Jepsen's nemesis, which is a process beside the clients.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from raftmq.chaos.faults import FAULTS, Aim, Event, Fault, Schedule, draw, expanded, nearest
from raftmq.chaos.outcome import Happening

Action = Callable[[], object]
Begin = Callable[[Event], object]

ATTEMPTS_MAX = 20
ATTEMPT_STEP = 1 << 32
"""Distance between the seeds of two attempts to draw a schedule with at least one fault."""

STOP_SECONDS_MAX = 30.0
"""Time for healing after the block is left; a longer heal fails the test."""


class CannotBreak(Exception):
    """A wanted fault was not registered; the message names the registered faults."""


class Nemesis:
    """The value of the fixture `nemesis`."""

    def __init__(
        self,
        *,
        seed: int,
        wanted: Sequence[str] = (),
        seconds: float = 10.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`wanted` names faults, empty for all registered ones; `clock` returns nanoseconds."""
        self.seed = seed
        self.seconds = seconds
        self.random = Random(f"nemesis {seed}")
        """For choices of the test itself, such as what to send."""
        self.nodes = 3
        """Number of nodes: faults hit nodes 1 to `nodes`."""
        self.timeline: list[Happening] = []
        """Faults and their ends, in the order in which they were made."""
        self.played: Schedule | None = None
        """The schedule; None until the block is entered."""
        self._wanted = tuple(wanted)
        self._clock = clock
        self._kinds: dict[str, Fault] = {}
        self._begin: dict[str, Begin] = {}
        self._end: dict[str, Begin] = {}
        self._heal: list[Action] = []
        self._agenda: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._active: dict[int, Event] = {}
        self._thread: threading.Thread | None = None
        self._stop, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._started = 0.0

    # -- what can be made ------------------------------------------------------------------------

    def can(
        self,
        name: str,
        begin: Begin,
        end: Begin | None = None,
        *,
        what: str = "",
        aim: Aim = Aim.NONE,
    ) -> None:
        """Register how a fault is made.

        Args:
            name: a name of the catalogue, or a new one.
            begin: called when the fault strikes, with the event: its nodes and its strength.
            end: called when the fault is over; None: the fault happens once and has no end.
            what: description for people; ignored for a name of the catalogue.
            aim: which nodes the fault hits; ignored for a name of the catalogue.
        """
        own = Fault(name, "", what or name, frozenset(), aim, end is not None)
        self._kinds[name] = FAULTS.get(name, own)
        self._begin[name] = begin
        if end is not None:
            self._end[name] = end

    def heals(self, action: Action) -> None:
        """Call `action` at the heal, after the ends of the faults that still last."""
        self._heal.append(action)

    @property
    def schedule(self) -> Schedule:
        """Which faults strike when; the same for the same seed and the same faults.

        Raises:
            CannotBreak: a wanted fault is not registered.
        """
        wanted = expanded(self._wanted, self._kinds)
        unknown = [name for name in wanted if name not in self._kinds]
        if unknown or not self._kinds:
            known = ", ".join(sorted(self._kinds)) or "none: use `can`, or a cluster's fixture"
            wrong = [f"{name}{nearest(name, self._kinds)}" for name in unknown] or ["any fault"]
            raise CannotBreak(f"cannot make {', '.join(wrong)}\nknown: {known}")
        kinds = [self._kinds[name] for name in wanted or sorted(self._kinds)]
        # A short run may draw calm windows only: then the next derived seed decides.
        for attempt in range(ATTEMPTS_MAX):
            seed = self.seed + attempt * ATTEMPT_STEP
            schedule = draw(seed, kinds, nodes=self.nodes, seconds=self.seconds)
            if schedule.events:
                break
        return schedule

    # -- playing ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the time is up; the heal is done by then."""
        return self._over.is_set()

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the block was entered."""
        return int((time.monotonic() - self._started) * 1000)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the time is up; False if `timeout` seconds pass first."""
        return self._over.wait(timeout)

    def later(self, seconds: float, action: Action) -> None:
        """Call `action` after a delay, in the thread of the nemesis; for use by `begin`."""
        at = time.monotonic() + seconds
        heapq.heappush(self._agenda, (at, next(self._numbers), action))

    def note(self, what: str, node: int = 0) -> None:
        """Add a sentence to the time line."""
        self.timeline.append(Happening(self._clock() // 1_000_000, node, what))

    def __enter__(self) -> Self:
        assert self._thread is None, "a nemesis is used once"
        schedule = self.played = self.schedule
        self._started = time.monotonic()
        for event in schedule.events:
            self.later(event.at_ms / 1000, partial(self._strike, event))
        self._thread = threading.Thread(target=self._run, args=(schedule,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join(STOP_SECONDS_MAX)
        assert not self._thread.is_alive(), f"not healed within {STOP_SECONDS_MAX:g} s"
        # An error of the test itself says more, and must not be hidden by the nemesis's error.
        if self._error is not None and error is None:
            raise self._error

    def _run(self, schedule: Schedule) -> None:
        try:
            try:
                self._play(self._started + schedule.heal_ms / 1000)
            finally:
                # After an error of a handler too: the test goes on with the same system.
                self._end_all()
            self.note("everything is healed")
            self._stop.wait(max(self._started + self.seconds - time.monotonic(), 0))
        except BaseException as error:
            # `__exit__` raises the error in the test's thread.
            self._error = error
        finally:
            self._over.set()

    def _play(self, until: float) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= until:
                return
            if self._agenda and self._agenda[0][0] <= now:
                heapq.heappop(self._agenda)[2]()
                continue
            at = min(self._agenda[0][0], until) if self._agenda else until
            self._stop.wait(at - now)

    def _strike(self, event: Event) -> None:
        fault = self._kinds[event.fault]
        self._tell(event, " begins" if fault.lasts else "")
        self._begin[event.fault](event)
        if fault.lasts:
            number = next(self._numbers)
            self._active[number] = event
            self.later(event.lasts_ms / 1000, partial(self._finish, number))

    def _finish(self, number: int) -> None:
        event = self._active.pop(number, None)
        if event is not None:
            if event.fault in self._end:
                self._end[event.fault](event)
            self._tell(event, " ends")

    def _end_all(self) -> None:
        self._agenda.clear()
        for number in sorted(self._active):
            self._finish(number)
        for action in self._heal:
            action()

    def _tell(self, event: Event, edge: str) -> None:
        for node in event.nodes or (0,):
            self.note(f"{event.fault}{edge}", node)
