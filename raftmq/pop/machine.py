"""The machine of a data group: `apply` turns each committed record into queue positions and state.

A group carries many queues in one log. A batch gets its offsets when it is applied: the next free
ones of its queue. So the log decides the order, and every replica finds the same offsets.

| record kind | effect |
|---|---|
| BATCH | the batch is placed at the end of its queue, or found to be a repeat, or refused |
| COMMANDS | each command in turn: `CommitOffsets`, `Trim`, `DropQueues`, `Resubscribe` |
| NOOP, MEMBERSHIP | nothing (consensus reads memberships itself) |

Invariants:
- `apply` is total: any payload gives a result, never an exception, save a record of a version that
  this software does not know (`UnsupportedVersion`: the node stops).
- Nothing here depends on the time of day, on the order of a set, or on anything but the records.
- `digest` after index i is equal on all replicas.

Sources: Raft §2 (replicated state machines); RocketMQ's commit log with light consume queues.
"""

import struct
from typing import Any, assert_never

import cbor2
import google_crc32c
import msgspec
import numpy as np

from raftmq.batch import peek
from raftmq.errors import CorruptRecord, Reason
from raftmq.log.record import Kind, Record

from .commands import decode_commands
from .producers import Producers
from .results import Appended, Changed, Refused, Result, UnsupportedVersion
from .subscriptions import Resubscribe, Subscriptions

VERSION = 1
"""The newest record version that this machine applies."""

_STATE_VERSION = 2
_STATE_VERSIONS = (1, _STATE_VERSION)
"""Those that can be read: the first one had no subscriptions."""
_DIGEST = struct.Struct("<QIQ")


class CommitOffsets(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A consumer group has read up to these offsets."""

    consumer_group: str
    """The consumer group's name."""
    queues: list[int]
    """Numbers of queues of this partition group."""
    offsets: list[int]
    """For each queue the next message to read; it may go back (a reset)."""


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Retention: what stands before this index of the log is no longer kept."""

    index: int
    """The first Raft index to keep; it never goes back."""


class DropQueues(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The topic of these queues is gone: forget their offsets and producers."""

    queues: list[int]
    """Numbers of queues."""


Command = CommitOffsets | Trim | DropQueues | Resubscribe


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a machine's state; the same on every node of a cluster."""

    sessions_max: int = 65_536
    """Producer sessions kept; one is a producer on a queue."""
    session_idle_ms_max: int = 7 * 24 * 3600 * 1000
    """A session unused for so long is forgotten: a week outlives any sensible retry."""
    offsets_max: int = 1_000_000
    """Committed offsets kept, counted over all consumer groups and queues."""


class PartitionMachine:
    """The state of one data group after a prefix of its log."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.applied = 0
        """Index of the last record applied; 0: none."""
        self.digest = 0
        """CRC-32C over all that was applied and what came of it."""
        self.log_start = 1
        """The first Raft index that retention keeps."""
        self.ends: dict[int, int] = {}
        """Queue → the offset that its next message gets."""
        self.committed: dict[str, dict[int, tuple[int, int]]] = {}
        """Consumer group → queue → (next offset to read, when it was committed in ms)."""
        self.subscriptions = Subscriptions()
        """Which filter of a consumer group holds for which batch."""
        self._offset_count = 0
        self._producers = Producers(self._limits.sessions_max)

    def apply(self, record: Record) -> list[Result]:
        """Apply the record at `applied + 1`.

        Returns:
            One result for a batch, one for each command of a COMMANDS record, else none.
        """
        assert record.index == self.applied + 1, f"{record.index} after {self.applied}"
        if record.version > VERSION:
            raise UnsupportedVersion(
                f"record {record.index} has version {record.version}, this software knows up to "
                f"{VERSION}: upgrade this node"
            )
        results: list[Result] = []
        placed = 0
        if record.kind == Kind.BATCH:
            result = self._append(record)
            results.append(result)
            placed = result.base_offset if isinstance(result, Appended) else 0
        elif record.kind == Kind.COMMANDS:
            results.extend(self._run(bytes(record.payload), record.timestamp))
        self.applied = record.index
        step = _DIGEST.pack(record.index, record.crc, placed)
        self.digest = google_crc32c.extend(self.digest, step)
        return results

    def _append(self, record: Record) -> Appended | Refused:
        try:
            head = peek(record.payload)
        except CorruptRecord as error:
            return Refused(Reason.CORRUPT_BATCH, str(error))
        queue, count, now = head.queue, head.count, record.timestamp
        end = self.ends.get(queue, 0)
        verdict = self._producers.admit(
            producer=head.producer,
            queue=queue,
            epoch=head.epoch,
            first=head.first_sequence,
            count=count,
            end=end,
            now=now,
        )
        if verdict is None:
            self.ends[queue] = end + count
            self._producers.forget_before(now - self._limits.session_idle_ms_max)
            return Appended(queue, end, count, now, False, head.key_hashes_at)
        if isinstance(verdict, int):
            return Appended(queue, verdict, count, now, duplicate=True)
        return verdict

    def _run(self, payload: bytes, now: int) -> list[Result]:
        commands = decode_commands(payload, list[Command])
        if isinstance(commands, Refused):
            return [commands]
        return [self._run_one(command, now) for command in commands]

    def _run_one(self, command: Command, now: int) -> Result:
        match command:
            case CommitOffsets():
                return self._commit(command, now)
            case Trim(index=index):
                self.log_start = max(self.log_start, min(index, self.applied + 1))
                self.subscriptions.trim(self.log_start)
                return Changed(self.log_start)
            case DropQueues(queues=queues):
                self._drop(set(queues))
                return Changed()
            case Resubscribe():
                return self.subscriptions.apply(command, self.applied + 1)
            case _:
                assert_never(command)

    def _commit(self, command: CommitOffsets, now: int) -> Result:
        if len(command.queues) != len(command.offsets):
            return Refused(Reason.BAD_ARGUMENT, "as many offsets as queues are needed")
        for queue, offset in zip(command.queues, command.offsets, strict=True):
            if not 0 <= offset <= self.ends.get(queue, 0):
                end = self.ends.get(queue, 0)
                message = f"offset {offset} of queue {queue} is not within 0..{end}"
                return Refused(Reason.OFFSET_OUT_OF_RANGE, message)
        of_group = self.committed.get(command.consumer_group, {})
        added = sum(queue not in of_group for queue in set(command.queues))
        if self._offset_count + added > self._limits.offsets_max:
            message = f"{self._limits.offsets_max} committed offsets are kept at most"
            return Refused(Reason.BAD_ARGUMENT, message)
        for queue, offset in zip(command.queues, command.offsets, strict=True):
            of_group[queue] = (offset, now)
        if of_group:
            self.committed[command.consumer_group] = of_group
        self._offset_count += added
        return Changed()

    def _drop(self, queues: set[int]) -> None:
        self._producers.drop_queues(queues)
        for queue in queues:
            self.ends.pop(queue, None)
        for group in list(self.committed):
            kept = {q: o for q, o in self.committed[group].items() if q not in queues}
            self._offset_count -= len(self.committed[group]) - len(kept)
            if kept:
                self.committed[group] = kept
            else:
                del self.committed[group]

    def snapshot(self) -> bytes:
        """The whole state after `applied`, as bytes that every replica writes alike."""
        return cbor2.dumps(
            [
                _STATE_VERSION,
                self.applied,
                self.digest,
                self.log_start,
                np.fromiter(self.ends.keys(), dtype="<u8", count=len(self.ends)).tobytes(),
                np.fromiter(self.ends.values(), dtype="<u8", count=len(self.ends)).tobytes(),
                self._producers.dump(),
                [
                    [group, list(of_group), [list(pair) for pair in of_group.values()]]
                    for group, of_group in self.committed.items()
                ],
                self.subscriptions.dump(),
            ]
        )

    @classmethod
    def restore(cls, state: bytes, limits: Limits | None = None) -> "PartitionMachine":
        """The machine whose `snapshot` gave `state`."""
        version, applied, digest, log_start, *values = cbor2.loads(state)
        if version not in _STATE_VERSIONS:
            raise UnsupportedVersion(f"snapshot of state version {version}: upgrade this node")
        queues, ends, sessions, groups, *subscriptions = values
        machine = cls(limits)
        machine.applied, machine.digest, machine.log_start = applied, digest, log_start
        machine.ends = dict(
            zip(
                np.frombuffer(queues, dtype="<u8").tolist(),
                np.frombuffer(ends, dtype="<u8").tolist(),
                strict=True,
            )
        )
        machine._producers.load(sessions)
        machine.committed = _load_committed(groups)
        machine._offset_count = sum(map(len, machine.committed.values()))
        if subscriptions:
            machine.subscriptions.load(subscriptions[0])
        return machine


def _load_committed(groups: list[list[Any]]) -> dict[str, dict[int, tuple[int, int]]]:
    return {
        group: {queue: (pair[0], pair[1]) for queue, pair in zip(queues, pairs, strict=True)}
        for group, queues, pairs in groups
    }
