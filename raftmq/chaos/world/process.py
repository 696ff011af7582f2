"""Machines and the processes on them, which run, stand still or are gone.

Every task of a process carries the process in its context: a task inherits the context of the task
that started it. A process *stands still* (SIGSTOP, a long pause of the garbage collector, a virtual
machine that is moved) by not getting the event loop: its tasks that become ready are set aside
until the process goes on, be they woken by timers, streams or the disk. The world around goes on:
bytes arrive in the process's sockets until they are full, and time passes, so that on return all
its deadlines are past at once.

Invariants:
- No code of a process runs while it stands still, nor after its death, save for the unwinding of
  its cancelled tasks, which can reach neither disk nor network.

Left out: a pause between two system calls of one step of the event loop.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from math import pi, sin
from random import Random
from typing import Any

import trio

from raftmq.chaos.world.agenda import Agenda
from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.tls.names import CertificateName

EPOCH_MS = 1_700_000_000_000
"""The time at which every simulated world begins, on a right clock, in ms since 1970."""

_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)


class WallClock:
    """A machine's wall clock, in milliseconds; right unless a fault sets it wrong."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.skew_ms = 0.0
        """How far the clock is ahead; negative: behind."""
        self.swing_ms = 0.0
        """The clock swings around the right time by this, with a period of 20 seconds."""
        self.strobe_ms = 0.0
        """The clock jumps ahead by this and back again, every tenth of a second."""
        self.ahead_ms_max = 0.0
        """The furthest that the clock was ahead when it was read."""
        self.behind_ms_max = 0.0
        """The furthest that the clock was behind when it was read."""
        self._drift = 0.0
        self._drift_since = 0.0

    @property
    def drift(self) -> float:
        """Share by which the clock runs fast; time gained so far stays when the share changes."""
        return self._drift

    @drift.setter
    def drift(self, share: float) -> None:
        now = self._agenda.now
        self.skew_ms += (now - self._drift_since) * 1000 * self._drift
        self._drift, self._drift_since = share, now

    def heal(self) -> None:
        """Set the clock right."""
        self.drift = 0.0
        self.skew_ms = self.swing_ms = self.strobe_ms = 0.0

    def now_ms(self) -> int:
        """The time that the clock shows, in ms since 1970."""
        now, shown = self._agenda.now, self._shown()
        if int(shown) != int(now * 1000):
            self._agenda.effects["wrong times told"] += 1
            self.ahead_ms_max = max(self.ahead_ms_max, shown - now * 1000)
            self.behind_ms_max = max(self.behind_ms_max, now * 1000 - shown)
        return EPOCH_MS + int(shown)

    def observed_ms(self) -> int:
        """As `now_ms`, for an observer: no process has read the clock."""
        return EPOCH_MS + int(self._shown())

    def _shown(self) -> float:
        now = self._agenda.now
        shown = now * 1000 + self.skew_ms + (now - self._drift_since) * 1000 * self._drift
        shown += self.swing_ms * sin(now * 2 * pi / 20)
        if self.strobe_ms and int(now * 10) % 2:
            shown += self.strobe_ms
        return shown


class Machine:
    """A machine: a name on the network, a disk and a clock."""

    def __init__(self, name: str, agenda: Agenda, disk: MemoryFiles) -> None:
        self.name = name
        """Its address."""
        self.disk = disk
        """The disk, which survives its processes."""
        self.clock = WallClock(agenda)
        """The clock that its processes read."""
        self.slowness = 1.0
        """Factor on the time that its disk takes; 1: usual speed."""
        self.descriptors_max = 65_536
        """Files and sockets that a process may have open."""


class Process:
    """One run of a program on a machine."""

    def __init__(self, machine: Machine, agenda: Agenda, *, seed: int) -> None:
        self.machine = machine
        """The machine on which it runs."""
        self.agenda = agenda
        """The time of the world."""
        self.random = Random(seed)
        """Random generator for all its choices."""
        self.is_dead = False
        """True once it was killed or has ended."""
        self.names: frozenset[CertificateName] = frozenset()
        """The names in the certificate that it shows in a network under TLS; none: it has none."""
        self.thaws = 0
        """How often the process went on so far after it stood still."""
        self.on_crash: Callable[[], None] = self.die
        """Called when the process reaches a failpoint."""
        self.on_bug: Callable[[Exception], object] | None = None
        """Called when a call from outside its tasks raised, which ends a real process; None: the
        error ends the world."""
        self.context: Context = copy_context()
        """The context of its callbacks, so that tasks which they start belong to the process."""
        self.context.run(_PROCESS.set, self)
        self.set_aside: list[Any] = []
        """Tasks that became ready while it stood still."""
        self._failpoints: set[tuple[str, bool]] = set()
        self._postponed: list[Callable[[], object]] = []
        self._stops = 0

    @property
    def is_frozen(self) -> bool:
        """True while it stands still."""
        return self._stops > 0

    @staticmethod
    def current() -> "Process | None":
        """The process that this task belongs to; None: it belongs to the world."""
        return _PROCESS.get()

    def freeze(self) -> None:
        """Stand still until `thaw` was called as often as `freeze`."""
        self._stops += 1
        self.agenda.effects["processes that stood still"] += 1

    def thaw(self) -> None:
        """Undo one `freeze`; no effect on a process that runs."""
        if self._stops:
            self._stops -= 1
            if not self._stops:
                self._go_on()

    def wake(self) -> None:
        """Go on, however many calls of `freeze` there were."""
        self._stops = min(self._stops, 1)
        self.thaw()

    def _go_on(self) -> None:
        self.thaws += 1
        postponed, self._postponed = self._postponed, []
        ready, self.set_aside = self.set_aside, []
        for task in ready:
            _queue().append(task)
        for call in postponed:
            call()

    def call(self, call: Callable[[], object]) -> None:
        """Call into the process from outside its tasks, now or when it goes on; not if dead."""
        if self.is_dead:
            return
        if self._stops:
            # Through `call` again: a call before this one may end the process, or stop it again.
            self._postponed.append(lambda: self.call(call))
        else:
            # A failpoint inside the call has ended the process.
            with suppress(PowerLoss):
                self._call(call)

    def _call(self, call: Callable[[], object]) -> None:
        try:
            self.context.run(call)
        except Exception as error:
            # No nursery of the node sees an error that is raised outside the node's tasks.
            if self.on_bug is None:
                raise
            self.on_bug(error)

    def crash_at_failpoint(self, name: str, *, after: bool) -> None:
        """End the process before or after it next passes this failpoint; for failpoints of the
        disk see `MemoryFiles.crash_at_failpoint`."""
        self._failpoints.add((name, after))

    def passes(self, name: str, *, after: bool) -> None:
        """The process is at a failpoint. Raises `PowerLoss` if it ends there."""
        if self._failpoints and (name, after) in self._failpoints:
            self._failpoints.clear()
            self.agenda.effects["failpoints reached"] += 1
            self.on_crash()
            raise PowerLoss(f"{'after' if after else 'before'} {name}")

    def die(self) -> None:
        """The process is gone: from now on nothing that it does has an effect."""
        self.is_dead = True
        self._stops = 0
        self._failpoints.clear()
        self._postponed.clear()
        # Tasks that were set aside must run to be unwound.
        self._go_on()

    async def run(self, main: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run a function as this process; to be called in a task of its own."""
        _PROCESS.set(self)
        await main(*args)


class _Ready(deque[Any]):
    """trio's queue of tasks that can run, without the tasks of processes that stand still."""

    def append(self, task: Any) -> None:
        """A task can run."""
        process = task.context.get(_PROCESS)
        if process is not None and process._stops:
            process.set_aside.append(task)
        else:
            super().append(task)


def _queue() -> "deque[Any]":
    from trio._core._run import GLOBAL_RUN_CONTEXT

    queue: deque[Any] = GLOBAL_RUN_CONTEXT.runner.runq
    return queue


def allow_freezing() -> None:
    """From now on, in this run, processes can stand still. Call it from a task."""
    from trio._core._run import GLOBAL_RUN_CONTEXT

    trio.lowlevel.current_task()
    if not isinstance(_queue(), _Ready):
        GLOBAL_RUN_CONTEXT.runner.runq = _Ready(_queue())
