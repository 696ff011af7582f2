"""The messages of a history as columns: sends with their outcomes, and deliveries.

Every function is a few vector operations over the whole history: a million operations take about a
second.

Invariants:
- Senders' rows and deliveries stand in the order of the history.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .history import NONE, History, Integers, RowType

SEND = "send"
POLL = "poll"
ACK = "ack"
ASSIGN = "assign"


class Sends(NamedTuple):
    """One element for each message of a send, acknowledged or not."""

    row: Integers
    """The row of its invoke."""
    operation: Integers
    process: Integers
    key: Integers
    value: Integers
    outcome: Integers
    """A `RowType`."""
    offset: Integers
    """The offset in the answer, or -1."""
    end: Integers
    """The row of the answer, or -1."""


class Deliveries(NamedTuple):
    """One element for each message of an answered poll."""

    row: Integers
    operation: Integers
    process: Integers
    key: Integers
    value: Integers
    offset: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """All sends and deliveries, and the place of each value's send."""

    history: History
    sends: Sends
    deliveries: Deliveries
    send_of_value: Integers
    """By value code: its place in `sends`, or -1 if it was never sent."""
    is_unique: bool
    """Whether each sent value was sent by one send only."""
    start: Integers
    """By operation: the row of its first invoke."""
    strangers: Integers
    """Processes that polled for other consumer groups only: their acks do not count here."""

    def is_delivered(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """By send: whether its value was ever delivered."""
        seen = np.zeros(len(self.send_of_value), np.bool_)
        seen[self.deliveries.value] = True
        return seen[self.sends.value]

    def first_delivery(self) -> Integers:
        """By value code: the place of its first delivery in `deliveries`, or -1."""
        places = np.full(len(self.send_of_value), NONE, np.int64)
        # The first delivery counts, but the last assignment to a place holds: go backwards.
        places[self.deliveries.value[::-1]] = np.arange(len(self.deliveries.value))[::-1]
        return places

    def value_text(self, code: int) -> str:
        """A value as text."""
        return repr(self.history.values[code])

    def key_text(self, code: int) -> str:
        """A key as text, or a dash."""
        return "-" if code == NONE else self.history.keys[code]


def traffic(history: History) -> Traffic:
    """Collect the sends and the deliveries of a history."""
    outcomes = history.outcomes()
    is_send = history.is_function(SEND) & (history.value != NONE)
    row = np.flatnonzero(is_send & (history.type == RowType.INVOKE))
    value = history.value[row]
    send_of_value = np.full(len(history.values), NONE, np.int64)
    send_of_value[value] = np.arange(len(row))
    is_unique = bool((send_of_value[value] == np.arange(len(row))).all())

    ends = np.flatnonzero(is_send & (history.type == RowType.OK))
    places = send_of_value[history.value[ends]]
    is_known = places != NONE
    ends, places = ends[is_known], places[is_known]
    offset, end = np.full(len(row), NONE, np.int64), np.full(len(row), NONE, np.int64)
    offset[places], end[places] = history.offset[ends], ends
    operation = history.operation[row]
    sends = Sends(
        row, operation, history.process[row], history.key[row], value, outcomes[operation],
        offset, end,
    )  # fmt: skip

    got = np.flatnonzero(
        history.is_function(POLL) & (history.type == RowType.OK) & (history.value != NONE)
    )
    deliveries = Deliveries(
        got, history.operation[got], history.process[got], history.key[got], history.value[got],
        history.offset[got],
    )  # fmt: skip
    start = np.unique(history.operation, return_index=True)[1].astype(np.int64)
    strangers = np.zeros(0, np.int64)
    return Traffic(history, sends, deliveries, send_of_value, is_unique, start, strangers)


def by_group(found: Traffic) -> dict[str, Traffic]:
    """The deliveries of each consumer group that had a poll answered, by its name.

    The value of a poll's invoke names the group; polls without a value are the group "".
    """
    history, deliveries = found.history, found.deliveries
    polls = np.flatnonzero(history.is_function(POLL) & (history.type == RowType.INVOKE))
    group = np.full(len(found.start), NONE, np.int64)
    group[history.operation[polls]] = history.value[polls]
    is_answered = history.is_function(POLL) & (history.type == RowType.OK)
    answered = np.unique(history.operation[is_answered])
    parts = {}
    for code in np.unique(group[answered]):
        name = "" if code == NONE else str(history.values[code])
        chosen = Deliveries(*(column[group[deliveries.operation] == code] for column in deliveries))
        own = np.unique(history.process[polls][history.value[polls] == code])
        others = np.setdiff1d(history.process[polls], own)
        parts[name] = replace(found, deliveries=chosen, strangers=others)
    return parts


def doubt(found: Traffic) -> str:
    """Why this traffic cannot be judged; empty if it can."""
    is_answer = found.history.is_function(POLL) & (found.history.type == RowType.OK)
    return doubt_of(
        is_sent=len(found.sends.row) > 0,
        is_acknowledged=bool((found.sends.outcome == RowType.OK).any()),
        is_polled=bool(is_answer.any()),
        is_unique=found.is_unique,
    )


def doubt_of(*, is_sent: bool, is_acknowledged: bool, is_polled: bool, is_unique: bool) -> str:
    """Why traffic cannot be judged; empty if it can.

    Args:
        is_sent: there is a send.
        is_acknowledged: a send was acknowledged.
        is_polled: a poll was answered.
        is_unique: each sent value was sent by one send only.
    """
    if not is_sent:
        return "vacuous: no message was sent"
    if not is_acknowledged:
        return "vacuous: no send was acknowledged"
    if not is_polled:
        return "vacuous: no poll was answered"
    if not is_unique:
        return "a value was sent twice: a loss or a duplicate of it cannot be told"
    return ""
