"""Registers: the committed offsets of consumer groups, read and written by many at once.

A broker promises that commits and questions for committed offsets are linearizable. Several clients
commit different offsets of one queue in one consumer group, in no order, and ask for the committed
offset. Each written value is unique in its register, so that each answer names one write.

Invariants:
- A write that did not end with an answer is `unknown`, or `fail` if the client promised that
  nothing happened (`Unavailable`).
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from raftmq.checkers.history import Recorder
from raftmq.client import Client, Consumer
from raftmq.errors import OutcomeUnknown, RaftmqError, Unavailable

TOPIC = "r"
QUEUES = 3
MESSAGES = 4000
"""Messages in each queue: offsets beyond its end cannot be committed."""
GROUPS = 3
"""Consumer groups; each has one register for each queue."""
THINK_SECONDS = 0.15
"""Between two operations of a client, on average."""
CLIENTS = 4
"""Clients that work at the same time."""


class Registers:
    """State that all clients of a run share."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Acknowledged, reads among them, unknown and so on."""

    async def prepare(self, mq: Client) -> None:
        """Create the topic and fill it."""
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        async with mq.producer(TOPIC) as producer:
            for queue in range(QUEUES):
                await producer.send_many(bodies=[b""] * MESSAGES, queue=queue)

    async def work(
        self,
        mq: Client,
        process: int,
        random: Random,
        think: Callable[[], Awaitable[None]],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Write and read as one client; a cancelled one leaves an operation without an end.

        Args:
            mq: its connection.
            process: its number in the history, never used before.
            random: for all that it chooses.
            think: called after each operation; waits.
            is_wanted: False ends it.

        Raises:
            Unavailable: no node could be reached.
        """
        while is_wanted():
            group = f"g{random.randrange(GROUPS)}"
            queue = random.randrange(QUEUES)
            async with mq.consumer(TOPIC, group=group, queues=[queue]) as consumer:
                for _ in range(random.randint(1, 6)):
                    key = f"{group} {TOPIC}/{queue}"
                    if random.random() < 0.5:
                        await self._write(consumer, process, random, key, queue)
                    else:
                        await self._read(consumer, process, random, key, queue)
                    await think()

    async def _write(
        self, consumer: Consumer, process: int, random: Random, key: str, queue: int
    ) -> None:
        self._next[key] += 1
        value = self._next[key]
        operation = self._recorder.invoke(process, "write", key, value)
        try:
            await consumer.commit({queue: value}, timeout=random.choice([0.5, 3.0]))
        except Unavailable:
            self.counts["unavailable"] += 1
            self._recorder.fail(operation)
        except OutcomeUnknown:
            self.counts["unknown"] += 1
            self._recorder.unknown(operation)
        else:
            self.counts["acked"] += 1
            self._recorder.ok(operation)

    async def _read(
        self, consumer: Consumer, process: int, random: Random, key: str, queue: int
    ) -> None:
        operation = self._recorder.invoke(process, "read", key)
        try:
            found = await consumer.committed(timeout=random.choice([0.5, 3.0]))
        except RaftmqError:
            self.counts["unavailable"] += 1
            self._recorder.fail(operation)
        else:
            self.counts["acked"] += 1
            self.counts["reads"] += 1
            self._recorder.ok(operation, value=found.get(queue))
