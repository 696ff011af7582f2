"""A leader in miniature for delayed messages: it keeps the log, releases what is due, carries."""

from collections.abc import Sequence

from raftmq.batch import Batch, encode
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine.commands import encode_commands
from raftmq.machine.delay_queue import Key
from raftmq.machine.delays import Cancel
from raftmq.machine.machine import Command, Limits, PartitionMachine
from raftmq.machine.releases import copy, indexes_of, release
from raftmq.results import Appended, Changed, Delayed, Result


class DelayLog:
    """Feeds a machine, and a twin that is restored from snapshots at times."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits
        self.machine = PartitionMachine(limits)
        self.twin = PartitionMachine(limits)
        self.records: dict[int, Record] = {}
        self.placed: dict[int, list[bytes]] = {}
        """Queue → bodies in the order of their offsets."""
        self.placed_at: dict[bytes, int] = {}
        """Body → the time of the record that placed it."""
        self.now = 1_000
        self._crc = 0
        self._sequence: dict[int, int] = {}

    def add(self, kind: Kind, payload: bytes) -> list[Result]:
        index = self.machine.applied + 1
        record = encode_record(
            payload, index=index, term=1, kind=kind, timestamp=self.now, chain=self._crc, version=1
        )
        self._crc = record.crc
        self.records[index] = record
        results = self.machine.apply(record)
        assert self.twin.apply(record) == results
        assert self.twin.digest == self.machine.digest
        result = results[0] if results else None
        if isinstance(result, Appended) and not result.duplicate:
            batch = Batch.decode(payload)
            queue = self.placed.setdefault(result.queue, [])
            assert len(queue) == result.base_offset
            queue += batch.bodies
            for body in batch.bodies:
                assert body not in self.placed_at, f"{body!r} was placed twice"
                self.placed_at[body] = self.now
        return results

    def restore_twin(self) -> None:
        self.twin = PartitionMachine.restore(self.machine.snapshot(), self.limits)
        assert self.twin.snapshot() == self.machine.snapshot()

    def payload(self, bodies: Sequence[bytes], dues: Sequence[int], *, queue: int = 7) -> bytes:
        first = self._sequence.get(queue, 0)
        sealed = encode(bodies, deliver_at_ms=dues)
        return sealed.to_bytes(queue=queue, producer=1, first_sequence=first)

    def send(self, bodies: Sequence[bytes], dues: Sequence[int], *, queue: int = 7) -> Result:
        """One batch of a producer that knows its sequence."""
        (result,) = self.add(Kind.BATCH, self.payload(bodies, dues, queue=queue))
        if isinstance(result, Appended | Delayed):
            self._sequence[queue] = self._sequence.get(queue, 0) + len(bodies)
        return result

    def run(self, *commands: Command) -> list[Result]:
        return self.add(Kind.COMMANDS, encode_commands(commands))

    def tick(self, until: int) -> None:
        """Time passes."""
        self.now = max(self.now, until)
        self.run()

    def cancel(self, queue: int, due: int, number: int) -> int:
        (result,) = self.run(Cancel([queue], [due], [number]))
        assert isinstance(result, Changed)
        outcome: int
        (outcome,) = result.value
        return outcome

    def release_payload(self, queue: int = 7, *, limit: int = 1000) -> bytes:
        """The release that a leader would propose now."""
        rows = self.machine.delays.due(queue, limit)
        return release(queue, rows, {at: self.records[at] for at in indexes_of(rows)})

    def release(self, queue: int = 7, *, limit: int = 1000) -> Result:
        (result,) = self.add(Kind.BATCH, self.release_payload(queue, limit=limit))
        return result

    def release_all(self) -> None:
        """As a leader does until nothing is due."""
        while queues := self.machine.delays.due_queues(100):
            for queue in queues:
                assert isinstance(self.release(queue), Appended)

    def carry(self, index: int, *, queue: int = 7, limit: int = 1000) -> Result | None:
        """Write messages that stand before `index` again."""
        rows = self.machine.delays.standing_before(index, queue=queue, after=Key(0, 0), limit=limit)
        if not rows.dues:
            return None
        command = copy(queue, rows, {at: self.records[at] for at in indexes_of(rows)})
        (result,) = self.run(command)
        return result

    def forget_trimmed(self) -> None:
        """Drop the records before the machine's log start, as retention does."""
        for index in [at for at in self.records if at < self.machine.log_start]:
            del self.records[index]
