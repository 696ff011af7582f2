"""Transactions: messages that are stored at once, and seen only if their transaction commits.

    Begin(t)          the transaction is open; its note says what it is about
    half batches      of producer t, delivery time `NEVER`: rows of `delays` that never fall due
    End(t, commit)    their rows fall due now, under new numbers: releases place them
    End(t, rollback)  their rows go

The number of a transaction is also the producer id of its messages, so that no batch needs a field
of its own, and a half batch that comes late is known as one. All messages of a transaction stand in
one data group: its end is one entry of one log.

The first outcome holds. The machine remembers the outcome, and answers each later `End` with it. A
transaction outlives its producer: any other producer of the producer group may look up the outcome
in its own database and send the `End` (check-back). Such a transaction never ends by itself: an
undecided one stays visible, and an operator can end it.

A *hand-off* is a transaction with inputs: messages of groups that pop, in the hands of consumers. A
commit acknowledges them, in the same entry, if all are still in those hands; else it is a rollback.
An input that has left its hand never comes back into it, so the machine then rolls the transaction
back by itself: a hand-off needs no check-back.

    Begin(t, inputs)  refused unless all inputs are in hand
    End(t, commit)    all in hand: inputs acked, rows fall due; else: FENCED, rows go
    a lease runs out  FENCED, rows go; its messages are handed out again, to make new outputs

Invariants:
- A half message is seen if and only if an `End` with commit was applied, and then once.
- After the first `End` nothing is added to a transaction, and no other outcome takes effect.
- The messages of a commit fall due together, in the order of their sending, after all that were
  due before.
- The inputs of a hand-off are acked if and only if its messages are seen. So of all transactions
  with the same input one commits at the most, however often the input is handed out.

Left out: transactions over several data groups. Forgotten outcomes: after `ENDED_MAX` others, or
`ENDED_MS_MAX`, a transaction is unknown, and a commit of it is refused.

Sources: RocketMQ's transaction messages, which keep halves and outcomes in topics of their own: a
second outcome takes effect (issues #5574, #8158), decided ones are checked again (#2117, #9500).
Kafka's `sendOffsetsToTransaction` (KIP-98), for committing what was read with what was written.
"""

from collections.abc import Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.machine.names import NAME_CHARACTERS_MAX
from raftmq.pop.spans import Span, span
from raftmq.results import Changed, Delayed, Refused

from .delays import NEVER, Delays, Half
from .pop_groups import InHand, PopGroups
from .producers import Producers

OPEN_MAX = 100_000
"""Transactions that are open at a time in a data group."""
MESSAGES_MAX = 10_000
"""Messages of a transaction, and messages that it acknowledges: bounds the work of one entry."""
FENCED_MAX = 10_000
"""Messages of transactions that are rolled back in one step because their leases ran out."""
INPUT_BYTES_MAX = 64 * 1024 * 1024
"""Memory for the inputs of all that are open; about 100 bytes for a lease and its bits."""
ENDED_MAX = 65_536
"""Outcomes that are remembered; the oldest goes first."""
ENDED_MS_MAX = 7 * 24 * 3600 * 1000
"""How long outcomes are remembered."""
NOTE_CHARACTERS_MAX = 1000
"""Longest note of a transaction, in characters."""

_SPARE_TIMERS = 64
_INPUT_BYTES = 100


class Outcome(IntEnum):
    """How a transaction ended."""

    ROLLED_BACK = 0
    """The transaction's messages are gone."""
    COMMITTED = 1
    """The transaction's messages are delivered."""
    FENCED = 2
    """The transaction's messages are gone, because an input had left its consumer's hand."""


class Input(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one lease that a commit acknowledges."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that has the messages in hand."""
    token: int
    """The lease."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Which messages from there on: little-endian, bit n is the message at `base + n`."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin_transaction"):
    """Open a transaction. A repeat changes nothing."""

    transaction: int
    """The transaction's number: random, 1 to 2^63 - 1; also the producer of its messages."""
    producer_group: str
    """The producer group that can say the outcome; empty for a hand-off: its leases say it."""
    note: str
    """The producer's words about the transaction, for producers that are asked for the outcome."""
    inputs: list[Input] = []
    """The messages that a hand-off acknowledges; empty: no hand-off."""


class End(msgspec.Struct, frozen=True, array_like=True, tag="end_transaction"):
    """Commit or roll back; the first time counts."""

    transaction: int
    """The transaction's number."""
    outcome: int
    """Number of an `Outcome`."""


class Open:
    """A transaction that is open."""

    __slots__ = ("count", "halves", "inputs", "note", "opened_ms", "producer_group", "until")

    def __init__(self, producer_group: str, note: str, opened_ms: int) -> None:
        self.producer_group = producer_group
        """The producer group that can say the outcome; empty for a hand-off."""
        self.note = note
        """The producer's words about the transaction."""
        self.opened_ms = opened_ms
        """When the transaction was opened, milliseconds since 1970."""
        self.halves: list[Half] = []
        """The transaction's messages, by batch."""
        self.count = 0
        """How many messages these are."""
        self.inputs: list[InHand] = []
        """The messages that the commit acknowledges."""
        self.until = 0
        """When to check whether the inputs are still in hand; 0: never, there are none."""

    @property
    def input_count(self) -> int:
        """How many messages the commit acknowledges."""
        return sum(each.messages.size for each in self.inputs)


class Transactions:
    """All transactions of a data group's machine."""

    def __init__(self, delays: Delays, pop_groups: PopGroups, producers: Producers) -> None:
        self._delays = delays
        self._pop_groups = pop_groups
        self._producers = producers
        self.open: dict[int, Open] = {}
        """Open transactions by number, the oldest first."""
        # Number → outcome and when, the oldest first.
        self._ended: dict[int, tuple[int, int]] = {}
        # (until, number) of each hand-off that is open; others are void.
        self._timers: list[tuple[int, int]] = []
        self._input_bytes = 0

    def pass_time(self, now: int) -> None:
        """Roll back hand-offs that can never commit, as an input has left its hand; up to a bound,
        the rest with the next record."""
        done = 0
        while self._timers and self._timers[0][0] <= now and done < FENCED_MAX:
            _, number = self._timers[0]
            if self._is_void(*heappop(self._timers)):
                continue
            transaction = self.open[number]
            until = self._held_until(transaction.inputs, now)
            if until is None:
                done += 1 + self._roll_back(number, Outcome.FENCED, now)
            else:
                # A lease was extended: the inputs are still in hand, for longer than noted.
                assert until > now, "a lease that is over is still in hand"
                self._watch(number, transaction, until)

    def has_ended(self, number: int) -> bool:
        """Whether the outcome of a transaction is remembered."""
        return number in self._ended

    @property
    def next_timer(self) -> int | None:
        """When `pass_time` has something to do; None: never, unless a command changes that."""
        while self._timers and self._is_void(*self._timers[0]):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def begin(self, command: Begin, now: int) -> Changed | Refused:
        """Open a transaction."""
        number = command.transaction
        if number in self._ended:
            return self._over(number)
        if number in self.open:
            return Changed()
        if not (
            0 < number < 1 << 63
            and bool(command.producer_group) is not bool(command.inputs)
            and len(command.producer_group) <= NAME_CHARACTERS_MAX
            and len(command.note) <= NOTE_CHARACTERS_MAX
        ):
            message = (
                "a transaction has a number from 1 to 2^63 - 1, a producer group of 1 to "
                f"{NAME_CHARACTERS_MAX} characters or else inputs, and a note of "
                f"{NOTE_CHARACTERS_MAX} at the most"
            )
            return Refused(Reason.BAD_ARGUMENT, message)
        if len(self.open) >= OPEN_MAX:
            message = f"{OPEN_MAX} transactions are open: end some of them"
            return Refused(Reason.TOO_MANY_TRANSACTIONS, message)
        transaction = Open(command.producer_group, command.note, now)
        if not command.inputs:
            self.open[number] = transaction
            return Changed()
        transaction.inputs = list(_in_hand(command.inputs))
        refusal = self._refuse_inputs(transaction, len(command.inputs))
        if refusal is not None:
            return refusal
        until = self._held_until(transaction.inputs, now)
        if until is None:
            return _fenced(number)
        self.open[number] = transaction
        self._input_bytes += _size(transaction.inputs)
        assert self._input_bytes <= INPUT_BYTES_MAX, "more inputs than `_refuse_inputs` allowed"
        self._watch(number, transaction, until)
        return Changed()

    def _refuse_inputs(self, transaction: Open, count: int) -> Refused | None:
        """Why a transaction cannot have these inputs, of `count` that were named; None: it can."""
        if len(transaction.inputs) < count:
            return Refused(Reason.BAD_ARGUMENT, "an input holds no messages")
        if transaction.input_count > MESSAGES_MAX:
            message = f"a transaction acknowledges {MESSAGES_MAX} messages at the most"
            return Refused(Reason.TOO_LARGE, message)
        if self._input_bytes + _size(transaction.inputs) > INPUT_BYTES_MAX:
            message = "the open transactions have too many inputs: end some of them"
            return Refused(Reason.TOO_MANY_TRANSACTIONS, message)
        return None

    def refusal(self, number: int, count: int) -> Refused | None:
        """Why `count` more messages cannot belong to a transaction; None: they can."""
        transaction = self.open.get(number)
        if transaction is not None:
            if transaction.count + count <= MESSAGES_MAX:
                return None
            message = f"a transaction has {MESSAGES_MAX} messages at the most"
            return Refused(Reason.TOO_LARGE, message)
        return self._over(number) if number in self._ended else _unknown(number)

    def add(self, number: int, half: Delayed) -> None:
        """A half batch was put into its delay queue."""
        transaction = self.open[number]
        transaction.halves.append(Half(half.queue, half.number, half.count))
        transaction.count += half.count
        # `refusal` was asked before the batch was admitted.
        assert transaction.count <= MESSAGES_MAX, f"transaction {number} is too large"

    def end(self, command: End, now: int, index: int) -> Changed | Refused:
        """End a transaction; `[outcome, messages, whether it was this command]`.

        The outcome is the one that holds, which may not be the one that the command names.
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
            # A `Begin` that comes later must find the transaction ended.
            self._remember(number, outcome, now)
            return Changed([int(outcome), 0, True])
        inputs = transaction.inputs
        if outcome == Outcome.COMMITTED and inputs and self._held_until(inputs, now) is None:
            outcome = Outcome.FENCED
        if outcome != Outcome.COMMITTED:
            return Changed([int(outcome), self._roll_back(number, outcome, now), True])
        # Before the inputs are acked: a refused commit must leave them in hand.
        if not self._delays.commit(transaction.halves, index):
            return Refused(Reason.BAD_ARGUMENT, "too much is committed by one record")
        for each in inputs:
            self._pop_groups.ack(each, now)
        self._close(number, outcome, now)
        return Changed([int(outcome), transaction.count, True])

    def _roll_back(self, number: int, outcome: int, now: int) -> int:
        """Remove the messages of a transaction; how many there were."""
        assert outcome != Outcome.COMMITTED, f"transaction {number} commits and loses its messages"
        transaction = self.open[number]
        self._delays.roll_back(transaction.halves)
        self._close(number, outcome, now)
        return transaction.count

    def _close(self, number: int, outcome: int, now: int) -> None:
        transaction = self.open.pop(number)
        # Sessions of ended transactions must not crowd out those of other producers.
        self._producers.forget(number, {half.queue for half in transaction.halves})
        self._input_bytes -= _size(transaction.inputs)
        assert self.open or not self._input_bytes, "inputs of no open transaction"
        self._remember(number, outcome, now)

    def _remember(self, number: int, outcome: int, now: int) -> None:
        ended = self._ended
        assert number not in self.open, f"transaction {number} has an outcome while it is open"
        ended[number] = (int(outcome), now)
        while len(ended) > ENDED_MAX or ended[next(iter(ended))][1] < now - ENDED_MS_MAX:
            del ended[next(iter(ended))]

    def _over(self, number: int) -> Refused:
        """The refusal for a command or batch that comes after the end."""
        if self._ended[number][0] == Outcome.FENCED:
            return _fenced(number)
        return Refused(Reason.TRANSACTION_ENDED, f"transaction {number} has ended")

    # Hands

    def _held_until(self, inputs: list[InHand], now: int) -> int | None:
        """When the first of the inputs' leases ends; None: an input is not in hand."""
        first: int | None = None
        for each in inputs:
            until = self._pop_groups.held_until(each, now)
            if until is None:
                return None
            first = until if first is None else min(first, until)
        return first

    def _watch(self, number: int, transaction: Open, until: int) -> None:
        """Look at the inputs of a hand-off again at this time."""
        assert transaction.inputs, "only a hand-off has an input that can leave its hand"
        transaction.until = until
        heappush(self._timers, (until, number))
        if len(self._timers) > 2 * len(self.open) + _SPARE_TIMERS:
            self._timers = [(t.until, at) for at, t in self.open.items() if t.until]
            heapify(self._timers)

    def _is_void(self, until: int, number: int) -> bool:
        transaction = self.open.get(number)
        return transaction is None or transaction.until != until

    # As plain values

    def dump(self) -> list[Any]:
        """The state as plain values."""
        opened = [
            [
                number,
                t.producer_group,
                t.note,
                t.opened_ms,
                [list(half) for half in t.halves],
                t.until,
                [[*each[:3], *each.messages[:2]] for each in t.inputs],
            ]
            for number, t in self.open.items()
        ]
        return [opened, [[number, *ended] for number, ended in self._ended.items()]]

    def load(self, state: list[Any]) -> None:
        """The reverse of `dump`; state of older software has no inputs."""
        opened, ended = state
        for number, producer_group, note, opened_ms, halves, *hand_off in opened:
            transaction = self.open[number] = Open(producer_group, note, opened_ms)
            transaction.halves = [Half(*half) for half in halves]
            transaction.count = sum(half.count for half in transaction.halves)
            if hand_off and hand_off[0]:
                until, inputs = hand_off
                transaction.inputs = [
                    InHand(attachment, consumer, token, Span(base, bits))
                    for attachment, consumer, token, base, bits in inputs
                ]
                self._input_bytes += _size(transaction.inputs)
                self._watch(number, transaction, until)
        self._ended = {number: (outcome, at) for number, outcome, at in ended}


def is_half(due: int) -> bool:
    """Is this the delivery time of a message whose transaction is open?"""
    return due == NEVER


def _unknown(number: int) -> Refused:
    message = f"no transaction {number} is open here: it never was, or ended long ago"
    return Refused(Reason.UNKNOWN_TRANSACTION, message)


def _fenced(number: int) -> Refused:
    message = (
        f"transaction {number} is rolled back: a message that it acknowledges is no longer in "
        "that consumer's hand, and is handed out again unless it is settled"
    )
    return Refused(Reason.FENCED, message)


def _in_hand(inputs: list[Input]) -> Iterator[InHand]:
    for each in inputs:
        messages = span(each.base, int.from_bytes(each.bits, "little"))
        if messages is not None:
            yield InHand(each.number, each.consumer, each.token, messages)


def _size(inputs: list[InHand]) -> int:
    """About how many bytes of memory inputs take."""
    return sum(_INPUT_BYTES + each.messages.bits.bit_length() // 8 for each in inputs)
