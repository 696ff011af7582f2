"""The machine of a data group: `apply` turns each committed record into queue positions and state.

A group carries many queues in one log. A batch gets its offsets when it is applied: the next free
ones of its queue. So the log decides the order, and every replica finds the same offsets.

| record kind | effect |
|---|---|
| BATCH | the batch is placed at the end of its queue, or waits for its time (`delays`), or is |
| | found to be a repeat, or refused |
| COMMANDS | each command in turn: `CommitOffsets`, `ClaimSessions`, `Trim`, `DropQueues`, … |
| NOOP, MEMBERSHIP | nothing (consensus reads memberships itself) |
| any | before it time passes, after it waiting consumers are served (`pop_groups`) |

Invariants:
- `apply` is total: any payload gives a result, never an exception, save a record of a version that
  this software does not know (`UnsupportedVersion`: the node stops).
- Nothing here depends on the time of day, on the order of a set, or on anything but the records.
- `digest` after index i is equal on all replicas.

Sources: Raft §2 (replicated state machines); RocketMQ's commit log with light consume queues.
"""

import struct

import cbor2
import google_crc32c
import msgspec
import numpy as np

from raftmq.batch import BatchHead, peek
from raftmq.errors import CorruptRecord, Reason
from raftmq.log.record import Kind, Record
from raftmq.pop import calls
from raftmq.pop.spans import to_bytes
from raftmq.results import Appended, Changed, Delayed, Refused, Result, UnsupportedVersion

from .catalog.levels import LEVEL, VERSIONS
from .commands import decode_commands
from .delays import POSITION_BITS, Cancel, Carry, Delays, Run
from .offsets import CommitOffsets, ForgetOffsets, Offsets
from .pop_groups import PopGroups
from .producers import RESERVED, ClaimSessions, Producers
from .queue_ends import QueueEnds
from .subscriptions import Resubscribe, Subscriptions
from .transactions import Begin, End, Transactions, is_half

_STATE_VERSION = 17
_STATE_VERSIONS = (*range(1, 17), _STATE_VERSION)
"""Versions that can be read: the first one had no subscriptions, the second no leases, the third no
owners of queues, the fourth no delayed messages, the fifth no transactions, the sixth no inputs of
these, the seventh no claimed sessions; the eighth had credit whose time was over, the ninth no
deletions of consumer groups, the tenth no settlements by handle, the eleventh no count of the parts
of deletions, the twelfth no requests of administration, the thirteenth none of cancellations, the
fourteenth no numbers of commits, the fifteenth no settlements that say which messages they settled,
the sixteenth no runs of a key."""
_DELAYED = 1 << 62
"""In a producer's session: the batch was delayed; the other bits are its number, not an offset."""
_DIGEST = struct.Struct("<QIQ")
_DELIVERY_DIGEST = struct.Struct("<QQQQQQq")
_encode = msgspec.msgpack.Encoder().encode


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Retention: records before this index of the log are no longer kept."""

    index: int
    """The first Raft index to keep; it never goes back."""


class DropQueues(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The topic of these queues was deleted: forget the state of the queues."""

    queues: list[int]
    """Numbers of queues."""


Command = (
    CommitOffsets
    | ForgetOffsets
    | ClaimSessions
    | Trim
    | DropQueues
    | Resubscribe
    | Cancel
    | Carry
    | Begin
    | End
    | calls.Call
)


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a machine's state; the same on every node of a cluster."""

    sessions_max: int = 65_536
    """Producer sessions kept; one is a producer on a queue."""
    session_idle_ms_max: int = 7 * 24 * 3600 * 1000
    """A session unused for longer is forgotten: a week outlives any sensible retry."""
    offsets_max: int = 1_000_000
    """Committed offsets kept, counted over all consumer groups and queues."""
    delayed_max: int = 5_000_000
    """Delayed messages that wait; each takes 24 bytes of memory and of every snapshot."""


class PartitionMachine:
    """The state of one data group after a prefix of its log."""

    record_version = VERSIONS[LEVEL].data
    """The newest version of records that this software applies: the second one has runs of a key,
    the third redriven messages that do not wait for parked ones."""
    state_version = _STATE_VERSION
    """The version of snapshots: machines of one version and one log give equal bytes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.applied = 0
        """Index of the last record applied; 0: none."""
        self.digest = 0
        """CRC-32C over all applied records, all results and all deliveries."""
        self.log_start = 1
        """The first Raft index that retention keeps."""
        self.ends = QueueEnds()
        """Queue → the offset that its next message gets."""
        self.offsets = Offsets(self._limits.offsets_max)
        """How far consumer groups have read."""
        self.subscriptions = Subscriptions()
        """Which filter of a consumer group holds for which batch."""
        self.pop_groups = PopGroups(self.subscriptions)
        """Consumer groups that pop."""
        self.delays = Delays(self._limits.delayed_max)
        """Messages that wait for their time, or for their release."""
        self._producers = Producers(self._limits.sessions_max)
        self.transactions = Transactions(self.delays, self.pop_groups, self._producers)
        """Open transactions, and the outcomes of others."""

    @property
    def committed(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Consumer group → queue → (next offset to read, when it was committed in ms)."""
        return self.offsets.committed

    @property
    def next_timer(self) -> int | None:
        """When something here is due without a new message or command, delayed messages apart;
        None: never."""
        timers = (self.pop_groups.next_timer, self.transactions.next_timer)
        return min((timer for timer in timers if timer is not None), default=None)

    def apply(self, record: Record) -> list[Result]:
        """Apply the record at `applied + 1`.

        Returns:
            One result for a batch, one for each command of a COMMANDS record, else none.
        """
        assert record.index == self.applied + 1, f"{record.index} after {self.applied}"
        if record.version > self.record_version:
            raise UnsupportedVersion(
                f"record {record.index} has version {record.version}, this software knows up to "
                f"{self.record_version}: upgrade this node"
            )
        self.pop_groups.begin(record.timestamp, record.version)
        self.offsets.pass_time(record.timestamp)
        self.delays.pass_time(record.timestamp)
        self.transactions.pass_time(record.timestamp)
        results: list[Result] = []
        placed = 0
        if record.kind == Kind.BATCH:
            result = self._append(record)
            results.append(result)
            match result:
                case Appended(base_offset=placed) | Delayed(number=placed):
                    pass
        elif record.kind == Kind.COMMANDS:
            results.extend(self._run(bytes(record.payload), record.timestamp))
        # Not bytes: each addition would copy all before it, and thousands of leases may begin.
        step = bytearray(_DIGEST.pack(record.index, record.crc, placed))
        if results:
            # Words of a refusal may differ between versions of the software, its reason may not.
            step += _encode([x.reason if isinstance(x, Refused) else x for x in results])
        for number, handed in self.pop_groups.finish(self.ends, record.timestamp, record.index):
            consumer, token, queue, (base, bits, attempt), deadline = handed
            step += _DELIVERY_DIGEST.pack(number, consumer, token, queue, base, attempt, deadline)
            step += to_bytes(bits)
        self.applied = record.index
        self.digest = google_crc32c.extend(self.digest, bytes(step))
        return results

    def _append(self, record: Record) -> Appended | Delayed | Refused:
        try:
            head = peek(record.payload)
        except CorruptRecord as error:
            return Refused(Reason.CORRUPT_BATCH, str(error))
        # Brokers have no sessions: the first row tells whether a release is a repeat.
        if head.producer >= RESERVED:
            return self.delays.release(head) or self._place(head, record)
        runs = self.delays.admit(record.payload, head)
        if isinstance(runs, Refused):
            return runs
        verdict = self._admit(head, record, runs)
        if isinstance(verdict, Refused):
            return verdict
        queue, count, now = head.queue, head.count, record.timestamp
        if verdict is not None:
            if verdict & _DELAYED:
                return Delayed(queue, verdict ^ _DELAYED, count, now, duplicate=True)
            return Appended(queue, verdict, count, now, duplicate=True)
        self._producers.forget_before(now - self._limits.session_idle_ms_max)
        if runs is not None:
            delayed = self.delays.put(queue, record.index, runs)
            if is_half(runs[0].due):
                self.transactions.add(head.producer, delayed)
            return delayed
        return self._place(head, record)

    def _admit(
        self, head: BatchHead, record: Record, runs: list[Run] | None
    ) -> int | Refused | None:
        """See `Producers.admit`."""
        producer, queue, epoch, first = head.producer, head.queue, head.epoch, head.first_sequence
        end = self.ends.get(queue, 0)
        if runs is not None:
            end = _DELAYED | record.index << POSITION_BITS
            is_new = self._producers.is_new(
                producer=producer, queue=queue, epoch=epoch, first=first
            )
            # Only a new batch is checked: a repeat must get the answer of the first time, even if
            # the machine or the transaction is full by now.
            if is_new and not self.delays.has_room(head.count):
                message = f"{self._limits.delayed_max} delayed messages are kept at most"
                return Refused(Reason.TOO_MANY_DELAYED, message)
            if is_half(runs[0].due) and (is_new or producer not in self.transactions.open):
                refusal = self.transactions.refusal(producer, head.count)
                if refusal is not None:
                    return refusal
        return self._producers.admit(
            producer=producer,
            queue=queue,
            epoch=epoch,
            first=first,
            count=head.count,
            end=end,
            now=record.timestamp,
        )

    def _place(self, head: BatchHead, record: Record) -> Appended:
        """Put a batch at the end of its queue."""
        queue, count, hashes_at = head.queue, head.count, head.key_hashes_at
        end = self.ends.place(queue, count)
        if not self.pop_groups.is_idle:
            keys = bytes(record.payload[hashes_at : hashes_at + 4 * count]) if hashes_at else b""
            self.pop_groups.came(queue, end, count, keys)
        return Appended(queue, end, count, record.timestamp, False, hashes_at)

    def _run(self, payload: bytes, now: int) -> list[Result]:
        commands = decode_commands(payload, list[Command])
        if isinstance(commands, Refused):
            return [commands]
        return [self._run_one(command, now) for command in commands]

    def _run_one(self, command: Command, now: int) -> Result:
        match command:
            case CommitOffsets():
                return self.offsets.commit(command, self.ends, now)
            case ForgetOffsets():
                return self.offsets.forget(command, now)
            case ClaimSessions():
                return self._claim(command, now)
            case Trim(index=index):
                # Retention must not remove the only copy of a message that waits.
                floor = self.delays.floor or index
                self.log_start = max(self.log_start, min(index, floor, self.applied + 1))
                self.subscriptions.trim(self.log_start)
                return Changed(self.log_start)
            case DropQueues(queues=queues):
                self._drop(set(queues))
                return Changed()
            case Resubscribe():
                result = self.subscriptions.apply(command, self.applied + 1)
                for change in command.changes:
                    self.pop_groups.resubscribed(change.topic, change.consumer_group)
                return result
            case Cancel():
                return self.delays.cancel(command)
            case Carry():
                return self.delays.carry(command, self.applied + 1)
            case Begin():
                return self.transactions.begin(command, now)
            case End():
                return self.transactions.end(command, now, self.applied + 1)
            case _:
                return self.pop_groups.run(command, self.ends, now)

    def _claim(self, command: ClaimSessions, now: int) -> Result:
        """[epoch, messages stored, offset of the first, highest part] for each queue.

        The offset is -1 if none is stored, or the first is delayed.
        """
        self._producers.forget_before(now - self._limits.session_idle_ms_max)
        claimed = self._producers.claim(command, index=self.applied + 1, now=now)
        if isinstance(claimed, Refused):
            return claimed
        return Changed(
            [
                [c.epoch, c.next_sequence, c.origin if c.origin < _DELAYED else -1, c.part]
                for c in claimed
            ]
        )

    def _drop(self, queues: set[int]) -> None:
        self._producers.drop_queues(queues)
        self.pop_groups.drop_queues(queues)
        self.offsets.drop_queues(queues)
        self.delays.drop_queues(queues)
        for queue in queues:
            self.ends.drop(queue)

    def snapshot(self) -> bytes:
        """The whole state after `applied`, as bytes that every replica writes alike."""
        state = cbor2.dumps(
            [
                _STATE_VERSION,
                self.applied,
                self.digest,
                self.log_start,
                np.fromiter(self.ends.keys(), dtype="<u8", count=len(self.ends)).tobytes(),
                np.fromiter(self.ends.values(), dtype="<u8", count=len(self.ends)).tobytes(),
                self._producers.dump(),
                self.offsets.dump(),
                self.subscriptions.dump(),
                self.pop_groups.dump(self.delays.now),
                self.offsets.dump_owned(),
                self.delays.dump(),
                self.transactions.dump(),
            ]
        )
        return b"".join([state, *self.delays.columns()])

    @classmethod
    def restore(cls, state: bytes, limits: Limits | None = None) -> "PartitionMachine":
        """The machine whose `snapshot` gave `state`."""
        # The rows of delayed messages follow the one CBOR item.
        version, applied, digest, log_start, *values = cbor2.loads(state)
        if version not in _STATE_VERSIONS:
            raise UnsupportedVersion(f"snapshot of state version {version}: upgrade this node")
        queues, ends, sessions, groups, *later = values
        machine = cls(limits)
        machine.applied, machine.digest, machine.log_start = applied, digest, log_start
        machine.ends = QueueEnds(
            zip(
                np.frombuffer(queues, dtype="<u8").tolist(),
                np.frombuffer(ends, dtype="<u8").tolist(),
                strict=True,
            )
        )
        machine._producers.load(sessions)
        # Snapshots of older state versions end earlier.
        machine.offsets.load(groups, later[2] if len(later) > 2 else None)
        if later:
            machine.subscriptions.load(later[0])
        if len(later) > 1:
            machine.pop_groups.load(later[1])
        if len(later) > 3:
            machine.delays.load(later[3], state)
        if len(later) > 4:
            machine.transactions.load(later[4])
        return machine
