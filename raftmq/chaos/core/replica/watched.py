"""The parts of a replica that the simulation watches: consensus, machine and log, as the broker has
them, with the checks at their seams.

| part | what is looked at |
|---|---|
| `WatchedRaft` | what consensus hands out, and each promise that the replica makes itself |
| `WatchedMachine` | each record, before and after it is applied |
| `WatchedLog` | what was written, what is synced |

The group that holds these parts is the one that ships, and knows nothing of the checks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from raftmq.broker.replica.storage import GroupStorage
from raftmq.chaos.core.checks.safety import Safety
from raftmq.chaos.core.checks.views import Durable, View
from raftmq.chaos.core.environment import Environment
from raftmq.chaos.core.faults.effects import LAGGED
from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.machine import Machine
from raftmq.chaos.core.replica.process import Process
from raftmq.consensus import (
    APPLY_THREAD,
    Config,
    ConfState,
    InvalidChange,
    MembershipChange,
    Message,
    Raft,
    Ready,
    StepRefusal,
)
from raftmq.log.record import Kind, Record
from raftmq.log.segment import HardState
from raftmq.log.snapshot import SnapshotMeta
from raftmq.log.store import LogStore
from raftmq.results import Result

Turn = Callable[..., None]
"""Makes a call in a process, with arguments: see `Replica.turn`."""


class WatchedRaft(Raft):
    """Consensus of one replica."""

    __slots__ = ("_due", "_environment", "_late", "_process", "_turn")

    def __init__(
        self,
        process: Process,
        environment: Environment,
        turn: Turn,
        config: Config,
        storage: GroupStorage,
    ) -> None:
        super().__init__(config, storage)
        self._process = process
        self._environment = environment
        self._turn = turn
        self._late: deque[Message] = deque()
        """Committed records that a slow machine applies later, in their order."""
        self._due: list[Message] = []
        """Committed records that are applied now."""

    def step(self, message: Message, *, now: int = 0) -> StepRefusal | None:
        """Take in a message; a message of the replica to itself is checked as a promise too."""
        if message.sender == self._core.id:
            self._environment.safety.promised(self._process, message)
        return super().step(message, now=now)

    def read_index(self, context: bytes) -> None:
        """Ask for a read, which is checked when it is granted."""
        self._environment.safety.read_begun(context)
        super().read_index(context)

    def apply_membership(self, change: MembershipChange) -> ConfState:
        """Apply a change, and count it."""
        counts = self._environment.counts
        try:
            conf = super().apply_membership(change)
        except InvalidChange:
            counts["memberships refused"] += 1
            raise
        counts["memberships applied"] += 1
        return conf

    def has_ready(self) -> bool:
        """Whether there is work, late records that fell due included."""
        return bool(self._due) or super().has_ready()

    def ready(self) -> Ready:
        """All work that is ready now, except records that a slow machine applies later."""
        process, environment = self._process, self._environment
        safety = environment.safety
        # The round before may have applied what it committed.
        safety.look(process)
        if self._due:
            due, self._due = self._due, []
            return Ready(messages=due)
        ready = super().ready()
        if ready.snapshot is not None:
            self.drop_covered()
            process.view = View(ready.snapshot.meta.index)
        if ready.entries:
            safety.entered(process, ready.entries)
        for state in ready.read_states:
            safety.read_granted(process, state)
        lag_ms = process.node.apply_ms or environment.settings.apply_ms_max
        if not (self._late or lag_ms):
            return ready
        for message in ready.messages:
            if message.to == APPLY_THREAD:
                self._apply_later(message, lag_ms)
        rest = [message for message in ready.messages if message.to != APPLY_THREAD]
        return msgspec.structs.replace(ready, messages=rest)

    def drop_covered(self) -> None:
        """Forget the records that wait to be applied: an installed snapshot covers them."""
        self._late.clear()

    def _apply_later(self, message: Message, lag_ms: float) -> None:
        environment, node = self._environment, self._process.node
        if node.apply_ms:
            node.felt(LAGGED)
        self._late.append(message)
        delay = int(environment.random.random() * lag_ms)
        environment.loop.after(delay * 1000, self._turn, self._fall_due)

    def _fall_due(self) -> None:
        # A snapshot may have emptied the queue since this call was planned.
        if self._late:
            self._due.append(self._late.popleft())


class WatchedMachine:
    """The machine of one replica, as `raftmq.broker.replica.group.Machine`."""

    log_start = 0
    record_version = 1
    state_version = 0

    def __init__(self, process: Process, safety: Safety, machine: Machine) -> None:
        self._process = process
        self._safety = safety
        self.machine = machine
        """The machine itself."""
        self.record: Record | None = None
        """The record that was applied last."""
        self.applied = machine.applied
        self.digest = machine.digest

    def apply(self, record: Record) -> list[Result]:
        """Apply the record at `applied + 1`."""
        process, safety = self._process, self._safety
        process.node.reach("before apply")
        safety.applying(process, record)
        if record.kind == Kind.MEMBERSHIP:
            process.membership_applied(record)
            safety.membership_applied(process, record, process.conf_state)
        self.machine.apply(record)
        self.record, self.applied, self.digest = record, record.index, self.machine.digest
        safety.applied(process, record)
        return []

    def snapshot(self) -> bytes:
        """The whole state."""
        return self.machine.snapshot()


class WatchedLog(LogStore):
    """The log of one process. Written and unsynced records are noted as such."""

    node: Host | None = None
    """None while the log is being opened."""
    changes = 0
    """Membership records since the last sync."""

    def append(
        self, records: Sequence[Record], hard_state: tuple[int, int, int] | None = None
    ) -> None:
        """As `LogStore.append`. A fault may end the process right after it."""
        node = self.node
        if node is None:
            super().append(records, hard_state)
            return
        state = self.hard_state if hard_state is None else HardState(*hard_state)
        # Noted first: a crash inside the write may leave any part of it.
        _note(node.durable, records, state)
        super().append(records, hard_state)
        self.changes += sum(record.kind == Kind.MEMBERSHIP for record in records)
        self.reach("written")
        if records and state.commit >= records[0].index:
            node.reach("commit written")

    def install_snapshot(self, index: int, hard_state: tuple[int, int, int]) -> SnapshotMeta:
        """As `LogStore.install_snapshot`; all earlier writes count as synced."""
        durable = Durable() if self.node is None else self.node.durable
        durable.synced()
        meta = super().install_snapshot(index, hard_state)
        durable.restart(index, meta.term, ())
        durable.hard_state = HardState(*hard_state)
        return meta

    def synced(self) -> None:
        """The pass is over: its writes are durable."""
        assert self.node is not None
        self.node.durable.synced()
        self.reach("synced")
        self.changes = 0

    def reach(self, what: str) -> None:
        """A failpoint, if membership changes await or had a sync."""
        if self.changes and self.node is not None:
            self.node.reach(f"change {what}")
            if self.changes > 1:
                self.node.reach(f"changes {what}")


def _note(durable: Durable, records: Sequence[Record], state: HardState) -> None:
    """Note a write, split into runs of records with consecutive indexes."""
    jumps = [
        n for n, (one, next_) in enumerate(pairwise(records), 1) if next_.index != one.index + 1
    ]
    for low, high in pairwise([0, *jumps, len(records)]):
        durable.wrote(records[low:high], state)
