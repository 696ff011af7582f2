"""Registers: the committed offsets of consumer groups, read and written by many at once.

A broker promises that a commit is linearizable and so is asking for it. Several clients commit
different offsets of one queue in one consumer group, in no order, and ask what is committed. Each
written value is unique in its register, so that a wrong answer has nowhere to hide.
"""

from collections import Counter

import trio

from raftmq.chaos.history import Recorder
from raftmq.chaos.sim.clients import Clients, Session
from raftmq.client import Client, Consumer
from raftmq.errors import OutcomeUnknown, RaftmqError, Unavailable

TOPIC = "r"
QUEUES = 3
MESSAGES = 4000
"""In each queue: offsets beyond its end cannot be committed."""
WRITERS = 4
GROUPS = 3
"""Consumer groups; each has a register a queue."""
THINK_SECONDS = 0.15
"""Between two operations of a client, on average."""


class RegisterWorkload:
    """The clients' side of a run."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        self._clients = clients
        self._recorder = recorder
        self._next: Counter[str] = Counter()
        self.is_sending = True
        """Clients go on as long as this is true."""
        self.counts: Counter[str] = Counter()
        """Acknowledged, unknown and so on."""
        self.producers_left = WRITERS
        """Clients that still work."""

    async def prepare(self) -> None:
        """Create the topic and fill it."""

        async def job(mq: Client, _: Session) -> None:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)
            async with mq.producer(TOPIC) as producer:
                for queue in range(QUEUES):
                    await producer.send_many(bodies=[b""] * MESSAGES, queue=queue)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(WRITERS):
            self._clients.start(f"consumer-{number + 1}", self._work)

    @property
    def progress(self) -> int:
        """Operations that succeeded."""
        return self.counts["acked"]

    async def find_ends(self) -> None:
        """There is nothing to be read to its end."""

    @property
    def is_drained(self) -> bool:
        """True if all clients have ended."""
        return not self.producers_left

    async def _work(self, mq: Client, session: Session) -> None:
        random = session.random
        while self.is_sending:
            group = f"g{random.randrange(GROUPS)}"
            queue = random.randrange(QUEUES)
            async with mq.consumer(TOPIC, group=group, queues=[queue]) as consumer:
                for _ in range(random.randint(1, 6)):
                    key = f"{group} {TOPIC}/{queue}"
                    if random.random() < 0.5:
                        await self._write(consumer, session, key, queue)
                    else:
                        await self._read(consumer, session, key, queue)
                    await trio.sleep(random.expovariate(1 / THINK_SECONDS))
        self.producers_left -= 1

    async def _write(self, consumer: Consumer, session: Session, key: str, queue: int) -> None:
        self._next[key] += 1
        value = self._next[key]
        operation = self._recorder.invoke(session.number, "write", key, value)
        try:
            await consumer.commit({queue: value}, timeout=session.random.choice([0.5, 3.0]))
        except Unavailable:
            self.counts["unavailable"] += 1
            self._recorder.fail(operation)
        except OutcomeUnknown:
            self.counts["unknown"] += 1
            self._recorder.unknown(operation)
        else:
            self.counts["acked"] += 1
            self._recorder.ok(operation)

    async def _read(self, consumer: Consumer, session: Session, key: str, queue: int) -> None:
        operation = self._recorder.invoke(session.number, "read", key)
        try:
            found = await consumer.committed(timeout=session.random.choice([0.5, 3.0]))
        except RaftmqError:
            self.counts["unavailable"] += 1
            self._recorder.fail(operation)
        else:
            self.counts["acked"] += 1
            self._recorder.ok(operation, value=found.get(queue))
