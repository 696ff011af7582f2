"""Calls that overlap, on a topic that gets more queues.

| client | does |
|---|---|
| a shopper | sends two messages of one transaction at once, to the newest queue, of which its |
| | own client has not heard; commits, or rolls back |
| a leaver | closes its producer while other tasks of it send many messages, or one to the newest |
| | queue |
| a reader | when all is over: lists which transactions are open, and what stands in the queues |

Messages and transactions have the same form in the history as those of
`raftmq.chaos.workloads.withholding`, and are judged by `check_withheld` and `check_pop`. A call
without an answer in time is given up, so that the run goes on: `Deadlines` judges it.

Invariants:
- A message is a number. A message that a closed producer has not written is `fail`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import trio

from raftmq.chaos.workloads.popping import tag_of
from raftmq.chaos.workloads.topics import GROWING, Growing
from raftmq.checkers.history import Recorder
from raftmq.checkers.pop.withheld_calls import COMMIT, HALF, OPEN, ROLLBACK, begin_found
from raftmq.client import Client, Producer
from raftmq.client.produce.transactions import Transaction
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

SHOP = "pair"
"""The producer group."""
HALVES = 2
"""Messages of a transaction that are sent at once."""
THINK_SECONDS = 0.5
"""Between two transactions, on average."""
LEAVE_SECONDS = 1.0
"""Between two producers that are closed, on average."""
COMMIT_SHARE = 0.8
"""Share of the whole transactions that are committed."""
MANY = 24
"""Messages of a `send_many`, each a batch of its own: encoding them lets other tasks run."""
CHECKPOINTS_MAX = 4
"""Other tasks run this often, at the most, before the producer is closed."""
CALL_SECONDS = 3.0
GIVEN_UP_SECONDS = CALL_SECONDS + 1.0
"""Longest wait for the calls of a producer that was closed."""


class Overlaps:
    """State that all clients of a run share."""

    def __init__(
        self,
        recorder: Recorder,
        growing: Growing,
        *,
        body_of: Callable[[int], bytes],
        number_of: Callable[[bytes], int],
        counts: Counter[str],
    ) -> None:
        self._recorder = recorder
        self._growing = growing
        self._body_of = body_of
        self._number_of = number_of
        self._counts = counts
        self.is_read = False
        """True: the reader has read the queues to their ends."""

    # Transactions

    async def shop(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Be the shopper; see `Growing.produce`."""
        async with mq.producer(GROWING) as producer:
            while is_wanted():
                await self._transact(producer, process, random)
                await trio.sleep(random.expovariate(1 / THINK_SECONDS))

    async def _transact(self, producer: Producer, process: int, random: Random) -> None:
        name = f"pair{self._recorder.unique_value()}"
        transaction = producer.transaction(group=SHOP, note=name, timeout=CALL_SECONDS)
        stored: list[int] = []
        queue = self._growing.queues - 1
        async with trio.open_nursery() as nursery:
            for _ in range(HALVES):
                nursery.start_soon(self._send_half, transaction, name, process, queue, stored)
        if transaction.id is None:
            return
        if len(stored) == HALVES and random.random() < COMMIT_SHARE:
            await self._end(COMMIT, name, process, transaction.commit)
        else:
            await self._end(ROLLBACK, name, process, transaction.rollback)

    async def _send_half(
        self, transaction: Transaction, name: str, process: int, queue: int, stored: list[int]
    ) -> None:
        number = self._recorder.unique_value()
        key = f"{GROWING}/{queue}"
        operation = self._recorder.invoke(process, HALF, key, (number, name))
        try:
            await transaction.send(self._body_of(number), tag=tag_of(number), queue=queue)
        except Rejected:
            # The other half message failed.
            self._recorder.fail(operation)
        except RaftmqError:
            self._recorder.unknown(operation)
        else:
            stored.append(number)
            self._recorder.ok(operation)

    async def _end(
        self, function: str, name: str, process: int, end: Callable[[], Awaitable[None]]
    ) -> None:
        operation = self._recorder.invoke(process, function, None, name)
        outcome = function == COMMIT
        try:
            await end()
        except Rejected as error:
            if error.reason is not Reason.TRANSACTION_ENDED:
                raise
            outcome = not outcome
        except Unavailable:
            self._recorder.fail(operation)
            return
        except OutcomeUnknown:
            self._recorder.unknown(operation)
            return
        self._counts["pairs committed"] += outcome
        self._recorder.ok(operation, value=(name, int(outcome)))

    # Producers that are closed

    async def leave(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Be the leaver; see `Growing.produce`."""
        while is_wanted():
            await self._close_early(mq, process, random)
            await trio.sleep(random.expovariate(1 / LEAVE_SECONDS))

    async def _close_early(self, mq: Client, process: int, random: Random) -> None:
        queues = self._growing.queues
        async with mq.producer(GROWING, batch_messages=1) as producer:
            with trio.move_on_after(GIVEN_UP_SECONDS):
                async with trio.open_nursery() as nursery:
                    queue = random.randrange(queues)
                    nursery.start_soon(self._send_many, producer, process, queue)
                    nursery.start_soon(self._send_one, producer, process, queues - 1)
                    for _ in range(random.randint(0, CHECKPOINTS_MAX)):
                        await trio.lowlevel.checkpoint()
                    await self._close(producer)
        self._counts["producers closed early"] += 1

    async def _close(self, producer: Producer) -> None:
        try:
            await producer.aclose(timeout=CALL_SECONDS)
        except (Unavailable, OutcomeUnknown):
            self._counts["producers closed in doubt"] += 1

    async def _send_many(self, producer: Producer, process: int, queue: int) -> None:
        numbers = [self._recorder.unique_value() for _ in range(MANY)]
        operations = [self._begin(process, number, queue) for number in numbers]
        try:
            sent = await producer.send_many(
                bodies=[self._body_of(number) for number in numbers],
                tags=[tag_of(number) for number in numbers],
                queue=queue,
                timeout=CALL_SECONDS,
                check=False,
            )
        except RaftmqError as error:
            for operation in operations:
                self._failed(operation, error)
            return
        for operation, outcome in zip(operations, sent, strict=True):
            if isinstance(outcome, RaftmqError):
                self._failed(operation, outcome)
            else:
                self._recorder.ok(operation, offset=outcome.offset)

    async def _send_one(self, producer: Producer, process: int, queue: int) -> None:
        number = self._recorder.unique_value()
        operation = self._begin(process, number, queue)
        try:
            receipt = await producer.send(
                self._body_of(number), tag=tag_of(number), queue=queue, timeout=CALL_SECONDS
            )
        except RaftmqError as error:
            self._failed(operation, error)
        else:
            self._recorder.ok(operation, offset=receipt.offset)

    def _begin(self, process: int, number: int, queue: int) -> int:
        return self._recorder.invoke(process, "send", f"{GROWING}/{queue}", number)

    def _failed(self, operation: int, error: RaftmqError) -> None:
        if isinstance(error, OutcomeUnknown):
            self._recorder.unknown(operation)
            return
        self._counts["refused by a closed producer"] += "closed" in str(error)
        self._recorder.fail(operation)

    # The end

    async def read_all(self, mq: Client, process: int) -> None:
        """List the open transactions, and read the queues from their start to their ends.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        listing = self._recorder.invoke(process, OPEN)
        opened = await mq.open_transactions(SHOP)
        self._recorder.ok_many(listing, [(None, one.note, None) for one in opened])
        ends = await mq.admin.find_offsets(GROWING, "latest")
        async with mq.consumer(GROWING) as consumer:
            while any(consumer.position.get(queue, 0) < end for queue, end in ends.items()):
                operation = begin_found(self._recorder, process)
                try:
                    messages = await consumer.fetch(1000, wait=0.5)
                except Unavailable:
                    self._recorder.fail(operation)
                    continue
                rows = [
                    (
                        f"{GROWING}/{message.queue}",
                        (self._number_of(message.body), message.timestamp),
                        message.offset,
                    )
                    for message in messages
                ]
                self._recorder.ok_many(operation, rows)
        self.is_read = True
