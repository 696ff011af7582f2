"""The calls of consumer groups that pop, as rows of a history: writing and reading them.

| function | key | value of its invoke | value of its answer, a row a message |
|---|---|---|---|
| `send` | queue | message | - (the row's offset says where it is) |
| `pop` | group | - | (message, token, attempt, remaining) |
| `ack`, `nack`, `reject`, `give_back`, `extend` | both | (token, offset, argument) | (token, |
| | | | offset, result) |
| `dead` | group | - | (letter, attempt, reason) |
| `redrive`, `purge` | both | (letter, offset) | - |
| `backlog` | group | - | `Books`, a row a queue |

A key of both is `billing orders/3`; so are the keys of answers. A message is a number, or (number,
ordering key). The argument is the delay of a `nack` in ms, the time of an `extend`, the reason of a
`reject`; a result is -1 if the lease was no longer the caller's, else 1, or for an `extend` the
new length of the lease in ms. `remaining` is the lease's length in ms from the end of the pop.

    >>> recorder = Recorder()
    >>> pop = begin_pop(recorder, 7, "billing")
    >>> end_pop(recorder, pop, "billing", [Got("orders/0", 4, "hello", 1 << 20, 1, 30_000)])
    >>> ack = begin_settling(recorder, 7, "ack", "billing", [Named("orders/0", 4, 1 << 20)])
    >>> end_settling(recorder, ack, "billing", [(Named("orders/0", 4, 1 << 20), 1)])
    >>> [found.deliveries[0].token for found in pop_traffic(recorder.history()).values()]
    [1048576]

Invariants:
- A settling call without an answer for a message may have settled it or not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from raftmq.checkers.history import NONE, History, Recorder, RowType, Value

POP = "pop"
DEAD = "dead"
BACKLOG = "backlog"
EXTEND = "extend"
SETTLING = ("ack", "nack", "reject", "give_back")
REVIVING = ("redrive", "purge")
WITHHOLDING = ("delay", "half")
"""Sends of messages that are seen later, if at all: see `withheld_calls`."""
FUNCTIONS = frozenset({POP, DEAD, BACKLOG, EXTEND, *SETTLING, *REVIVING})
"""The functions of consumer groups that pop; `ack` may also be of another kind of queue."""

FENCED = -1
"""The result of settling a message whose lease is no longer the caller's."""
NEVER = 2**62
"""The end of a call that was not answered: as a row, and as a time."""


# Writing down


class Got(NamedTuple):
    """A message that a pop gave."""

    queue: str
    """Its queue's name."""
    offset: int
    """The message's offset in the queue."""
    value: Value
    """The message's value: a number, or (number, ordering key)."""
    token: int
    """The token that settles the message."""
    attempt: int
    """The number of hand-outs, this one included."""
    remaining_ms: int
    """Milliseconds for which the lease still runs."""


class Named(NamedTuple):
    """A message that is to be settled."""

    queue: str
    """Its queue's name."""
    offset: int
    """The message's offset in the queue."""
    token: int
    """The token of the hand-out."""


def begin_pop(recorder: Recorder, process: int, group: str) -> int:
    """Record that a pop begins; the result is the operation's number, for `end_pop`."""
    return recorder.invoke(process, POP, group)


def end_pop(recorder: Recorder, operation: int, group: str, got: Iterable[Got]) -> None:
    """Record that a pop gave these messages."""
    rows = [
        (f"{group} {one.queue}", (one.value, one.token, one.attempt, one.remaining_ms), one.offset)
        for one in got
    ]
    recorder.ok_many(operation, rows)


def begin_settling(
    recorder: Recorder,
    process: int,
    function: str,
    group: str,
    named: Iterable[Named],
    argument: Value = -1,
) -> int:
    """Record that a call begins that settles messages, or extends a lease."""
    rows: list[tuple[str | None, Value]] = [
        (f"{group} {one.queue}", (one.token, one.offset, argument)) for one in named
    ]
    return recorder.invoke_many(process, function, rows)


def end_settling(
    recorder: Recorder, operation: int, group: str, results: Iterable[tuple[Named, int]]
) -> None:
    """Record the answer: the result of each message; see `FENCED`."""
    rows = [
        (f"{group} {one.queue}", (one.token, one.offset, result), one.offset)
        for one, result in results
    ]
    recorder.ok_many(operation, rows)


# Reading back


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a history; the history's rows are its clock."""

    operation: int
    process: int
    outcome: RowType
    begin: int
    """The row of its invoke."""
    end: int
    """The row of its answer; `NEVER` without one."""
    begin_ms: float
    end_ms: float
    """`NEVER` without an answer."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a send, acknowledged or not."""

    call: Call
    queue: str
    offset: int
    """The offset in the answer, or -1."""
    value: Value
    codes: tuple[int, ...]
    """Codes of the values in its rows."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was handed to a consumer."""

    call: Call
    value: Value
    offset: int
    token: int
    attempt: int
    remaining_ms: int
    codes: tuple[int, ...]

    def __str__(self) -> str:
        return f"token {self.token}, attempt {self.attempt}, process {self.call.process}"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A call that settles a message, or extends its lease."""

    call: Call
    function: str
    token: int
    offset: int
    argument: Value
    result: int | None
    """The result in the answer; None: no answer was seen."""
    codes: tuple[int, ...]

    @property
    def is_done(self) -> bool:
        """Whether the settlement surely happened."""
        return self.result is not None and self.result >= 0

    @property
    def is_refused(self) -> bool:
        """Whether the settlement did not happen, and never will."""
        return self.call.outcome is RowType.FAIL or (self.result is not None and self.result < 0)

    @property
    def is_fenced(self) -> bool:
        """Whether the answer was that the lease is no longer the caller's."""
        return self.result == FENCED


@dataclass(frozen=True, slots=True)
class Buried:
    """A message in a list of dead letters."""

    call: Call
    letter: int
    offset: int
    attempt: int
    reason: str
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revival:
    """A call that redrives or purges a dead message."""

    call: Call
    function: str
    offset: int


class Books(NamedTuple):
    """The broker's counts of a group's messages in a queue, by the names of a `Backlog` of
    `raftmq.client`. The checkers have a tuple of their own: they share no code with the machine
    that they judge, and histories hold the counts in this order."""

    end: int
    next: int
    leased: int
    waiting: int
    ready: int
    dead: int
    acked: int
    passed: int
    lost: int

    @classmethod
    def of(cls, row: object) -> "Books":
        """The counts of a row that has these names."""
        return cls(*(getattr(row, name) for name in cls._fields))

    @property
    def begun(self) -> int:
        """The offset at which the group began, if no message is missing."""
        return self.next - sum(self[2:])


@dataclass(slots=True)
class QueueTraffic:
    """All calls of one consumer group on one queue."""

    group: str
    queue: str
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    """The calls of `SETTLING`."""
    extensions: list[Settlement] = field(default_factory=list)
    revivals: list[Revival] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
    """The messages in the last list of dead letters."""
    listed: Call | None = None
    """The call that gave that list."""
    books: Books | None = None
    """The last books."""
    booked: Call | None = None
    """The call that gave these books."""

    @property
    def name(self) -> str:
        """Group and queue."""
        return f"{self.group} {self.queue}"


def sends_of(history: History) -> list[Sent]:
    """All sends, in order, including those of withheld messages."""
    calls = calls_of(history)
    is_send = history.is_function("send", *WITHHOLDING) & (history.value != NONE)
    offsets = {
        (int(history.operation[row]), int(history.value[row])): int(history.offset[row])
        for row in np.flatnonzero(is_send & (history.type == RowType.OK))
    }
    sends = []
    for row in np.flatnonzero(is_send & (history.type == RowType.INVOKE)):
        operation, code = int(history.operation[row]), int(history.value[row])
        offset = offsets.get((operation, code), NONE)
        queue = history.keys[int(history.key[row])] if history.key[row] != NONE else ""
        value = history.values[code]
        if history.functions[int(history.function[row])] in WITHHOLDING:
            assert isinstance(value, tuple), f"{history.describe(int(row))}: it names no message"
            value = value[0]
        sends.append(Sent(calls[operation], queue, offset, value, (code,)))
    return sends


def pop_traffic(history: History) -> dict[str, QueueTraffic]:
    """By group and queue: hand-outs and settlements, and the last lists of what is left."""
    calls = calls_of(history)
    found: dict[str, QueueTraffic] = {}
    last_lists = _last_lists(history, calls)
    answers = _answers(history)
    for row in range(len(history)):
        function = history.functions[int(history.function[row])]
        if function not in FUNCTIONS or history.key[row] == NONE:
            continue
        key, code = history.keys[int(history.key[row])], int(history.value[row])
        group, _, queue = key.rpartition(" ")
        if not group or code == NONE:
            continue
        value = history.values[code]
        assert isinstance(value, tuple), f"{history.describe(row)}: not a value of {function}"
        of_queue = found.setdefault(key, QueueTraffic(group, queue))
        call, offset = calls[int(history.operation[row])], int(history.offset[row])
        is_invoke = history.type[row] == RowType.INVOKE
        if function in (DEAD, BACKLOG):
            if not is_invoke and last_lists[group, function] is call:
                _listed(of_queue, function, call, value, offset, code)
        elif function == POP:
            if not is_invoke:
                of_queue.deliveries.append(_delivery(call, value, offset, code))
        elif is_invoke and function in REVIVING:
            of_queue.revivals.append(Revival(call, function, _number(value[1])))
        elif is_invoke:
            answer = answers.get((call.operation, key, value[0], value[1]))
            settlement = _settlement(history, call, function, value, code, answer)
            listed = of_queue.extensions if function == EXTEND else of_queue.settlements
            listed.append(settlement)
    for of_queue in found.values():
        of_queue.listed = last_lists.get((of_queue.group, DEAD))
        of_queue.booked = last_lists.get((of_queue.group, BACKLOG))
    return found


def calls_of(history: History) -> dict[int, Call]:
    """All calls, by the number of their operation."""
    outcomes = history.outcomes()
    begins = np.unique(history.operation, return_index=True)[1]
    ends = {
        int(history.operation[row]): int(row)
        for row in np.flatnonzero((history.type == RowType.OK) | (history.type == RowType.FAIL))
    }
    calls = {}
    for operation, begin in enumerate(begins):
        end = ends.get(operation, NEVER)
        end_ms = NEVER if end == NEVER else int(history.time[end]) / 1e6
        calls[operation] = Call(
            operation,
            int(history.process[begin]),
            RowType(int(outcomes[operation])),
            int(begin),
            end,
            int(history.time[begin]) / 1e6,
            end_ms,
        )
    return calls


def _last_lists(history: History, calls: dict[int, Call]) -> dict[tuple[str, str], Call]:
    """By group and function: the last list that was given."""
    last: dict[tuple[str, str], Call] = {}
    for row in np.flatnonzero(history.is_function(DEAD, BACKLOG)):
        call = calls[int(history.operation[row])]
        if history.type[row] == RowType.INVOKE and call.outcome is RowType.OK:
            function = history.functions[int(history.function[row])]
            last[history.keys[int(history.key[row])], function] = call
    return last


def _answers(history: History) -> dict[tuple[int, str, Value, Value], tuple[int, int]]:
    """By operation, group and queue, token and offset: the result of settling, and its value's
    code. Each partition group numbers its leases, so leases of two queues may have one token."""
    answers = {}
    is_answer = history.is_function(*SETTLING, EXTEND) & (history.type == RowType.OK)
    for row in np.flatnonzero(is_answer & (history.value != NONE) & (history.key != NONE)):
        code, key = int(history.value[row]), history.keys[int(history.key[row])]
        value = history.values[code]
        if isinstance(value, tuple):
            answers[int(history.operation[row]), key, value[0], value[1]] = _number(value[2]), code
    return answers


def _listed(
    of_queue: QueueTraffic,
    function: str,
    call: Call,
    value: tuple[Value, ...],
    offset: int,
    code: int,
) -> None:
    if function == BACKLOG:
        of_queue.books = Books(*map(_number, value))
        return
    letter, attempt, reason = value
    buried = Buried(call, _number(letter), offset, _number(attempt), str(reason), (code,))
    of_queue.buried.append(buried)


def _delivery(call: Call, value: tuple[Value, ...], offset: int, code: int) -> Delivery:
    message, token, attempt, remaining_ms = value
    return Delivery(
        call, message, offset, _number(token), _number(attempt), _number(remaining_ms), (code,)
    )


def _settlement(
    history: History,
    call: Call,
    function: str,
    value: tuple[Value, ...],
    code: int,
    answer: tuple[int, int] | None,
) -> Settlement:
    token, offset, argument = value
    result, codes = (None, (code,)) if answer is None else (answer[0], (code, answer[1]))
    return Settlement(call, function, _number(token), _number(offset), argument, result, codes)


def _number(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def by_offset(found: Sequence[Settlement]) -> dict[int, list[Settlement]]:
    """Settlements by the offset of their message, in order."""
    by: dict[int, list[Settlement]] = defaultdict(list)
    for one in found:
        by[one.offset].append(one)
    return dict(by)
