"""Topics that change while clients use them: one gets more queues, one comes and goes.

| topic | clients |
|---|---|
| `g` | a producer, consumers that pop, an administrator that adds queues |
| `x` | a client that makes it, sends, takes, deletes it, tries the old producer again, and |
| | looks whether it stays away |

Calls on messages of `g` are recorded and judged as those of `raftmq.chaos.workloads.popping`; for
`x` see `raftmq.checkers.objects.topic_lives`.

Invariants:
- A message is sent to an added queue only after the answer that confirmed the queue.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import trio

from raftmq.chaos.workloads.popping import tag_of, written
from raftmq.checkers.history import Recorder
from raftmq.checkers.objects.topic_lives import CREATE, DELETE, LOOK, PUT, PUT_LATE, TAKE
from raftmq.client import Client, PopConsumer, Producer
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

GROWING = "g"
PASSING = "x"
QUEUES_FIRST = 1
QUEUES_MAX = 8
GROW_SECONDS = 0.8
"""Between two additions of a queue, on average."""
THINK_SECONDS = 0.2
"""Between two messages, on average."""
CALL_SECONDS = 3.0
PASSING_QUEUES = 2
LOOK_SECONDS = 1.0
"""Between two looks of a consumer at the topic that gets more queues."""
REST_SECONDS = 0.5
"""Between two lives of the topic that comes and goes, on average."""
GROUP = "v"
"""The group that takes the messages of the topic that comes and goes."""
GONE = frozenset({Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_GROUP})
"""Reasons of refusals to a client of a topic that was deleted."""


class Growing:
    """A topic that gets more queues."""

    def __init__(
        self, recorder: Recorder, *, body_of: Callable[[int], bytes], counts: Counter[str]
    ) -> None:
        self._recorder = recorder
        self._body_of = body_of
        self._counts = counts
        self._queues = QUEUES_FIRST
        # Process → number of queues when its producer looked.
        self._seen: dict[int, int] = {}

    @property
    def queues(self) -> int:
        """Number of queues, by the last answer to the administrator."""
        return self._queues

    async def prepare(self, mq: Client) -> None:
        """Create the topic."""
        await mq.admin.create_topic(GROWING, queues=QUEUES_FIRST)

    async def alter(self, mq: Client, random: Random, is_wanted: Callable[[], bool]) -> None:
        """Be the administrator; a cancelled one leaves a queue added or not.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while is_wanted() and self._queues < QUEUES_MAX:
            await trio.sleep(random.expovariate(1 / GROW_SECONDS))
            info = await mq.admin.alter_topic(GROWING, self._queues + 1, timeout=CALL_SECONDS)
            self._queues = info.queues
            self._counts["queues added"] += 1

    async def produce(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Be the producer.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        async with mq.producer(GROWING) as producer:
            while is_wanted():
                queues = self._queues
                if queues != self._seen.get(process):
                    self._seen[process] = queues
                    await self._look(mq)
                await self._send(producer, process, random.randrange(queues))
                await trio.sleep(random.expovariate(1 / THINK_SECONDS))

    async def look_again(self, mq: Client, is_wanted: Callable[[], bool]) -> None:
        """Let a client see added queues soon; by itself it would see them after half a minute.

        Raises:
            Unavailable: no node could be reached.
        """
        while is_wanted():
            await self._look(mq)
            await trio.sleep(LOOK_SECONDS)

    async def _look(self, mq: Client) -> None:
        await mq.admin.describe_topic(GROWING, timeout=CALL_SECONDS)

    async def _send(self, producer: Producer, process: int, queue: int) -> None:
        number = self._recorder.unique_value()
        value = written(number, None)
        operation = self._recorder.invoke(process, "send", f"{GROWING}/{queue}", value)
        try:
            receipt = await producer.send(
                self._body_of(number), tag=tag_of(number), queue=queue, timeout=CALL_SECONDS
            )
        except Unavailable:
            self._recorder.fail(operation)
        except RaftmqError:
            self._recorder.unknown(operation)
        else:
            assert receipt.queue == queue
            self._counts["sent to added queues"] += queue >= QUEUES_FIRST
            self._recorder.ok(operation, offset=receipt.offset)


class Passing:
    """A topic that comes and goes."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        body_of: Callable[[int], bytes],
        number_of: Callable[[bytes], int],
        counts: Counter[str],
    ) -> None:
        self._recorder = recorder
        self._body_of = body_of
        self._number_of = number_of
        self._counts = counts
        self._life = 0
        self.lives = 0
        """Number of whole lives of the topic."""

    async def live(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Make and delete the topic again and again, with at least one whole life.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        await self._delete_old(mq)
        while is_wanted() or not self.lives:
            self._life += 1
            await self._live(mq, process, random, self._life)
            await trio.sleep(random.expovariate(1 / REST_SECONDS))

    async def _delete_old(self, mq: Client) -> None:
        """Delete the topic that a process which died may have left."""
        try:
            await mq.admin.delete_topic(PASSING, timeout=CALL_SECONDS)
        except Rejected as error:
            if error.reason not in GONE:
                raise

    async def _live(self, mq: Client, process: int, random: Random, life: int) -> None:
        await self._look(mq, process, life)
        created = self._recorder.invoke(process, CREATE, PASSING, life)
        await mq.admin.create_topic(PASSING, queues=PASSING_QUEUES, timeout=CALL_SECONDS)
        self._recorder.ok(created)
        try:
            async with mq.producer(PASSING) as producer:
                wanted = set()
                for _ in range(random.randint(3, 8)):
                    number = self._recorder.unique_value()
                    if await self._put(producer, PUT, process, number, life, random):
                        wanted.add(number)
                async with mq.consumer(PASSING, group=GROUP, mode="pop") as consumer:
                    await self._take(consumer, process, life, wanted)
                await self._delete(mq, process, life)
                number = self._recorder.unique_value()
                await self._put(producer, PUT_LATE, process, number, life, random)
        except Rejected as error:
            # A deletion by a process that died came late, and this life is over.
            if error.reason not in GONE:
                raise
            self._counts["lives cut short"] += 1

    async def _look(self, mq: Client, process: int, life: int) -> None:
        """Look for a topic of that name, before this life makes it."""
        operation = self._recorder.invoke(process, LOOK, PASSING, life)
        found = await mq.admin.list_topics(timeout=CALL_SECONDS)
        if any(topic.name == PASSING for topic in found):
            self._recorder.ok(operation)
        else:
            self._recorder.fail(operation)

    async def _put(
        self,
        producer: Producer,
        function: str,
        process: int,
        number: int,
        life: int,
        random: Random,
    ) -> bool:
        """Send a message; True if it is stored."""
        operation = self._recorder.invoke(process, function, PASSING, (number, life))
        queue = random.randrange(PASSING_QUEUES)
        try:
            await producer.send(self._body_of(number), queue=queue, timeout=CALL_SECONDS)
        except (Unavailable, Rejected) as error:
            is_gone = isinstance(error, Rejected) and error.reason in GONE
            self._counts["puts after the deletion, refused"] += is_gone
            self._recorder.fail(operation)
            return False
        except RaftmqError:
            self._recorder.unknown(operation)
            return False
        self._counts["puts after the deletion, taken"] += function == PUT_LATE
        self._recorder.ok(operation)
        return True

    async def _take(self, consumer: PopConsumer, process: int, life: int, wanted: set[int]) -> None:
        """Take and acknowledge until all stored messages have come."""
        missing = set(wanted)
        while missing:
            operation = self._recorder.invoke(process, TAKE, PASSING, life)
            try:
                messages = await consumer.pop(10, wait=0.5)
            except Unavailable:
                self._recorder.fail(operation)
                continue
            numbers = [self._number_of(body) for body in messages.bodies]
            self._recorder.ok_many(operation, [(PASSING, (n, life), None) for n in numbers])
            missing -= set(numbers)
            if messages:
                try:
                    await consumer.ack(messages, timeout=CALL_SECONDS)
                except (Unavailable, OutcomeUnknown):
                    self._counts["takes in doubt"] += 1

    async def _delete(self, mq: Client, process: int, life: int) -> None:
        operation = self._recorder.invoke(process, DELETE, PASSING, life)
        try:
            await mq.admin.delete_topic(PASSING, timeout=CALL_SECONDS)
        except (Unavailable, OutcomeUnknown):
            self._recorder.unknown(operation)
            raise
        self._recorder.ok(operation)
        self._counts["topics deleted"] += 1
        self.lives += 1
