"""Random histories of a broker that sometimes makes mistakes, of every kind."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from raftmq.checkers import History, Recorder, write_parquet
from raftmq.checkers.history import Value
from tests.checkers.writing import Clock

QUEUES = ("q0", "q1", "q2")
PRODUCERS, READERS = range(3), range(3, 6)


@dataclass
class Careless:
    """Producers, readers and a broker that is right most of the time."""

    rng: random.Random
    mistake: float
    """How likely each chance for a mistake is taken."""
    is_text: bool = False
    recorder: Recorder = field(default_factory=lambda: Recorder(Clock()))
    logs: dict[str, list[Value]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    positions: dict[tuple[int, str], int] = field(default_factory=dict)
    doing: dict[int, tuple[str, int, str, list[Value]]] = field(default_factory=dict)
    sent: list[Value] = field(default_factory=list)

    def errs(self) -> bool:
        return self.rng.random() < self.mistake

    def value(self) -> Value:
        number = self.recorder.unique_value()
        return f"message {number}" if self.is_text else number

    def run(self, steps: int) -> History:
        for _ in range(steps):
            process = self.rng.choice([*PRODUCERS, *READERS])
            if process in self.doing:
                self.end(process)
            else:
                self.begin(process)
        for process in list(self.doing):
            self.end(process)
        for process in READERS:
            for queue in QUEUES:
                # The drain: most remaining messages are read.
                while self.positions.get((process, queue), 0) < len(self.logs[queue]):
                    operation = self.recorder.invoke(process, "poll", queue)
                    self.delivered(process, operation, queue)
        return self.recorder.history()

    def begin(self, process: int) -> None:
        queue = self.rng.choice(QUEUES)
        if process in PRODUCERS:
            values = [self.value() for _ in range(self.rng.choice([1, 1, 2, 3]))]
            operation = self.recorder.invoke_many(
                process, "send", [(queue, value) for value in values]
            )
            self.sent += values
            self.doing[process] = "send", operation, queue, values
        elif self.rng.random() < 0.05:
            operation = self.recorder.invoke(process, "assign")
            self.doing[process] = "assign", operation, queue, []
        elif self.sent and self.rng.random() < 0.2:
            value = self.rng.choice(self.sent)
            operation = self.recorder.invoke(process, "ack", queue, value)
            self.doing[process] = "ack", operation, queue, [value]
        else:
            operation = self.recorder.invoke(process, "poll", queue)
            self.doing[process] = "poll", operation, queue, []

    def end(self, process: int) -> None:
        function, operation, queue, values = self.doing.pop(process)
        luck = self.rng.random()
        if function == "send":
            self.end_send(operation, queue, values, luck)
        elif luck < 0.05:
            self.recorder.unknown(operation)
        elif function == "poll":
            self.delivered(process, operation, queue)
        else:
            if function == "assign":
                self.positions[process, queue] = 0
            self.recorder.ok(operation)

    def end_send(self, operation: int, queue: str, values: list[Value], luck: float) -> None:
        log = self.logs[queue]
        if luck < 0.1 and not self.errs():
            self.recorder.fail(operation)
            return
        answers: list[tuple[str | None, Value, int | None]] = []
        for value in values:
            if self.errs():
                # A hole, as a transaction's marker makes one; or the message itself is lost.
                log.append(None)
            if not self.errs():
                log.append(value)
            if self.errs():
                log.append(value)
            offset = len(log) - 1 if not self.errs() else self.rng.randrange(len(log) + 1)
            answers.append((queue, value, offset))
        if luck < 0.12:
            self.recorder.fail(operation)
        elif luck < 0.2:
            self.recorder.unknown(operation)
        elif luck < 0.22:
            # Answered as a whole, without a place for each.
            self.recorder.ok(operation)
        elif luck > 0.22:
            self.recorder.ok_many(operation, answers)

    def delivered(self, process: int, operation: int, queue: str) -> None:
        log, place = self.logs[queue], (process, queue)
        start = self.positions.get(place, 0)
        if self.errs():
            start = max(0, start + self.rng.choice([-2, -1, 1, 2]))
        stop = min(len(log), start + self.rng.randrange(1, 5))
        offsets = [offset for offset in range(start, stop) if log[offset] is not None]
        if self.errs():
            self.rng.shuffle(offsets)
        if self.errs():
            offsets = offsets[1:]
        got: list[tuple[str | None, Value, int | None]] = []
        for offset in offsets:
            value = log[offset]
            if self.errs():
                value = self.rng.choice([self.value(), self.rng.choice(self.sent)])
            told = None if self.errs() else offset
            got.append((None if self.errs() else queue, value, told))
        self.positions[place] = max(stop, start)
        self.recorder.ok_many(operation, got)


def write_parts(history: History, folder: Path, *, parts: int, group_rows: int) -> None:
    """Store a history as a folder of several files of several row groups."""
    folder.mkdir()
    whole = folder.parent / "whole.parquet"
    write_parquet(history, whole)
    table = pq.read_table(whole)
    rows = -(-len(table) // parts)
    for part in range(parts):
        piece = table.slice(part * rows, rows)
        pq.write_table(piece, folder / f"part-{part:03}.parquet", row_group_size=group_rows)
