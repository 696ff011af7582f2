"""Groups that begin at the latest message; their topic gets queues while they have no consumer.

| a group | is read by |
|---|---|
| shared | members that share out the queues, one or two |
| broadcast | an instance with a name |
| popping | one consumer |

A group begins when its first consumer is open. The consumer closes, the topic gets a queue,
messages are sent, most of them to the new queue, and consumers are opened again.

Invariants, asserted here:
- No message comes that was stored before the group began.

A latecomer waits in vain for a message that was stored since, and is not handed out.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import trio

from raftmq.client import Client, Consumer, PopConsumer, Producer
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable

TOPIC = "late"
QUEUES_FIRST = 1
QUEUES_MAX = 12
KINDS = ("shared", "broadcast", "popping")
INSTANCE = "one"
BEFORE = 2
"""Messages that are sent before a group begins."""
MESSAGES = 8
"""Messages that are sent while no consumer is open."""
NEW_SHARE = 0.7
"""Share of these that go to the newest queue."""
PAUSE_SECONDS = 1.0
"""Mean time between two groups."""
CALL_SECONDS = 3.0
SESSION_SECONDS = 3.0
INVISIBLE_SECONDS = 30.0
"""No message comes again because a latecomer was slow."""

Place = tuple[int, int]
"""Queue and offset of a message."""


class Latecomers:
    """State that all latecomers of a run share."""

    def __init__(self, *, counts: Counter[str]) -> None:
        self._counts = counts
        self._queues = QUEUES_FIRST
        self._stored: set[Place] = set()
        self._made = 0
        self.is_read = True
        """False: a latecomer was not handed all that it must be."""

    async def prepare(self, mq: Client) -> None:
        """Create the topic."""
        await mq.admin.create_topic(TOPIC, queues=QUEUES_FIRST)

    async def come(self, mq: Client, random: Random, is_wanted: Callable[[], bool]) -> None:
        """Be one latecomer after another, while the topic may get queues.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        self.is_read = True
        async with mq.producer(TOPIC) as producer:
            while is_wanted() and self._queues < QUEUES_MAX:
                self._made += 1
                kind = KINDS[self._made % len(KINDS)]
                await self._come(mq, producer, f"late-{kind}-{self._made}", kind, random)
                await trio.sleep(random.expovariate(1 / PAUSE_SECONDS))

    async def _come(
        self, mq: Client, producer: Producer, group: str, kind: str, random: Random
    ) -> None:
        for _ in range(BEFORE):
            await self._send(producer, random.randrange(self._queues))
        before = set(self._stored)
        async with _opened(mq, group, kind) as consumer:
            # A request of a latecomer that was killed may have added a queue meanwhile.
            self._queues = await self._count(mq)
            if isinstance(consumer, Consumer):
                # In a queue that no member owned before the alteration, the group begins later.
                while len(consumer.assignment) < self._queues:
                    await consumer.fetch(1, wait=0.1)
        info = await mq.admin.alter_topic(TOPIC, self._queues + 1, timeout=CALL_SECONDS)
        self._queues = info.queues
        for _ in range(MESSAGES):
            is_new = random.random() < NEW_SHARE
            await self._send(
                producer, self._queues - 1 if is_new else random.randrange(self._queues)
            )
        self.is_read = False
        members = random.randint(1, 2) if kind == "shared" else 1
        await self._read(mq, group, kind, members, before)
        self.is_read = True
        self._counts[f"latecomers, {kind}"] += 1

    async def _count(self, mq: Client) -> int:
        """Number of the topic's queues."""
        return len((await mq.admin.describe_topic(TOPIC, timeout=CALL_SECONDS)).queues)

    async def _send(self, producer: Producer, queue: int) -> None:
        """Send a message, and note its place if it is surely stored."""
        try:
            receipt = await producer.send(b"", queue=queue, timeout=CALL_SECONDS)
        except (Unavailable, OutcomeUnknown):
            self._counts["sent to latecomers in doubt"] += 1
        else:
            assert receipt.offset is not None, "the message has no delay"
            self._stored.add((receipt.queue, receipt.offset))

    async def _read(
        self, mq: Client, group: str, kind: str, members: int, before: set[Place]
    ) -> None:
        """Read until no message is missing."""
        missing = self._stored - before
        async with AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(_opened(mq, group, kind)) for _ in range(members)
            ]
            while missing:
                for consumer in consumers:
                    places = await _take(consumer)
                    early = sorted(places & before)
                    assert not early, f"{group} began at the latest message, and read {early}"
                    missing -= places


def _opened(mq: Client, group: str, kind: str) -> Any:
    """A consumer of a group that begins at the latest message."""
    if kind == "popping":
        return mq.consumer(
            TOPIC,
            group=group,
            mode="pop",
            start="latest",
            prefetch=0,
            invisible=INVISIBLE_SECONDS,
        )
    options: dict[str, Any] = {"queues": "assigned"}
    if kind == "broadcast":
        options = {"mode": "broadcast", "instance": INSTANCE}
    return mq.consumer(TOPIC, group=group, start="latest", session=SESSION_SECONDS, **options)


async def _take(consumer: Consumer | PopConsumer) -> set[Place]:
    """Places of the messages that come next."""
    try:
        if isinstance(consumer, PopConsumer):
            popped = await consumer.pop(10, wait=0.2)
            return {(message.queue, message.offset) for message in popped}
        messages = await consumer.fetch(100, wait=0.2)
        return set(zip(messages.queues, messages.offsets, strict=True))
    except Rejected as error:
        # The session has ended, and the next poll goes on under another one.
        if error.reason is not Reason.FENCED:
            raise
        return set()
