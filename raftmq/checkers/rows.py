"""The rows of some functions of a history, as plain values, each with its call.

For checkers that look at few rows; checkers of many rows read the columns themselves.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from raftmq.checkers.pop.calls import Call, calls_of

from .history import NONE, History, RowType, Value


class Row(NamedTuple):
    """One row."""

    call: Call
    function: str
    is_invoke: bool
    key: str
    """Empty without one."""
    value: Value
    offset: int
    """-1 without one."""
    code: int
    """The value's code; -1 without a value."""


def rows_of(history: History, *functions: str) -> Iterator[Row]:
    """The invoke and ok rows of these functions, in order."""
    calls = calls_of(history)
    is_wanted = history.is_function(*functions)
    is_wanted &= (history.type == RowType.INVOKE) | (history.type == RowType.OK)
    for row in np.flatnonzero(is_wanted):
        key, code = int(history.key[row]), int(history.value[row])
        yield Row(
            calls[int(history.operation[row])],
            history.functions[int(history.function[row])],
            bool(history.type[row] == RowType.INVOKE),
            "" if key == NONE else history.keys[key],
            None if code == NONE else history.values[code],
            int(history.offset[row]),
            code,
        )


def number_of(value: Value) -> int:
    """A value that is a number."""
    assert isinstance(value, int), value
    return value


def pair_of(value: Value) -> tuple[int, int]:
    """A value that is two numbers."""
    assert isinstance(value, tuple), value
    first, second = value
    return number_of(first), number_of(second)
