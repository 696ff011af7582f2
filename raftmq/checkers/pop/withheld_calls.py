"""The calls about messages that are stored before they may be seen, as rows of a history.

Such messages are *withheld*: delayed ones until they fall due, those of a transaction until it
commits.

| function | key | value of its invoke | value of its answer |
|---|---|---|---|
| `delay` | queue | (message, due, delay) | - (the row's offset, if it fell due at once) |
| `cancel` | queue | message | (message, result): see `Cancelling` |
| `half` | queue | (message, transaction) | - |
| `commit`, `rollback` | - | transaction | (transaction, outcome): 1 committed, 0 rolled back |
| `open` | - | - | transaction, a row for each that is open |
| `found` | queue | - | (message, stamp), a row for each message that is there |

A message is a number, or (number, ordering key); a transaction any name that is used once. `due` is
in milliseconds since 1970, `delay` in milliseconds from the call. The outcome is the one that
holds, whichever was asked for. `found` lists the messages that a reader finds at the end of the run
from the start of each queue: the place of each, and the leader's stamp of its coming there.

    >>> recorder = Recorder()
    >>> send = recorder.invoke(0, "delay", "t/0", (7, 60_000, 5_000))
    >>> recorder.ok(send)
    >>> cancel = recorder.invoke(0, "cancel", "t/0", 7)
    >>> recorder.ok(cancel, value=(7, Cancelling.TAKEN_BACK))
    >>> withheld_traffic(recorder.history()).cancels[7][0].is_done
    True

Invariants:
- An ending without an answer may take effect at any later time, or never; so may a cancellation.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from raftmq.checkers.history import NONE, History, Recorder, RowType, Value
from raftmq.checkers.traffic import POLL

from .calls import POP, Call, calls_of

DELAY = "delay"
CANCEL = "cancel"
HALF = "half"
COMMIT = "commit"
ROLLBACK = "rollback"
OPEN = "open"
FOUND = "found"
FUNCTIONS = frozenset({DELAY, CANCEL, HALF, COMMIT, ROLLBACK, OPEN, FOUND})
"""The functions of withheld messages."""


class Cancelling(IntEnum):
    """The result of a cancellation."""

    TAKEN_BACK = 1
    """This call took the message back."""
    NOT_WAITING = 0
    """The message had been taken back before."""
    FELL_DUE = -1
    """The message's time had come."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """A message that was sent to be seen later, if at all."""

    call: Call
    queue: str
    value: Value
    due: int
    """Milliseconds since 1970; 0 for a message of a transaction."""
    delay: int
    """Milliseconds from the call; 0 for a message of a transaction."""
    transaction: Value
    """None: the message is a delayed one."""
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """A call to take a message back."""

    call: Call
    result: int | None
    """A `Cancelling`; None: no answer was seen."""
    codes: tuple[int, ...]

    @property
    def may_be_done(self) -> bool:
        """Whether this call may have taken the message back, or may still."""
        return self.call.outcome is not RowType.FAIL and self.result != Cancelling.FELL_DUE

    @property
    def is_done(self) -> bool:
        """Whether the message is gone for sure, by this call or one before."""
        return self.result in (Cancelling.TAKEN_BACK, Cancelling.NOT_WAITING)


@dataclass(frozen=True, slots=True)
class Ending:
    """A call to commit or roll back a transaction."""

    call: Call
    is_commit: bool
    """The outcome that was asked for."""
    outcome: bool | None
    """The outcome in the answer, True for commit; None: no answer was seen."""
    codes: tuple[int, ...]

    @property
    def may_be_done(self) -> bool:
        """Whether this call may have ended the transaction as it asked, or may still."""
        return self.call.outcome is not RowType.FAIL and self.outcome in (None, self.is_commit)


@dataclass(frozen=True, slots=True)
class Seen:
    """A message in an answer to a reader or consumer."""

    call: Call
    queue: str
    value: Value
    offset: int
    stamp: int | None
    """When the leader put it there, milliseconds since 1970; None: the answer did not say."""
    codes: tuple[int, ...]

    def __str__(self) -> str:
        return f"at offset {self.offset} of {self.queue}, by process {self.call.process}"


@dataclass(frozen=True, slots=True)
class Listed:
    """The last list of open transactions."""

    call: Call
    transactions: dict[Value, tuple[int, ...]]
    """Each with the codes of its row."""


@dataclass(slots=True)
class WithheldTraffic:
    """All calls about withheld messages."""

    messages: list[Withheld] = field(default_factory=list)
    cancels: dict[Value, list[Cancel]] = field(default_factory=lambda: defaultdict(list))
    """By message."""
    endings: dict[Value, list[Ending]] = field(default_factory=lambda: defaultdict(list))
    """By transaction."""
    seen: dict[Value, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """By message, whether it was withheld or not."""
    listed: Listed | None = None
    starts: dict[str, int] = field(default_factory=dict)
    """By queue: the lowest offset at which a message was found."""
    last_found: Call | None = None
    """The last call that read from the start."""


def begin_found(recorder: Recorder, process: int) -> int:
    """Record that a poll begins, of a reader that began at the start of each queue."""
    return recorder.invoke(process, FOUND)


def withheld_traffic(history: History) -> WithheldTraffic:
    """Collect the calls about withheld messages from a history."""
    calls = calls_of(history)
    traffic = WithheldTraffic()
    answers = _answers(history)
    is_wanted = history.is_function(*FUNCTIONS, POP, POLL)
    for row in np.flatnonzero(is_wanted):
        function = history.functions[int(history.function[row])]
        call = calls[int(history.operation[row])]
        is_invoke = history.type[row] == RowType.INVOKE
        key, code = int(history.key[row]), int(history.value[row])
        queue = "" if key == NONE else history.keys[key].rpartition(" ")[2]
        value = None if code == NONE else history.values[code]
        if function == OPEN:
            _note_open(traffic, call, value, code, is_invoke=is_invoke)
        elif is_invoke:
            _note_call(traffic, function, call, queue, value, code, answers)
        elif history.type[row] == RowType.OK and function in (FOUND, POP, POLL):
            if function == FOUND:
                traffic.last_found = call
            if code != NONE:
                _note_seen(traffic, function, call, queue, value, int(history.offset[row]), code)
    return traffic


def _answers(history: History) -> dict[int, tuple[int, int]]:
    """By operation of each answered cancellation and ending: the result, and its value's code."""
    told: dict[int, tuple[int, int]] = {}
    is_answered = history.is_function(CANCEL, COMMIT, ROLLBACK) & (history.type == RowType.OK)
    for row in np.flatnonzero(is_answered):
        code = int(history.value[row])
        value = history.values[code]
        assert isinstance(value, tuple), f"{history.describe(int(row))}: it says no result"
        assert isinstance(value[1], int), f"{history.describe(int(row))}: the result is no number"
        told[int(history.operation[row])] = value[1], code
    return told


def _note_open(
    traffic: WithheldTraffic, call: Call, value: Value, code: int, *, is_invoke: bool
) -> None:
    if is_invoke or call.outcome is not RowType.OK:
        return
    if traffic.listed is None or traffic.listed.call is not call:
        traffic.listed = Listed(call, {})
    if code != NONE:
        traffic.listed.transactions[value] = (code,)


def _note_call(
    traffic: WithheldTraffic,
    function: str,
    call: Call,
    queue: str,
    value: Value,
    code: int,
    answers: dict[int, tuple[int, int]],
) -> None:
    told = answers.get(call.operation)
    result, codes = (None, (code,)) if told is None else (told[0], (code, told[1]))
    match function, value:
        case "delay", (message, int(due), int(delay)):
            traffic.messages.append(Withheld(call, queue, message, due, delay, None, codes))
        case "half", (message, transaction):
            traffic.messages.append(Withheld(call, queue, message, 0, 0, transaction, codes))
        case "cancel", _:
            traffic.cancels[value].append(Cancel(call, result, codes))
        case "commit" | "rollback", _:
            outcome = None if result is None else bool(result)
            traffic.endings[value].append(Ending(call, function == COMMIT, outcome, codes))


def _note_seen(
    traffic: WithheldTraffic,
    function: str,
    call: Call,
    queue: str,
    value: Value,
    offset: int,
    code: int,
) -> None:
    stamp = None
    if function == FOUND:
        assert isinstance(value, tuple), f"{value!r}: not what was found"
        value, stamp = value
        assert isinstance(stamp, int), f"{stamp!r} is no time"
        traffic.starts[queue] = min(offset, traffic.starts.get(queue, offset))
    elif function == POP:
        assert isinstance(value, tuple), f"{value!r}: not what was popped"
        value = value[0]
    traffic.seen[value].append(Seen(call, queue, value, offset, stamp, (code,)))
