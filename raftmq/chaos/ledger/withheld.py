"""A second, simple model of delayed messages and transactions: a row for each waiting message.

The machine keeps sorted chunks of numbers and reads messages where they stand; the model keeps a
dictionary from number to `Waiting`, with the message's own text, and sorts the rows whenever it
needs those that are due. The model follows what the machine did with each record, and says what is
wrong with that.

| number | at each index |
|---|---|
| Q3 | a message is released as it was sent |
| Q18 | a batch that a producer sends twice waits once |
| Q20 | nothing is released before its time by the log, nor out of the order of times |
| Q21 | what waits is released once, or taken back; the answer to a cancel is true |
| Q22 | halves are released if their transaction committed; its first outcome holds, and when a |
| | hand-off commits all its inputs are in hand |

Invariants:
- A client that took a message back never gets the answer that the message fell due, even if the
  client repeats its cancel.
- After a breach `PopLog` ignores what `follow_batch` and the others find.

Left out: bounds of what may wait and be open, which refuse before anything is kept.

Sources: the invariants Q3, Q18 and Q20 of this project.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.batch import Batch, peek
from raftmq.errors import CorruptRecord, Reason
from raftmq.machine.delays import (
    CANCELLED,
    FELL_DUE,
    NEVER,
    NOT_WAITING,
    POSITION_BITS,
    RELEASER,
    Cancel,
    Carry,
)
from raftmq.machine.producers import RESERVED
from raftmq.machine.transactions import ENDED_MS_MAX, Begin, End, Outcome
from raftmq.pop.spans import span
from raftmq.results import Appended, Changed, Delayed, Refused, Result

Fact = tuple[str, str]
"""Which promise was broken, and how."""
LATE_MS_MAX = 10_000
"""Longest time after its due time at which a leader has released a message."""


class Input(NamedTuple):
    """Messages of one lease that a hand-off acknowledges."""

    number: int
    """Number of the consumer group's attachment."""
    consumer: int
    token: int
    offsets: tuple[int, ...]


HeldUntil = Callable[[Input], int | None]
"""Until when all messages of an input are in hand; None: they are not."""


@dataclass(slots=True)
class Waiting:
    """A message that is stored, and in no queue yet."""

    queue: int
    due: int
    text: tuple[bytes, str | None, str | None]
    """Body, key and tag."""


@dataclass(slots=True)
class Open:
    """A transaction that has not ended."""

    inputs: tuple[Input, ...] = ()
    until: int = 0
    """When to look again whether the inputs are in hand."""
    halves: list[int] = field(default_factory=list)
    """Numbers of its messages, in the order of their sending."""


class WithheldModel:
    """The messages that a data group withholds, and its transactions."""

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        """By number."""
        self.open: dict[int, Open] = {}
        """By transaction."""
        self.counts: Counter[str] = Counter()
        """By event: messages that were released, taken back, committed and so on."""
        self._ended: dict[int, tuple[int, int]] = {}
        self._taken_back: dict[int, int] = {}
        # Number of a message that no longer waits → how its wait ended.
        self._gone: dict[int, str] = {}
        # (queue, producer, epoch, sequence) → number.
        self._sent: dict[tuple[int, int, int, int], int] = {}
        # The record of the last commit, and the numbers that it gave.
        self._committed = (0, 0)
        self._now = 0

    # Time

    def pass_time(self, now: int, held_until: HeldUntil) -> None:
        """Take the time of the next record, which the leases of groups have taken already."""
        self._now = now
        for number, transaction in list(self.open.items()):
            if transaction.inputs and transaction.until <= now:
                until = _first(transaction.inputs, held_until)
                if until is None:
                    self._roll_back(number, Outcome.FENCED)
                else:
                    transaction.until = until

    def due(self, queue: int) -> list[int]:
        """Numbers of a queue's messages that are due, in the order of their release."""
        found = [
            (one.due, number)
            for number, one in self.waiting.items()
            if one.queue == queue and one.due <= self._now
        ]
        return [number for _, number in sorted(found)]

    def overdue(self) -> Iterator[Fact]:
        """A message that should have been released long ago, if there was a leader since."""
        for number, one in self.waiting.items():
            if one.due < self._now - LATE_MS_MAX:
                yield (
                    "Q21",
                    f"message {number} of queue {one.queue} fell due at {one.due} and waits",
                )
                return

    # Batches

    def follow_batch(self, payload: bytes, index: int, result: Result) -> Iterator[Fact]:
        """Follow a batch with the machine's result; yields what is wrong with that."""
        try:
            head = peek(payload)
            if head.producer < RESERVED and not Batch.decode(payload).delivery_times:
                return
            batch = Batch.decode(payload)
        except CorruptRecord:
            return
        if head.producer >= RESERVED:
            yield from self._release(batch, result)
        else:
            yield from self._send(batch, index, result)

    def _send(self, batch: Batch, index: int, result: Result) -> Iterator[Fact]:
        head, times = batch.head, batch.delivery_times
        half = self.open.get(head.producer) if max(times) >= NEVER else None
        match result:
            case Appended(duplicate=False) if max(times) > self._now:
                yield "Q20", f"a batch is in its queue at {self._now} that is due at {max(times)}"
            case Delayed(duplicate=True):
                name = head.queue, head.producer, head.epoch, head.first_sequence
                before = self._sent.get(name)
                if before is not None and before != result.number:
                    yield (
                        "Q18",
                        f"batch {name} waits as {before}, and its repeat as {result.number}",
                    )
            case Delayed() if max(times) <= self._now:
                yield "Q21", f"a batch waits at {self._now} that was due at {max(times)}"
            case Delayed() if max(times) >= NEVER and half is None:
                yield "Q22", f"a half message was taken of transaction {head.producer}, not open"
            case Delayed():
                yield from self._keep(batch, index, result, half)
            case Refused(reason=Reason.TRANSACTION_ENDED | Reason.UNKNOWN_TRANSACTION) if half:
                yield "Q22", f"a half message of {head.producer}, which is open: {result.message}"

    def _keep(self, batch: Batch, index: int, result: Delayed, half: Open | None) -> Iterator[Fact]:
        head, first = batch.head, index << POSITION_BITS
        if (result.queue, result.number, result.count) != (head.queue, first, len(batch)):
            yield "Q21", f"{result} should be {len(batch)} messages of {head.queue} from {first} on"
        for place, (due, text) in enumerate(zip(batch.delivery_times, _texts(batch), strict=True)):
            number = first + place
            self.waiting[number] = Waiting(head.queue, max(due, self._now), text)
            if half is not None:
                half.halves.append(number)
            name = head.queue, head.producer, head.epoch, head.first_sequence + place
            before = self._sent.setdefault(name, number)
            if before != number:
                yield "Q18", f"message {name} waits as {before} and as {number}"

    def _release(self, batch: Batch, result: Result) -> Iterator[Fact]:
        head, count = batch.head, len(batch)
        due = self.due(head.queue)
        is_right = (
            head.producer == RELEASER and due[:1] == [head.first_sequence] and count <= len(due)
        )
        if not isinstance(result, Appended):
            if is_right:
                yield (
                    "Q21",
                    f"{count} messages from {due[0]} on are due, and not released: {result}",
                )
            return
        if not is_right:
            yield self._why_wrong(head.queue, head.first_sequence, count, due)
            return
        for number, text in zip(due[:count], _texts(batch), strict=True):
            one = self.waiting.pop(number)
            self._note(number, "released")
            if one.text != text:
                yield "Q3", f"message {number} was sent as {one.text} and is released as {text}"

    def _why_wrong(self, queue: int, number: int, count: int, due: list[int]) -> Fact:
        what = f"{count} messages of queue {queue} from {number} on are released at {self._now}"
        one = self.waiting.get(number)
        if one is None:
            return "Q21", f"{what}, and it is {self._gone.get(number, 'unknown')}"
        if one.due >= NEVER:
            return "Q22", f"{what}, and its transaction has not committed"
        if number not in due or len(due) < count:
            return "Q20", f"{what}, and it is due at {one.due}; of the queue {len(due)} are due"
        return "Q20", f"{what}, and {due[0]} comes first"

    # Commands

    def follow_cancel(self, command: Cancel, result: Result) -> Iterator[Fact]:
        """Follow a cancel: delayed messages are taken back."""
        if not isinstance(result, Changed):
            return
        items = zip(command.queues, command.dues, command.numbers, strict=True)
        outcomes = [self._cancel(*item, command.request) for item in items]
        if outcomes != list(result.value):
            yield "Q21", f"{command} gave {result.value} and should give {outcomes}"

    def _cancel(self, queue: int, due: int, number: int, request: int) -> int:
        # Before the due time: a client that took a message back must not hear that it fell due.
        if number in self._taken_back:
            is_repeat = request > 0 and self._taken_back[number] == request
            return CANCELLED if is_repeat else NOT_WAITING
        if due <= self._now:
            return FELL_DUE
        one = self.waiting.get(number)
        if one is None or (one.queue, one.due) != (queue, due) or due >= NEVER:
            return NOT_WAITING
        self._drop([number], "taken back")
        self._taken_back[number] = request
        return CANCELLED

    def follow_carry(self, command: Carry, result: Result) -> Iterator[Fact]:
        """Follow a carry: delayed messages are copied to the end of the log."""
        if not isinstance(result, Changed):
            return
        batch = Batch.decode(command.batch)
        numbers = memoryview(command.numbers).cast("q").tolist()
        moved = 0
        for number, due, text in zip(numbers, batch.delivery_times, _texts(batch), strict=True):
            one = self.waiting.get(number)
            if one is not None and (one.queue, one.due) == (batch.head.queue, due):
                moved += 1
                self.counts["copied"] += 1
                if one.text != text:
                    yield "Q3", f"message {number} was sent as {one.text} and is copied as {text}"
        if moved != result.value:
            yield "Q21", f"{result.value} messages have moved, and {moved} should have"

    def follow_begin(self, command: Begin, result: Result, held_until: HeldUntil) -> Iterator[Fact]:
        """Follow the begin of a transaction."""
        number = command.transaction
        if number in self._ended:
            if isinstance(result, Changed):
                yield "Q22", f"transaction {number} has ended and is open again"
            return
        if number in self.open or not isinstance(result, Changed):
            return
        inputs = tuple(_inputs(command))
        until = _first(inputs, held_until) if inputs else 0
        if until is None:
            yield "Q22", f"transaction {number} is open, and not all of {inputs} are in hand"
        self.open[number] = Open(inputs, until or 0)

    def follow_end(
        self, command: End, result: Result, index: int, held_until: HeldUntil
    ) -> Iterator[Fact | Input]:
        """Follow the end of a transaction. If a hand-off commits, its inputs are yielded too."""
        number, outcome = command.transaction, command.outcome
        if isinstance(result, Refused):
            is_outcome = outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK)
            if is_outcome and (number in self._ended or number in self.open):
                yield "Q22", f"transaction {number} is known, and its end is refused: {result}"
            return
        transaction = self.open.get(number)
        if number in self._ended:
            should = [self._ended[number][0], 0, False]
        elif transaction is None:
            self._remember(number, outcome)
            should = [int(Outcome.ROLLED_BACK), 0, True]
        else:
            count = len(transaction.halves)
            is_held = _first(transaction.inputs, held_until) is not None
            if outcome == Outcome.COMMITTED and not is_held and transaction.inputs:
                outcome = Outcome.FENCED
            should = [int(outcome), count, True]
            if outcome == Outcome.COMMITTED:
                self._commit(number, index)
                yield from transaction.inputs
            else:
                self._roll_back(number, outcome)
        if not isinstance(result, Changed) or list(result.value) != should:
            yield "Q22", f"{command} gave {result} and should give {should}"

    def _commit(self, number: int, index: int) -> None:
        """Its messages fall due now, under numbers of this record."""
        # Commits in one record share the numbers of the record: the second goes on after the first.
        at, given = self._committed
        given = given if at == index else 0
        for half in self.open[number].halves:
            one = self.waiting.pop(half, None)
            if one is not None:
                self._note(half, "committed")
                one.due = self._now
                self.waiting[index << POSITION_BITS | given] = one
                given += 1
        self._committed = index, given
        del self.open[number]
        self._remember(number, Outcome.COMMITTED)

    def _roll_back(self, number: int, outcome: int) -> None:
        word = "fenced" if outcome == Outcome.FENCED else "rolled back"
        self._drop(self.open.pop(number).halves, word)
        self._remember(number, outcome)

    def _remember(self, number: int, outcome: int) -> None:
        self._ended[number] = (int(outcome), self._now)
        while self._ended[next(iter(self._ended))][1] < self._now - ENDED_MS_MAX:
            del self._ended[next(iter(self._ended))]

    def drop_queues(self, queues: set[int]) -> None:
        """Forget the messages of these queues, whose topic is gone."""
        self._drop([n for n, one in self.waiting.items() if one.queue in queues], "dropped")
        self._sent = {name: at for name, at in self._sent.items() if name[0] not in queues}

    def _drop(self, numbers: Sequence[int], word: str) -> None:
        for number in numbers:
            if self.waiting.pop(number, None) is not None:
                self._note(number, word)

    def _note(self, number: int, word: str) -> None:
        self._gone[number] = word
        self.counts[word] += 1

    # The machine's state

    def compare(self, count: int, transactions: dict[int, int]) -> Iterator[Fact]:
        """Compare the number of waiting messages, and of each open transaction's messages."""
        if count != len(self.waiting):
            yield "Q21", f"{count} messages wait, and {len(self.waiting)} should"
        known = {number: len(one.halves) for number, one in self.open.items()}
        if transactions != known:
            yield "Q22", f"transactions {transactions} are open, and {known} should be"


def _texts(batch: Batch) -> Iterator[tuple[bytes, str | None, str | None]]:
    for place, (body, key) in enumerate(zip(batch.bodies, batch.keys, strict=True)):
        yield bytes(body), key, batch.tag(place)


def _inputs(command: Begin) -> Iterator[Input]:
    for each in command.inputs:
        messages = span(each.base, int.from_bytes(each.bits, "little"))
        if messages is not None:
            yield Input(each.number, each.consumer, each.token, tuple(messages.offsets()))


def _first(inputs: Sequence[Input], held_until: HeldUntil) -> int | None:
    """When the first lease of these inputs runs out; None: not all are in hand."""
    times = [held_until(each) for each in inputs]
    held = [until for until in times if until is not None]
    return min(held) if held and len(held) == len(times) else None
