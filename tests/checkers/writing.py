"""Short ways to write histories down, and random executions that keep every promise."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from raftmq.checkers import History, Recorder
from raftmq.checkers.history import Value


class Clock:
    """Nanoseconds; one millisecond a reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


class Script:
    """A recorder whose operations are over as soon as they begin."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder(self.clock)

    def sent(self, process: int, value: Value, offset: int | None = None, key: str = "q") -> int:
        operation = self.recorder.invoke(process, "send", key, value)
        self.recorder.ok(operation, offset=offset)
        return operation

    def sent_many(self, process: int, *messages: tuple[Value, int], key: str = "q") -> None:
        operation = self.recorder.invoke_many(process, "send", [(key, one[0]) for one in messages])
        self.recorder.ok_many(operation, [(key, value, offset) for value, offset in messages])

    def send_failed(self, process: int, value: Value, key: str = "q") -> None:
        self.recorder.fail(self.recorder.invoke(process, "send", key, value))

    def send_unknown(self, process: int, value: Value, key: str = "q") -> None:
        self.recorder.unknown(self.recorder.invoke(process, "send", key, value))

    def polled(
        self,
        process: int,
        *messages: tuple[Value, int | None],
        key: str = "q",
        group: str | None = None,
    ) -> None:
        operation = self.recorder.invoke(process, "poll", key, group)
        self.recorder.ok_many(operation, [(key, value, offset) for value, offset in messages])

    def acked(self, process: int, value: Value, key: str = "q") -> None:
        self.recorder.ok(self.recorder.invoke(process, "ack", key, value))

    def assigned(self, process: int) -> None:
        self.recorder.ok(self.recorder.invoke(process, "assign"))

    def wrote(self, process: int, value: Value, key: str = "x") -> None:
        self.recorder.ok(self.recorder.invoke(process, "write", key, value))

    def read(self, process: int, value: Value, key: str = "x") -> None:
        self.recorder.ok(self.recorder.invoke(process, "read", key), value=value)

    def history(self) -> History:
        return self.recorder.history()


@dataclass
class Doing:
    """An operation under way."""

    operation: int
    process: int
    key: str
    values: list[int] = field(default_factory=list)
    has_happened: bool = False
    got: list[tuple[int, int]] = field(default_factory=list)


def random_log_run(
    rng: random.Random, *, steps: int = 120, producers: int = 3, readers: int = 2, keys: int = 2
) -> History:
    """Producers and readers of whole queues on a perfect broker, whose answers sometimes vanish.

    Each operation happens at once, at some moment between its call and its answer; in the end all
    queues are drained.
    """
    recorder = Recorder(Clock())
    logs: dict[str, list[int]] = {f"q{number}": [] for number in range(keys)}
    positions: dict[tuple[int, str], int] = {}
    doing: dict[int, Doing] = {}
    processes = list(range(producers + readers))
    names = {process: process for process in processes}
    fresh = len(processes)

    def begin(process: int, key: str) -> None:
        if process < producers:
            values = [recorder.unique_value() for _ in range(rng.choice([1, 1, 2, 3]))]
            pairs = [(key, value) for value in values]
            operation = recorder.invoke_many(names[process], "send", pairs)
        else:
            values, operation = [], recorder.invoke(names[process], "poll", key)
        doing[process] = Doing(operation, process, key, values)

    def happen(work: Doing) -> None:
        log = logs[work.key]
        if work.process < producers:
            work.got = [(value, len(log) + place) for place, value in enumerate(work.values)]
            log.extend(work.values)
        else:
            place = work.process, work.key
            start = positions.get(place, 0)
            stop = min(len(log), start + rng.randrange(1, 4))
            work.got = [(log[offset], offset) for offset in range(start, stop)]
            positions[place] = stop
        work.has_happened = True

    def finish(work: Doing, luck: float) -> None:
        nonlocal fresh
        del doing[work.process]
        is_send = work.process < producers
        if is_send and not work.has_happened and luck < 0.5:
            recorder.fail(work.operation)
        elif is_send and (luck < 0.15 or not work.has_happened):
            # Its end is unknown: the process goes on under another name, as in Jepsen.
            recorder.unknown(work.operation)
            names[work.process] = fresh = fresh + 1
        else:
            if not work.has_happened:
                happen(work)
            recorder.ok_many(work.operation, [(work.key, *one) for one in work.got])

    for _ in range(steps):
        process = rng.choice(processes)
        if process not in doing:
            begin(process, rng.choice(list(logs)))
        elif not doing[process].has_happened and rng.random() < 0.7:
            happen(doing[process])
        else:
            finish(doing[process], rng.random())
    for work in list(doing.values()):
        happen(work) if not work.has_happened else None
        finish(work, 1.0)
    for process in range(producers, producers + readers):
        for key, log in logs.items():
            while positions.get((process, key), 0) < len(log):
                begin(process, key)
                finish(doing[process], 1.0)
    return recorder.history()


def random_register_run(
    rng: random.Random,
    *,
    steps: int = 60,
    processes: int = 4,
    keys: Sequence[str] = ("x", "y"),
    is_unique: bool = True,
) -> History:
    """Reads and writes (and, if values are not unique, cas) of perfect registers."""
    recorder = Recorder(Clock())
    state: dict[str, int | None] = dict.fromkeys(keys)
    functions = ["read", "write"] if is_unique else ["read", "write", "cas"]
    doing: dict[int, tuple[int, str, str, Value]] = {}
    answers: dict[int, Value] = {}
    names = {process: process for process in range(processes)}
    fresh = processes

    def value() -> int:
        return recorder.unique_value() if is_unique else rng.randrange(3)

    def happen(process: int) -> None:
        _, function, key, argument = doing[process]
        answers[process] = argument
        if function == "read":
            answers[process] = state[key]
        elif function == "write":
            assert isinstance(argument, int)
            state[key] = argument
        else:
            assert isinstance(argument, tuple)
            answers[process] = state[key] == argument[0]
            if answers[process]:
                state[key] = argument[1]

    for _ in range(steps):
        process = rng.randrange(processes)
        if process not in doing:
            function, key = rng.choice(functions), rng.choice(list(keys))
            argument = {"read": None, "write": value(), "cas": (value(), value())}[function]
            operation = recorder.invoke(names[process], function, key, argument)
            doing[process] = operation, function, key, argument
        elif process not in answers and rng.random() < 0.7:
            happen(process)
        elif rng.random() < 0.1:
            # The answer is lost: for the client, the operation may or may not have happened.
            recorder.unknown(doing.pop(process)[0])
            answers.pop(process, None)
            names[process] = fresh = fresh + 1
        elif process in answers:
            recorder.ok(doing.pop(process)[0], value=answers.pop(process))
    return recorder.history()
