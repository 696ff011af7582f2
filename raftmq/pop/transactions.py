"""Transactions: messages that are stored at once, and seen only if their transaction commits.

    Begin(t)          the transaction is open; its note says what it is about
    half batches      of producer t, delivery time `NEVER`: rows of `delays` that never fall due
    End(t, commit)    their rows fall due now, under new numbers: releases place them
    End(t, rollback)  their rows go

The number of a transaction is also the producer id of its messages, so that no batch needs a field
of its own, and a half batch that comes late is known as one. All messages of a transaction stand in
one data group: its end is one entry of one log.

The first outcome holds. It is remembered, so that whoever says it again, or says the other, is told
which one it was; a producer that died is survived by its transactions, and any other one of its
producer group may look up how they ended in its own database and say so (check-back). None ends by
itself: what nobody decides stays visible, and an operator can.

Invariants:
- A half message is seen if and only if an `End` with commit was applied, and then once.
- After the first `End` nothing is added to a transaction, and no other outcome takes effect.
- The messages of a commit fall due together, in the order of their sending, after all that were
  due before.

Left out: transactions over several data groups. Forgotten outcomes: after `ENDED_MAX` others, or
`ENDED_MS_MAX`, a transaction is unknown, and a commit of it is refused.

Sources: RocketMQ's transaction messages, which keep halves and outcomes in topics of their own: a
second outcome takes effect (issues #5574, #8158), decided ones are checked again (#2117, #9500).
"""

from enum import IntEnum
from typing import Any

import msgspec

from raftmq.errors import Reason

from .delays import NEVER, Delays, Half
from .results import Changed, Delayed, Refused

OPEN_MAX = 100_000
"""Transactions that are open at a time in a data group."""
MESSAGES_MAX = 10_000
"""Messages of one: bounds what one entry does."""
ENDED_MAX = 65_536
"""Outcomes that are remembered; the oldest goes first."""
ENDED_MS_MAX = 7 * 24 * 3600 * 1000
"""For how long they are."""
NAME_CHARACTERS_MAX = 127
"""Of a producer group's name."""
NOTE_CHARACTERS_MAX = 1000
"""Of a note."""


class Outcome(IntEnum):
    """How a transaction ended."""

    ROLLED_BACK = 0
    """Its messages are gone."""
    COMMITTED = 1
    """Its messages are delivered."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin_transaction"):
    """Open a transaction. A repeat changes nothing."""

    transaction: int
    """Its number: random, 1 to 2^63 - 1; also the producer of its messages."""
    producer_group: str
    """Whose producers can say how it ended."""
    note: str
    """What it is about, for them."""


class End(msgspec.Struct, frozen=True, array_like=True, tag="end_transaction"):
    """Commit or roll back; the first time counts."""

    transaction: int
    """Its number."""
    outcome: int
    """An `Outcome`."""


class Open:
    """A transaction that is open."""

    __slots__ = ("count", "halves", "note", "opened_ms", "producer_group")

    def __init__(self, producer_group: str, note: str, opened_ms: int) -> None:
        self.producer_group = producer_group
        """Whose it is."""
        self.note = note
        """What it is about."""
        self.opened_ms = opened_ms
        """Since when, milliseconds since 1970."""
        self.halves: list[Half] = []
        """Its messages."""
        self.count = 0
        """How many they are."""


class Transactions:
    """All transactions of a data group's machine."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self.open: dict[int, Open] = {}
        """By number, the oldest first."""
        # Number → outcome and when, the oldest first.
        self._ended: dict[int, tuple[int, int]] = {}

    def begin(self, command: Begin, now: int) -> Changed | Refused:
        """Open a transaction."""
        number = command.transaction
        if number in self._ended:
            return Refused(Reason.TRANSACTION_ENDED, f"transaction {number} has ended")
        if number in self.open:
            return Changed()
        if not (
            0 < number < 1 << 63
            and 0 < len(command.producer_group) <= NAME_CHARACTERS_MAX
            and len(command.note) <= NOTE_CHARACTERS_MAX
        ):
            message = (
                "a transaction has a number from 1 to 2^63 - 1, a producer group of 1 to "
                f"{NAME_CHARACTERS_MAX} characters and a note of {NOTE_CHARACTERS_MAX} at the most"
            )
            return Refused(Reason.BAD_ARGUMENT, message)
        if len(self.open) >= OPEN_MAX:
            message = f"{OPEN_MAX} transactions are open: end some of them"
            return Refused(Reason.TOO_MANY_TRANSACTIONS, message)
        self.open[number] = Open(command.producer_group, command.note, now)
        return Changed()

    def refusal(self, number: int, count: int) -> Refused | None:
        """Why so many messages more cannot belong to a transaction; None: they can."""
        transaction = self.open.get(number)
        if transaction is not None:
            if transaction.count + count <= MESSAGES_MAX:
                return None
            message = f"a transaction has {MESSAGES_MAX} messages at the most"
            return Refused(Reason.TOO_LARGE, message)
        if number in self._ended:
            return Refused(Reason.TRANSACTION_ENDED, f"transaction {number} has ended")
        return _unknown(number)

    def add(self, number: int, half: Delayed) -> None:
        """A half batch was put on its shelf."""
        transaction = self.open[number]
        transaction.halves.append(Half(half.queue, half.number, half.count))
        transaction.count += half.count

    def end(self, command: End, now: int, index: int) -> Changed | Refused:
        """End a transaction; `[outcome, messages, whether it was this command]`.

        The outcome is the one that holds, whichever was wanted.
        """
        number, outcome = command.transaction, command.outcome
        if outcome not in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
            return Refused(Reason.BAD_ARGUMENT, f"{outcome} is no outcome")
        if number in self._ended:
            return Changed([self._ended[number][0], 0, False])
        transaction = self.open.get(number)
        if transaction is None:
            if outcome == Outcome.COMMITTED or not 0 < number < 1 << 63:
                return _unknown(number)
            # Should its beginning come later, it is over.
            self._remember(number, outcome, now)
            return Changed([int(outcome), 0, True])
        if outcome == Outcome.COMMITTED:
            if not self._delays.commit(transaction.halves, index):
                return Refused(Reason.BAD_ARGUMENT, "too much is committed by one record")
        else:
            self._delays.roll_back(transaction.halves)
        del self.open[number]
        self._remember(number, outcome, now)
        return Changed([int(outcome), transaction.count, True])

    def _remember(self, number: int, outcome: int, now: int) -> None:
        ended = self._ended
        ended[number] = (int(outcome), now)
        while len(ended) > ENDED_MAX or ended[next(iter(ended))][1] < now - ENDED_MS_MAX:
            del ended[next(iter(ended))]

    def dump(self) -> list[Any]:
        """The state as plain values."""
        opened = [
            [number, t.producer_group, t.note, t.opened_ms, [list(half) for half in t.halves]]
            for number, t in self.open.items()
        ]
        return [opened, [[number, *ended] for number, ended in self._ended.items()]]

    def load(self, state: list[Any]) -> None:
        """The reverse of `dump`."""
        opened, ended = state
        for number, producer_group, note, opened_ms, halves in opened:
            transaction = self.open[number] = Open(producer_group, note, opened_ms)
            transaction.halves = [Half(*half) for half in halves]
            transaction.count = sum(half.count for half in transaction.halves)
        self._ended = {number: (outcome, at) for number, outcome, at in ended}


def is_half(due: int) -> bool:
    """Is this delivery time that of a message whose transaction is open?"""
    return due == NEVER


def _unknown(number: int) -> Refused:
    message = f"no transaction {number} is open here: it never was, or ended long ago"
    return Refused(Reason.UNKNOWN_TRANSACTION, message)
