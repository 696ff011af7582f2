"""The disk thread of one process: passes of writes, as in the broker's `DiskLoop`, and jobs.

A pass writes at its start and syncs at its end, some simulated time later: a crash between the two
finds written bytes that no node may rely on. Writes that come during a pass make the next pass.

    write, write -> [ append ........ datasync ] -> persisted     (the pass)
    submit       ->                    [ ...... job ] -> done     (a job, when no pass waits)

With `Settings.jobs_first`, jobs that came during a pass run before the next pass, as in the broker:
its disk thread takes jobs in turn, and gets the next pass when the last pass is over.

Invariants:
- Storage messages become durable in the order they were written.
- A pass that meets a full disk waits a second and goes on where it stopped, as the broker's does.

Sources: `raftmq.broker.replica.disk`, whose order of calls this repeats on one group.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from raftmq.broker.replica.writes import Write
from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.faults.effects import SLOW_JOBS
from raftmq.chaos.core.replica.process import Process
from raftmq.chaos.core.replica.watched import Turn, WatchedLog
from raftmq.consensus import Message
from raftmq.log.faults import DiskFull, Dropped
from raftmq.log.index_file import IndexDamaged

FULL_RETRY_US = 1_000_000
"""Pause before a write that met a full disk is tried again."""

PASS_US, PASS_SPREAD_US = 200, 600
"""Time of a pass or a job on a disk at usual speed: at least the first, at most both together."""

STALL_TIMES = 10
"""A call to a slow disk that stalls takes this many times as long as its other calls."""

Job = Callable[[], object]
Done = Callable[[object], None]


class Writing:
    """The work of one process's disk thread. It is state."""

    __slots__ = (
        "_environment", "_is_busy", "_jobs", "_met_full_disk", "_next", "_node", "_persisted",
        "_postponed", "_process", "_stalls", "_store", "_turn", "passes",
    )  # fmt: skip

    def __init__(
        self,
        process: Process,
        environment: Environment,
        store: WatchedLog,
        *,
        turn: Turn,
        persisted: Callable[[list[Message]], None],
        met_full_disk: Callable[[], None],
    ) -> None:
        """`persisted` gets storage messages that are durable; `met_full_disk` hears that a write
        waits for space."""
        self._process = process
        self._node = process.node
        self._environment = environment
        self._store = store
        self._turn = turn
        self._persisted = persisted
        self._met_full_disk = met_full_disk
        self._next: Write | None = None
        """The writes that wait for the next pass."""
        self._jobs: deque[tuple[Job, Done]] = deque()
        self._is_busy = False
        self._postponed: Write | None = None
        """A pass that met a full disk."""
        self._stalls = Random(f"stalls {self._node.id} {self._node.lives} {environment.seed}")
        self.passes = 0
        """Passes done."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits on the disk thread."""
        return not (self._is_busy or self._next or self._postponed or self._jobs)

    def write(self, message: Message) -> None:
        """Have a storage message written; `flush` begins the pass."""
        if self._next is None:
            self._next = Write(self._process.group)
        self._next.add(message)

    def submit(self, job: Job, done: Done) -> None:
        """Run a job on the disk thread, then `done` with its result or a fault that is survived."""
        self._jobs.append((job, done))
        self.flush()

    def flush(self) -> None:
        """Begin what there is to do, unless something runs."""
        if self._is_busy:
            return
        write = self._next
        # Writes behind a postponed one wait too: they must become durable in their order.
        is_due = write is not None and write.is_due and self._postponed is None
        jobs_first = self._environment.settings.jobs_first
        if write is not None and is_due and not (self._jobs and jobs_first):
            self._is_busy, self._next = True, None
            self._begin(write)
        elif self._jobs:
            self._is_busy = True
            self._later(self._run, *self._jobs.popleft())

    def _later(self, call: Callable[..., None], *args: object) -> None:
        environment, node = self._environment, self._node
        spent = PASS_US + int(environment.random.random() * PASS_SPREAD_US)
        if node.disk_factor > 1.0:
            node.felt(SLOW_JOBS)
            share = environment.settings.stall_share
            if share and self._stalls.random() < share:
                spent *= STALL_TIMES
        environment.loop.after(int(spent * node.disk_factor), self._turn, call, *args)

    def _begin(self, write: Write) -> None:
        try:
            write.perform()
        except DiskFull:
            self._postponed, self._is_busy = write, False
            self._met_full_disk()
            self._environment.loop.after(FULL_RETRY_US, self._turn, self._retry)
            return
        self._later(self._finish, write)

    def _retry(self) -> None:
        write, self._postponed = self._postponed, None
        assert write is not None
        if self._next is not None:
            for message in self._next.messages:
                write.add(message)
        self._next = write
        self.flush()

    def _finish(self, write: Write) -> None:
        self._node.reach("before sync")
        self._store.sync()
        self._store.synced()
        self._node.reach("after sync")
        self.passes += 1
        self._is_busy = False
        self._persisted(write.messages)

    def _run(self, job: Job, done: Done) -> None:
        try:
            result: object = job()
        # Other faults end the process.
        except (DiskFull, Dropped, IndexDamaged) as fault:
            result = fault
        self._is_busy = False
        done(result)
