"""The operations of a history on single objects, by key, as the linearizability checkers want them.

A call lasts from its invoke to its answer. A failed call is left out: it did not happen. A call
without an answer may take effect at any time after its invoke, or never.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raftmq.checkers.history import NONE, History, RowType, Value

from .models import UNSEEN, Model

NEVER = 2**62
"""The end of a call that was not answered."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on one object."""

    operation: int
    function: str
    argument: Value
    result: Value
    """The answer, or `UNSEEN`."""
    begin: int
    end: int
    """Rows of the history, or any other numbers that rise with time; `NEVER` without an answer."""
    is_optional: bool = False
    """True: the call took effect between its begin and its end, or not at all; for shrinking."""

    @property
    def is_open(self) -> bool:
        """Whether the call may have happened at any time after its begin, or not at all."""
        return self.end == NEVER


def calls_by_key(history: History, model: Model) -> dict[int, list[Call]]:
    """The model's calls by key code, each list in the order of the begins."""
    calls: dict[int, list[Call]] = defaultdict(list)
    rows = np.flatnonzero(history.is_function(*model.functions))
    ends = {
        int(history.operation[row]): int(row) for row in rows if history.type[row] != RowType.INVOKE
    }
    for row in rows[history.type[rows] == RowType.INVOKE]:
        call = _call(history, model, int(row), ends.get(int(history.operation[row]), NONE))
        if call is not None:
            calls[int(history.key[row])].append(call)
    return dict(calls)


def _call(history: History, model: Model, row: int, end: int) -> Call | None:
    function = history.functions[int(history.function[row])]
    outcome = RowType.UNKNOWN if end == NONE else RowType(int(history.type[end]))
    is_open = outcome is RowType.UNKNOWN
    if outcome is RowType.FAIL or (is_open and function in model.observers):
        return None
    argument = _value(history, row)
    result = UNSEEN if is_open else _value(history, end)
    if function == "cas" and not is_open:
        # An answer repeats the argument, or says whether the values were exchanged.
        result = result is not False
    return Call(
        int(history.operation[row]), function, argument, result, row, NEVER if is_open else end
    )


def _value(history: History, row: int) -> Value:
    code = int(history.value[row])
    return None if code == NONE else history.values[code]


def without_answers(calls: Sequence[Call], places: set[int], model: Model) -> list[Call]:
    """The calls, with those at `places` weakened: each may have taken effect in its time or not at
    all. Weakened observers are left out."""
    weak = []
    for place, call in enumerate(calls):
        if place not in places:
            weak.append(call)
        elif call.function not in model.observers:
            weak.append(replace(call, result=UNSEEN, is_optional=not call.is_open))
    return weak
