"""Writes a golden log of a data group's machine: `python -m tests.machine.make_golden FOLDER/v1`.

Run once for each version of the machines' formats; the files are committed, and every later version
must come to the same. The log holds what random clients say to groups of each mode, with delays,
transactions, dead letters, resets and retention; the other files what a machine makes of it.
"""

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raftmq.chaos.ledger.play import ORDERED, PLAIN
from raftmq.chaos.ledger.random_log import RandomLog
from raftmq.log.record import Record
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Appended, Changed, Refused, Result

STEPS = 250
MARK_EVERY = 50


def play(machine: PartitionMachine, records: Sequence[Record]) -> list[list[Any]]:
    """Marks after every few records, the same in versions with other formats: how many messages of
    each group are in which state, and a digest of all answers and hand-outs."""
    told = hashlib.sha256()
    marks: list[list[Any]] = []
    for record in records:
        answers = [_told(result) for result in machine.apply(record)]
        handed = [
            [number, one.consumer, one.token, one.queue, *one.messages, one.deadline]
            for number, one in machine.pop_groups.take_handed()
        ]
        machine.pop_groups.take_traced()
        # Of which messages a settlement has settled, earlier versions told how many.
        told.update(json.dumps([answers, handed], default=_count).encode())
        if record.index % MARK_EVERY == 0 or record is records[-1]:
            attached = sorted(machine.pop_groups.attached.items())
            counts = {number: one.group.audit() for number, one in attached}
            marks.append([record.index, told.hexdigest(), sorted(machine.ends.items()), counts])
    # As it is read back: keys are texts.
    found: list[list[Any]] = json.loads(json.dumps(marks))
    return found


def _count(bits: bytes) -> int:
    return int.from_bytes(bits, "little").bit_count()


def _told(result: Result) -> list[Any]:
    match result:
        case Appended(base_offset=base, count=count, duplicate=duplicate):
            return [base, count, duplicate]
        case Changed(value=value):
            return [value]
        case Refused(reason=reason):
            return [reason.value]
        case _:
            return [type(result).__name__]


def make(base: Path) -> None:
    """Write `base`.log, `base`.snapshot, taken half way, and `base`.json."""
    log = RandomLog(random.Random("golden"), (*PLAIN, *ORDERED))
    ledger = log.play(STEPS)
    assert not ledger.breaches
    records = list(log.records_at(range(1, log.machine.applied + 1)).values())
    machine = PartitionMachine()
    half = len(records) // 2
    base.with_suffix(".json").write_text(json.dumps(play(machine, records), indent=1) + "\n")
    base.with_suffix(".log").write_bytes(b"".join(record.encoded for record in records))
    machine = PartitionMachine()
    for record in records[:half]:
        machine.apply(record)
    base.with_suffix(".snapshot").write_bytes(machine.snapshot())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
