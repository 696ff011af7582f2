"""Producers of messages that are stored before they may be seen: delayed ones, and transactions.

| client | does |
|---|---|
| a producer | sends messages with delays, takes some back; opens transactions, and commits, rolls |
| | back or leaves them; sends some outcomes twice, or the other outcome, too |
| a decider | ends transactions that are open for a while, save for some that stay undecided for |
| | ever; is asked meanwhile about all open ones, by a check-back that knows no outcome |
| a reader | when all is over: leaves some transactions open, and ends one of them as soon as a |
| | check-back is asked about it; which transactions are open, that each is asked about, and what |
| | stands in the queues |

Delays are short, so that all fall due in time. The form of the history:
`raftmq.checkers.pop.withheld_calls`.

Invariants:
- A call in doubt after an error is `unknown`; so is each failed half message that the broker did
  not refuse.

Sources: RocketMQ's timer and transaction issues, for what clients do at the wrong moment.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from random import Random

import trio

from raftmq.batch import queue_of
from raftmq.chaos.workloads.popping import tag_of, written
from raftmq.checkers import Report, WithheldRules, check_withheld
from raftmq.checkers.history import History, Recorder, Value
from raftmq.checkers.pop.withheld_calls import (
    CANCEL,
    COMMIT,
    DELAY,
    HALF,
    OPEN,
    ROLLBACK,
    Cancelling,
    begin_found,
)
from raftmq.client import Client, Producer, Receipt
from raftmq.client.produce.transactions import OpenTransaction, Transaction
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

SHOP = "shop"
"""The producer group."""
THINK_SECONDS = 0.25
"""Between two things that a producer does, on average."""
DELAY_SECONDS = (0.05, 0.4, 1.0, 3.0, 6.0)
"""How long messages are delayed at the most."""
CANCEL_SHARE = 0.35
"""Share of delayed messages that a client cancels, soon or a little too late."""
SEND_SECONDS = (0.5, 2.0, 6.0)
"""Timeouts of sends."""
END_SECONDS = 3.0
"""Timeout of endings and cancellations."""
LEFT_SECONDS = 2.5
"""A transaction that is open for longer was left by its producer."""
LOOK_SECONDS = 1.0
"""Between two looks of the decider."""
ASKED_SECONDS = 1.0
"""Age of transactions that a checker is asked about in the end."""
UNDECIDED_EVERY = 7
"""One in this many transactions is never ended by the decider."""
KEYS = 20
"""Different keys."""
BEHIND = 4
"""Transactions that the reader leaves open in one queue. The second one is ended before the end
that its check-back says arrives; the others must be asked about in the same round."""


class Withholding:
    """State that all clients of a run share."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        topic: str,
        queues: int,
        queue_name: Callable[[int], str],
        body_of: Callable[[int], bytes],
        number_of: Callable[[bytes], int],
        now_ms: Callable[[], int],
        counts: Counter[str],
    ) -> None:
        """`now_ms` is the clients' wall clock; for the others see `Popping`."""
        self._recorder = recorder
        self._topic = topic
        self._queues = queues
        self._queue_name = queue_name
        self._body_of = body_of
        self._number_of = number_of
        self._now_ms = now_ms
        self._counts = counts
        # When the last delayed message is due, by trio's clock.
        self._due_at = 0.0
        # Queue → messages that must be there in the end, by the answers so far.
        self._stored: dict[int, set[Value]] = {}
        # Transaction → its messages that are stored, with their queues.
        self._halves: dict[str, list[tuple[int, Value]]] = {}
        # Held while the decider ends a transaction.
        self._deciding = trio.Lock()
        self.asked: dict[str, float] = {}
        """Transaction → when a process that checks back was last asked about it, by trio's
        clock."""
        self.checks_since = inf
        """Time from which the decider's process checks back; infinity: it does not."""
        self.passed_over: list[str] = []
        """Transactions that a check-back was not asked about in a round, in words."""
        self.behind = 0
        """Number of transactions for which that was checked."""
        self.is_draining = False
        """True: the decider ends."""
        self.is_read = False
        """True if the reader has found all that must be there."""

    # Producers

    async def produce(
        self, mq: Client, process: int, random: Random, is_sending: Callable[[], bool]
    ) -> None:
        """Be one producer.

        Args:
            mq: its connection.
            process: its number in the history, never used before.
            random: for all that it chooses.
            is_sending: False: it is time to end.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        async with mq.producer(self._topic) as producer, trio.open_nursery() as nursery:
            while is_sending():
                match random.randrange(5):
                    case 0 | 1:
                        nursery.start_soon(self._delay_one, producer, process, random)
                    case 2:
                        nursery.start_soon(self._delay_many, producer, process, random)
                    case _:
                        nursery.start_soon(self._transact, mq, producer, process, random)
                await trio.sleep(random.expovariate(1 / THINK_SECONDS))

    def _message(self, random: Random) -> tuple[int, str | None, int]:
        """A number, a key or none, and the queue that it goes to."""
        number = self._recorder.unique_value()
        if random.random() < 0.5:
            key = f"k{random.randrange(KEYS)}"
            return number, key, queue_of(key, self._queues)
        return number, None, random.randrange(self._queues)

    def _draw_due(self, random: Random) -> int:
        """When a message is to be delivered, milliseconds since 1970."""
        seconds = random.uniform(0, random.choice(DELAY_SECONDS))
        self._due_at = max(self._due_at, trio.current_time() + seconds)
        return self._now_ms() + round(1000 * seconds)

    def _begin_delay(self, process: int, number: int, key: str | None, queue: int, due: int) -> int:
        value = (written(number, key), due, due - self._now_ms())
        return self._recorder.invoke(process, DELAY, self._queue_name(queue), value)

    async def _delay_one(self, producer: Producer, process: int, random: Random) -> None:
        number, key, queue = self._message(random)
        due = self._draw_due(random)
        operation = self._begin_delay(process, number, key, queue, due)
        try:
            receipt = await producer.send(
                self._body_of(number),
                key=key,
                tag=tag_of(number),
                queue=None if key else queue,
                delay=_date(due),
                timeout=random.choice(SEND_SECONDS),
            )
        except RaftmqError as error:
            self._failed(operation, error)
            return
        self._delayed(operation, queue, written(number, key), receipt)
        if random.random() < CANCEL_SHARE and receipt.offset is None and receipt.id is not None:
            left = (due - self._now_ms()) / 1000
            await trio.sleep(random.uniform(0, 1.2 * max(left, 0)))
            await self._cancel(producer, process, queue, written(number, key), receipt.id)

    async def _delay_many(self, producer: Producer, process: int, random: Random) -> None:
        number, key, queue = self._message(random)
        numbers = [number, *(self._recorder.unique_value() for _ in range(random.randint(1, 5)))]
        dues = [self._draw_due(random) for _ in numbers]
        operations = [
            self._begin_delay(process, one, key, queue, due)
            for one, due in zip(numbers, dues, strict=True)
        ]
        try:
            sent = await producer.send_many(
                bodies=[self._body_of(one) for one in numbers],
                keys=[key] * len(numbers) if key else None,
                tags=[tag_of(one) for one in numbers],
                queue=None if key else queue,
                delay=[_date(due) for due in dues],
                timeout=random.choice(SEND_SECONDS),
                check=False,
            )
        except RaftmqError as error:
            for operation in operations:
                self._failed(operation, error)
            return
        for operation, one, outcome in zip(operations, numbers, sent, strict=True):
            if isinstance(outcome, RaftmqError):
                self._failed(operation, outcome)
            else:
                self._delayed(operation, queue, written(one, key), outcome)

    def _delayed(self, operation: int, queue: int, value: Value, receipt: Receipt) -> None:
        self._counts["delayed"] += 1
        self._stored.setdefault(queue, set()).add(value)
        self._recorder.ok(operation, offset=receipt.offset)

    def _failed(self, operation: int, error: RaftmqError) -> None:
        match error:
            case Unavailable() | Rejected():
                self._counts["withheld refused"] += 1
                self._recorder.fail(operation)
            case _:
                self._counts["withheld in doubt"] += 1
                self._recorder.unknown(operation)

    async def _cancel(
        self, producer: Producer, process: int, queue: int, value: Value, name: str
    ) -> None:
        operation = self._recorder.invoke(process, CANCEL, self._queue_name(queue), value)
        # Until the outcome is known, the message need not be there.
        self._stored[queue].discard(value)
        try:
            is_mine = await producer.cancel(name, timeout=END_SECONDS)
        except Rejected as error:
            if error.reason is not Reason.FELL_DUE:
                raise
            self._counts["cancelled too late"] += 1
            self._stored[queue].add(value)
            self._recorder.ok(operation, value=(value, int(Cancelling.FELL_DUE)))
        except Unavailable:
            self._stored[queue].add(value)
            self._recorder.fail(operation)
        except OutcomeUnknown:
            self._recorder.unknown(operation)
        else:
            self._counts["cancelled"] += 1
            result = Cancelling.TAKEN_BACK if is_mine else Cancelling.NOT_WAITING
            self._recorder.ok(operation, value=(value, int(result)))

    # Transactions

    async def _transact(self, mq: Client, producer: Producer, process: int, random: Random) -> None:
        name = f"tx{self._recorder.unique_value()}"
        transaction = producer.transaction(
            group=SHOP, note=name, timeout=random.choice(SEND_SECONDS)
        )
        is_whole = await self._send_halves(transaction, name, process, random)
        if transaction.id is None:
            return
        await trio.sleep(random.uniform(0, 1.0))
        ending = random.choices(["commit", "roll back", "leave"], [5, 2, 3])[0]
        if ending == "leave":
            return
        is_commit = is_whole and ending == "commit"

        async def end() -> None:
            await (transaction.commit() if is_commit else transaction.rollback())

        await self._end(name, process, end, is_commit=is_commit)
        if random.random() < 0.2:
            await self._resolve(mq, process, transaction.id, name, is_commit=random.random() < 0.5)

    async def _send_halves(
        self, transaction: Transaction, name: str, process: int, random: Random
    ) -> bool:
        """True if all halves are surely stored. All go to one queue: one group must hold them."""
        _, key, queue = self._message(random)
        for _ in range(random.randint(1, 4)):
            number = self._recorder.unique_value()
            value = written(number, key)
            operation = self._recorder.invoke(process, HALF, self._queue_name(queue), (value, name))
            body, named = self._body_of(number), None if key else queue
            try:
                await transaction.send(body, key=key, tag=tag_of(number), queue=named)
            except Rejected:
                # Another client has ended the transaction meanwhile.
                self._recorder.fail(operation)
                return False
            except RaftmqError:
                self._counts["withheld in doubt"] += 1
                self._recorder.unknown(operation)
                return False
            self._counts["halves"] += 1
            self._halves.setdefault(name, []).append((queue, value))
            self._recorder.ok(operation)
        return True

    async def _end(
        self, name: str, process: int, end: Callable[[], Awaitable[object]], *, is_commit: bool
    ) -> None:
        """End a transaction, and write down which outcome holds."""
        function = COMMIT if is_commit else ROLLBACK
        operation = self._recorder.invoke(process, function, None, name)
        outcome = is_commit
        try:
            await end()
        except Rejected as error:
            if error.reason is not Reason.TRANSACTION_ENDED:
                self._counts[f"ending refused: {error.reason.value}"] += 1
                self._recorder.fail(operation)
                return
            outcome = not is_commit
            self._counts["ended before"] += 1
        except Unavailable:
            self._recorder.fail(operation)
            return
        except OutcomeUnknown:
            self._recorder.unknown(operation)
            return
        self._counts["committed" if outcome else "rolled back"] += 1
        self._recorder.ok(operation, value=(name, int(outcome)))
        if outcome:
            for queue, value in self._halves.get(name, []):
                self._stored.setdefault(queue, set()).add(value)

    async def _resolve(
        self, mq: Client, process: int, transaction_id: str, name: str, *, is_commit: bool
    ) -> None:
        async def end() -> None:
            await mq.end_transaction(transaction_id, commit=is_commit, timeout=END_SECONDS)

        async with self._deciding:
            if not self.is_draining:
                await self._end(name, process, end, is_commit=is_commit)

    async def decide(self, mq: Client, process: int, random: Random) -> None:
        """End what producers left open, until all is over.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        first_seen: dict[str, float] = {}
        async with mq.check_back(SHOP, self._note_asked, after=0.0, every=LOOK_SECONDS / 2):
            self.checks_since = trio.current_time()
            try:
                while not self.is_draining:
                    await trio.sleep(random.expovariate(1 / LOOK_SECONDS))
                    # A partition group without a leader must not end the check-back of the others.
                    with suppress(Unavailable):
                        await self._decide(mq, process, first_seen)
            finally:
                self.checks_since = inf

    def _note_asked(self, transaction: OpenTransaction) -> None:
        """Note the question; the outcome of the transaction is not known here."""
        self.asked[transaction.note] = trio.current_time()

    async def _decide(self, mq: Client, process: int, first_seen: dict[str, float]) -> None:
        now = trio.current_time()
        for transaction in await mq.open_transactions(SHOP):
            name = transaction.note
            since = first_seen.setdefault(name, now)
            number = int(name.removeprefix("tx"))
            if now - since > LEFT_SECONDS and number % UNDECIDED_EVERY:
                is_commit = number % 3 > 0
                await self._resolve(mq, process, transaction.id, name, is_commit=is_commit)
                self._counts["decided"] += 1

    # The end

    async def _be_asked(self, mq: Client, names: set[str]) -> None:
        """Wait until a checker was asked about all these transactions, also after wrong clocks."""
        left, is_done = set(names), trio.Event()

        def check(transaction: OpenTransaction) -> None:
            left.discard(transaction.note)
            if not left:
                is_done.set()

        async with mq.check_back(SHOP, check, after=ASKED_SECONDS, every=LOOK_SECONDS / 2):
            while left:
                with trio.move_on_after(LOOK_SECONDS):
                    await is_done.wait()
                # An ending that was delayed on the network may have arrived since the list.
                left &= {one.note for one in await mq.open_transactions(SHOP)}
        self._counts["asked about"] = len(names)

    async def _leave_open(self, mq: Client, process: int) -> list[str]:
        """Open transactions in one queue, and end none; returns the surely open ones, in order."""
        names = []
        async with mq.producer(self._topic) as producer:
            for _ in range(BEHIND):
                name = f"tx{self._recorder.unique_value()}"
                transaction = producer.transaction(group=SHOP, note=name, timeout=END_SECONDS)
                # The same draws, and so the same queue, each time.
                if await self._send_halves(transaction, name, process, Random("one queue")):
                    names.append(name)
        return names

    async def _be_overtaken(self, mq: Client, process: int) -> None:
        """Check back more slowly than another process, so that an end is refused: the check-back
        goes on with the transactions behind that one."""
        names = await self._leave_open(mq, process)
        if len(names) < BEHIND:
            return
        first, overtaken, *behind = names
        asked: Counter[str] = Counter()
        is_done = trio.Event()

        async def check(transaction: OpenTransaction) -> bool | None:
            asked[transaction.note] += 1
            late = [name for name in behind if not asked[name]]
            if asked[first] > 1 and late:
                # A round begins when the one before has asked about its whole list.
                self.passed_over.append(
                    f"a check-back was asked about {first!r} again, and not yet about {late}, "
                    f"which were open, too: the end of {overtaken!r}, between them, was refused"
                )
            if asked[first] > 1 or not late:
                is_done.set()
            is_ended = False

            async def end() -> None:
                nonlocal is_ended
                await mq.end_transaction(transaction.id, commit=False, timeout=END_SECONDS)
                is_ended = True

            if transaction.note == overtaken:
                await self._end(overtaken, process, end, is_commit=False)
            # The commit of a transaction that was rolled back is refused.
            return True if is_ended else None

        self.behind += len(behind)
        async with mq.check_back(SHOP, check, after=0.0, every=LOOK_SECONDS / 2):
            await is_done.wait()

    async def read_all(self, mq: Client, process: int) -> None:
        """When all have fallen due: list what is open, and read the queues from their start until
        all that must be there was found.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        await trio.sleep(max(self._due_at - trio.current_time(), 0))
        async with self._deciding:
            # A decision under way reaches the queues before the list, and no decision follows.
            assert self.is_draining
        await self._be_overtaken(mq, process)
        listing = self._recorder.invoke(process, OPEN)
        opened = await mq.open_transactions(SHOP)
        self._recorder.ok_many(listing, [(None, one.note, None) for one in opened])
        self._counts["undecided"] = len(opened)
        await self._be_asked(mq, {one.note for one in opened})
        ends = await mq.admin.find_offsets(self._topic, "latest")
        starts = await mq.admin.find_offsets(self._topic, "earliest")
        # The reader does not wait for messages that retention may have dropped.
        missing = {
            (queue, value)
            for queue, values in self._stored.items()
            for value in (values if not starts[queue] else ())
        }
        async with mq.consumer(self._topic, on_trimmed="earliest") as consumer:
            while missing or any(consumer.position[queue] < ends[queue] for queue in ends):
                operation = begin_found(self._recorder, process)
                try:
                    messages = await consumer.fetch(1000, wait=0.5)
                except Unavailable:
                    self._recorder.fail(operation)
                    continue
                rows = []
                for message in messages:
                    value = written(self._number_of(message.body), message.key)
                    missing.discard((message.queue, value))
                    row = (value, message.timestamp)
                    rows.append((self._queue_name(message.queue), row, message.offset))
                self._recorder.ok_many(operation, rows)
        self.is_read = True


def judge_withheld(
    history: History, *, clock_ms_max: int | None, is_drained: bool, retains_all: bool = True
) -> list[Report]:
    """Judge what this workload did.

    Args:
        history: what clients did.
        clock_ms_max: see `WithheldRules`.
        is_drained: False: the reader did not find all that must be there, which was reported as
            such.
        retains_all: see `WithheldRules`.
    """
    rules = WithheldRules(clock_ms_max=clock_ms_max, is_drained=is_drained, retains_all=retains_all)
    report = check_withheld(history, rules)
    return [report] if is_drained or report.anomalies else []


def _date(milliseconds: int) -> datetime:
    """A time since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
