"""A log that grows record by record; the machine, a twin and the ledger follow it.

`random_log` draws the records.
"""

import random
from collections.abc import Iterable

from raftmq.batch import Batch, key_hash
from raftmq.chaos.ledger.log import PopLog
from raftmq.chaos.ledger.twins import Twin
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import Command, PartitionMachine
from raftmq.pop.leases import Handed
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Appended, Result


class FollowedLog:
    """A log of a data group, and those that follow it."""

    def __init__(
        self, twin: random.Random, modes: Iterable[tuple[Mode, Policy]], queues: Iterable[int]
    ) -> None:
        """`twin`: the draws of the twin, which must not change the log."""
        self.machine, self.ledger = PartitionMachine(), PopLog()
        self.twin = Twin(twin)
        self.now = 1000
        """Time of the log, in milliseconds."""
        self.modes = dict(enumerate(modes, 1))
        """By number of the group."""
        self.held: dict[int, list[Handed]] = {number: [] for number in self.modes}
        """By number of the group: all that was handed out."""
        self.records: list[Record] = []
        """All records, from index 1 on."""
        self.hashes: dict[int, list[int]] = {queue: [] for queue in queues}
        """By queue and message: the hash of its key; 0: it has none."""
        self.indexes: dict[int, list[int]] = {queue: [] for queue in self.hashes}
        """By queue and message: the place of its batch in the log."""
        self._chain = 0
        self._is_different = False

    def commands(self, calls: Iterable[Command]) -> list[Result]:
        """Add a record of commands."""
        return self.add(Kind.COMMANDS, encode_commands(list(calls)))

    def add(self, kind: Kind, payload: bytes) -> list[Result]:
        """Add a record, apply it and let the ledger follow it; returns the results."""
        record = encode_record(
            payload,
            index=self.machine.applied + 1,
            term=1,
            kind=kind,
            timestamp=self.now,
            chain=self._chain,
            version=self.machine.record_version,
        )
        self._chain = record.crc
        self.records.append(record)
        results = self.machine.apply(record)
        handed = self.machine.pop_groups.take_handed()
        traced = self.machine.pop_groups.take_traced()
        self.note_difference(self.twin.follow(record, results, handed, traced, self.machine))
        for number, one in handed:
            self.held[number].append(one)
        for result in results:
            if isinstance(result, Appended) and not result.duplicate:
                keys = Batch.decode(payload).keys
                self.hashes[result.queue] += [0 if key is None else key_hash(key) for key in keys]
                self.indexes[result.queue] += [record.index] * len(keys)
        self.ledger.follow(record, results, handed, self.machine)
        return results

    def records_at(self, indexes: Iterable[int]) -> dict[int, Record]:
        """Records of the log, by index."""
        return {index: self.records[index - 1] for index in indexes}

    def note_difference(self, fact: str) -> None:
        """Note how the twin differs, the first time; empty: it does not."""
        if fact and not self._is_different:
            self._is_different = True
            self.ledger.note("R21", fact)
