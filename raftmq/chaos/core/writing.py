"""The disk thread of one process: passes of writes, as the broker's `DiskLoop` makes them; jobs.

A pass writes at its begin and syncs at its end, some simulated time later: a crash between the two
finds written bytes that nobody may rely on. What comes up during a pass makes the next one.

    write, write -> [ append ........ datasync ] -> persisted     (the pass)
    submit       ->                    [ ...... job ] -> done     (a job, when no pass waits)

With `Settings.jobs_first` jobs that came up during a pass run before the next one. So it is in the
broker, whose disk thread takes jobs in turn, and gets the next pass when the last one is over.

Invariants:
- Storage messages become durable in the order they were written.
- A pass that meets a full disk waits a second and goes on where it stopped, as the broker's does.

Sources: `raftmq.broker.replica.disk`, whose order of calls this repeats on one group.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.core.faults.effects import SLOW_JOBS
from raftmq.consensus import Message
from raftmq.log.faults import DiskFull
from raftmq.log.record import Kind
from raftmq.log.segment import HardState

if TYPE_CHECKING:
    from raftmq.chaos.core.replica import Replica

FULL_RETRY_US = 1_000_000
"""A write that met a full disk is tried again so much later."""

PASS_US, PASS_SPREAD_US = 200, 600
"""A pass takes between the first, and both together, on a disk at its usual speed."""

STALL_TIMES = 10
"""A call to a slow disk that stalls takes this many times as long as its other calls."""

Job = Callable[[], object]
Done = Callable[[object], None]


class Writing:
    """The work of one process's disk thread. It is state."""

    __slots__ = (
        "_changes",
        "_is_awaited",
        "_is_busy",
        "_jobs",
        "_messages",
        "_postponed",
        "_replica",
        "_stalls",
        "_written",
        "passes",
    )  # fmt: skip

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._messages: list[Message] = []
        self._jobs: deque[tuple[Job, Done]] = deque()
        self._is_busy = False
        self._is_awaited = False
        self._postponed = False
        self._written = 0
        self._changes = 0
        """Membership records in the pass."""
        node, seed = replica.node, replica.cluster.seed
        self._stalls = Random(f"stalls {node.id} {node.lives} {seed}")
        self.passes = 0
        """Passes done."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for the disk."""
        return not self._is_busy and not self._messages and not self._jobs

    def write(self, message: Message) -> None:
        """Have a storage message written; `flush` begins the pass."""
        self._messages.append(message)
        # A commit index alone goes along with the next write.
        if message.responses:
            self._is_awaited = True

    def submit(self, job: Job, done: Done) -> None:
        """Run a job on the disk thread, then `done` with what it returned."""
        self._jobs.append((job, done))
        self.flush()

    def flush(self) -> None:
        """Begin what there is to do, unless something runs."""
        if self._is_busy:
            return
        is_due = self._is_awaited and not self._postponed
        if is_due and not (self._jobs and self._replica.cluster.settings.jobs_first):
            self._is_busy, self._is_awaited = True, False
            messages, self._messages = self._messages, []
            self._begin(messages)
        elif self._jobs:
            self._is_busy = True
            self._later(self._run, *self._jobs.popleft())

    def _later(self, call: Callable[..., None], *args: object) -> None:
        replica = self._replica
        cluster, node = replica.cluster, replica.node
        spent = PASS_US + int(cluster.random.random() * PASS_SPREAD_US)
        if node.disk_factor > 1.0:
            cluster.loop.effects[SLOW_JOBS] += 1
            share = cluster.settings.stall_share
            if share and self._stalls.random() < share:
                spent *= STALL_TIMES
        cluster.loop.after(int(spent * node.disk_factor), replica.turn, call, *args)

    def _begin(self, messages: list[Message]) -> None:
        try:
            self._write(messages)
        except DiskFull:
            # Nothing of the message that met it was written.
            self._postponed, self._is_busy, self._is_awaited = True, False, True
            self._messages = messages + self._messages
            self._replica.met_full_disk()
            self._replica.cluster.loop.after(FULL_RETRY_US, self._replica.turn, self._retry)
            return
        self._later(self._finish, messages)

    def _retry(self) -> None:
        self._postponed = False
        self.flush()

    def _write(self, messages: list[Message]) -> None:
        replica = self._replica
        store, durable = replica.store, replica.node.durable
        while self._written < len(messages):
            run = messages[self._written :]
            at = next((n for n, m in enumerate(run) if m.snapshot is not None), len(run))
            if at:
                records = [record for message in run[:at] for record in message.entries]
                state = _hard_state(run[:at], store.hard_state)
                # Noted first: a crash inside the write may leave any part of it.
                for message in run[:at]:
                    durable.wrote(message.entries, state)
                store.append(records, state)
                self._written += at
                self._changes += sum(record.kind == Kind.MEMBERSHIP for record in records)
                self._reach("written")
                if records and state.commit >= records[0].index:
                    replica.point("commit written")
            if at < len(run):
                store.sync()
                durable.synced()
                snapshot = run[at].snapshot
                assert snapshot is not None
                state = _hard_state(run[at : at + 1], store.hard_state)
                store.install_snapshot(snapshot.meta.index, state)
                durable.restart(snapshot.meta.index, snapshot.meta.term, ())
                durable.hard_state = state
                self._written += 1

    def _reach(self, what: str) -> None:
        """A point where a fault may end the process: something about membership was done."""
        if self._changes:
            self._replica.point(f"change {what}")
        if self._changes > 1:
            self._replica.point(f"changes {what}")

    def _finish(self, messages: list[Message]) -> None:
        replica = self._replica
        replica.point("before sync")
        replica.store.sync()
        replica.node.durable.synced()
        replica.point("after sync")
        self._reach("synced")
        self._changes = 0
        self._written = 0
        self.passes += 1
        self._is_busy = False
        replica.persisted(messages)

    def _run(self, job: Job, done: Done) -> None:
        try:
            result: object = job()
        except DiskFull as full:
            result = full
        self._is_busy = False
        done(result)


def _hard_state(messages: list[Message], stored: HardState) -> HardState:
    for message in reversed(messages):
        if message.term:
            return HardState(message.term, message.vote, message.commit)
    return stored
