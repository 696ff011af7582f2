"""Consumers that hand off: they pop inputs, and send an output of each in the transaction that
acknowledges them.

Some roll back, some leave the transaction open, some take longer than their leases run, some commit
twice. Some calls are cancelled in the middle. After a commit in doubt some consumers give the
inputs back instead of asking again. A reader finds the outputs in the end. The form of the history:
`raftmq.checkers.pop.hand_off`.

Invariants:
- An output stands in the queue of the output topic that has the number of its input's queue: both
  lie in one partition group, as the topics were created beside each other.

Sources: read-process-write loops of Kafka's transactions, and the bugs that Jepsen found in them.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import trio

from raftmq.chaos.workloads.cancelling import Cancelled, Impatience
from raftmq.chaos.workloads.popping import got_of, pop_written
from raftmq.checkers.history import Recorder
from raftmq.checkers.pop.calls import Got
from raftmq.checkers.pop.hand_off import HAND_OFF, MADE
from raftmq.client import Client, PopConsumer, PoppedMessages, Producer
from raftmq.client.pop.popped import PoppedMessage
from raftmq.client.produce.transactions import Transaction
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

GROUP = "h"
"""The consumer group that takes the inputs."""
OUTPUTS = "out"
"""The topic of the outputs."""
INVISIBLE_SECONDS = (1.0, 3.0)
"""Durations of leases: until then an input belongs to one consumer."""
SCHEDULE_SECONDS = (0.2,)
ATTEMPTS_MAX = 1000
"""No input becomes a dead letter."""
CALL_SECONDS = 2.0
"""Timeout of each call of a transaction."""
COMMITS_MAX = 2
"""A commit without an answer is sent again, to learn its outcome."""
GONE_BACK_SHARE = 0.3
"""Share of the consumers with a commit in doubt that give the inputs back."""
ROLLED_BACK = frozenset({Reason.FENCED, Reason.TRANSACTION_ENDED})
"""Answers to a commit by which its outputs never become visible."""


class HandOffs:
    """State that all clients of a run share."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        topic: str,
        queues: int,
        number_of: Callable[[bytes], int],
        counts: Counter[str],
    ) -> None:
        self._recorder = recorder
        self._topic = topic
        self._queues = queues
        self._number_of = number_of
        self._counts = counts
        self.is_draining = False
        """True: consumers commit every hand-off."""
        self.is_read = False
        """True: the outputs were read, and all clients end."""

    async def prepare(self, mq: Client) -> None:
        """Create the topic of the outputs, and the group."""
        await mq.admin.create_topic(OUTPUTS, queues=self._queues, beside=self._topic)
        await mq.admin.create_consumer_group(
            GROUP, schedule=SCHEDULE_SECONDS, attempts_max=ATTEMPTS_MAX
        )

    async def work(self, mq: Client, process: int, random: Random) -> None:
        """Be one consumer, until all is done.

        Args:
            mq: its connection.
            process: its number in the history, never used before.
            random: for all that it chooses.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        invisible = random.choice(INVISIBLE_SECONDS)
        impatience = Impatience(Random(random.getrandbits(64)), self._counts)
        async with (
            mq.consumer(self._topic, group=GROUP, mode="pop", invisible=invisible) as consumer,
            mq.producer(OUTPUTS) as producer,
        ):
            while not self.is_read:
                impatience.is_over = self.is_draining
                try:
                    messages = await self._pop(consumer, process, random, impatience)
                except Cancelled:
                    continue
                if messages is None:
                    continue
                for part in messages.by_partition_group():
                    await self._hand_off(mq, producer, part, process, random, invisible, impatience)

    async def _pop(
        self, consumer: PopConsumer, process: int, random: Random, impatience: Impatience
    ) -> PoppedMessages | None:
        def got(message: PoppedMessage) -> Got:
            queue = f"{self._topic}/{message.queue}"
            return got_of(message, queue, self._number_of(message.body))

        count = random.choice([1, 5, 20])
        messages = await pop_written(
            consumer, count, self._recorder, process, GROUP, got, impatience
        )
        self._counts["inputs"] += len(messages or ())
        return messages

    async def _hand_off(
        self,
        mq: Client,
        producer: Producer,
        part: PoppedMessages,
        process: int,
        random: Random,
        invisible: float,
        impatience: Impatience,
    ) -> None:
        name = self._recorder.unique_value()
        named: list[tuple[str | None, tuple[int, int]]] = [
            (f"{self._topic}/{each.queue}", (self._number_of(each.body), name)) for each in part
        ]
        transaction = producer.transaction(acks=part, note=str(name), timeout=CALL_SECONDS)
        operation = self._recorder.invoke_many(process, HAND_OFF, named)
        if not await self._send(transaction, part, name, random, impatience):
            # It can only be rolled back: by the call below, or by itself when the leases end. Some
            # applications note the failure and go on: their commit has to be refused.
            if name % 2 and await self._is_committed(transaction):
                self._recorder.ok(operation)
                return
            await self._roll_back(transaction)
            self._recorder.fail(operation)
            return
        luck = 1.0 if self.is_draining else random.random()
        if luck < 0.08:
            await self._roll_back(transaction)
            self._recorder.fail(operation)
        elif luck < 0.16:
            # Left open: no client will ever commit it.
            self._counts["hand-offs left"] += 1
            self._recorder.fail(operation)
        else:
            if luck < 0.22:
                await trio.sleep(random.uniform(0.5, 1.3) * invisible)
            if await self._commit(mq, transaction, operation, random, impatience):
                return
            # The commit may have acknowledged the inputs, which are then refused as fenced.
            self._counts["hand-offs gone back"] += 1
            with suppress(Unavailable, OutcomeUnknown):
                await part.give_back(timeout=CALL_SECONDS)

    async def _send(
        self,
        transaction: Transaction,
        part: PoppedMessages,
        name: int,
        random: Random,
        impatience: Impatience,
    ) -> bool:
        """Send an output of each input; True if all outputs are stored."""
        bodies: dict[int, list[bytes]] = {}
        for each in part:
            bodies.setdefault(each.queue, []).append(b"%d %d" % (self._number_of(each.body), name))
        try:
            for queue, some in bodies.items():
                await impatience.call(partial(transaction.send_many, some, queue=queue))
                await trio.sleep(random.expovariate(1 / 0.02))
        except Rejected as error:
            if error.reason not in ROLLED_BACK:
                raise
            self._counts["hand-offs fenced"] += 1
            return False
        except (Unavailable, OutcomeUnknown, Cancelled):
            self._counts["hand-offs in doubt"] += 1
            return False
        return True

    async def _roll_back(self, transaction: Transaction) -> None:
        try:
            await transaction.rollback()
        except Rejected as error:
            if error.reason not in {*ROLLED_BACK, Reason.UNKNOWN_TRANSACTION}:
                raise
        except RaftmqError:
            self._counts["hand-offs in doubt"] += 1
        else:
            self._counts["hand-offs rolled back"] += 1

    async def _is_committed(self, transaction: Transaction) -> bool:
        """True if a commit without all outputs is taken."""
        try:
            await transaction.commit()
        except RaftmqError:
            return False
        return True

    async def _commit(
        self,
        mq: Client,
        transaction: Transaction,
        operation: int,
        random: Random,
        impatience: Impatience,
    ) -> bool:
        """True if the hand-off is over; False: it is in doubt, and its inputs are given back."""
        again = random.random() < 0.1
        for tried in range(COMMITS_MAX):
            try:
                await impatience.call(transaction.commit)
            except Rejected as error:
                if error.reason not in ROLLED_BACK:
                    raise
                self._counts["hand-offs fenced"] += 1
                self._recorder.fail(operation)
            except Unavailable:
                # This call changed nothing, but the call before it may have committed.
                end = self._recorder.unknown if tried else self._recorder.fail
                end(operation)
            except (OutcomeUnknown, Cancelled):
                self._counts["hand-offs in doubt"] += 1
                if not self.is_draining and random.random() < GONE_BACK_SHARE:
                    break
                continue
            else:
                self._counts["handed off"] += 1
                self._recorder.ok(operation)
                if again and transaction.id is not None:
                    with suppress(Unavailable, OutcomeUnknown):
                        await mq.end_transaction(transaction.id, commit=True, timeout=CALL_SECONDS)
            return True
        self._recorder.unknown(operation)
        return False

    async def read_all(self, mq: Client, process: int) -> None:
        """When no input is left: read all outputs.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        ends = await mq.admin.find_offsets(OUTPUTS, "latest")
        rows: list[tuple[str | None, tuple[int, int], int | None]] = []
        async with mq.consumer(OUTPUTS) as consumer:
            while any(consumer.position[queue] < end for queue, end in ends.items()):
                messages = await consumer.fetch(1000, wait=0.5)
                for queue, body, offset in zip(
                    messages.queues, messages.bodies, messages.offsets, strict=True
                ):
                    value, _, name = body.partition(b" ")
                    rows.append((f"{OUTPUTS}/{queue}", (int(value), int(name)), offset))
        operation = self._recorder.invoke(process, MADE)
        self._recorder.ok_many(operation, rows)
        self._counts["outputs"] = len(rows)
        self.is_read = True
