"""Consumer groups that have just been made: where they begin, and the effect of their first filter.

| a newcomer | must be handed |
|---|---|
| that starts at the end | all messages that are sent once its consumer is open |
| that starts at the beginning | all messages of the topic |
| whose filter comes meanwhile | of the messages that it has not read, those that match |

Newcomers are of both modes. They send to their own topic before they pop for the first time, and
its messages have keys, so that an ordered group needs keys of messages that have left the cache.

Invariants, asserted here:
- A second after its first subscription has returned, and the leaders have heard of it, a group gets
  messages that do not match only if they were asked for before.

A newcomer waits in vain for a message that it must be handed and is not.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import trio

from raftmq.chaos.workloads.popping import RED
from raftmq.client import Client, PopConsumer, Producer
from raftmq.errors import OutcomeUnknown, Unavailable

TOPIC = "newcomers"
QUEUES = 2
MESSAGES = 12
"""Messages that each newcomer sends."""
KEYS = 20
PADDING = bytes(600)
"""Beside the tag in a body: a small cache holds few messages."""
PAUSE_SECONDS = 1.5
"""Mean time between two newcomers."""
POP_SECONDS = 0.06
"""Longest time from the request for a filter to the first pop: about the length of that request."""
FIRST_SECONDS = 0.4
"""Longest time from the first pop to the request for a filter, if the pop comes first: about as
long as keys are read from a slow disk."""
FOLLOW_SECONDS = 1.0
"""Longest time after the answer to a request for a filter until a leader with a slow disk hears of
the filter: messages that were asked of this leader until then may come without the filter."""
CALL_SECONDS = 2.0
ASKED = 10
"""Messages that are asked for at a time, of the leader of each queue."""
INVISIBLE_SECONDS = 30.0
"""No message comes again because a newcomer was slow."""

Place = tuple[int, int]
"""Queue and offset of a message."""
Tags = dict[Place, str | None]
"""Tags of messages, by place; None: without a tag."""


class Newcomers:
    """State that all newcomers of a run share."""

    def __init__(
        self, *, counts: Counter[str], filters: Callable[[], tuple[int, int]] = lambda: (0, 0)
    ) -> None:
        """`filters`: versions of subscriptions, the newest in a catalog, and the oldest in one of a
        leader."""
        self._counts = counts
        self._filters = filters
        self._sent: dict[Place, str] = {}
        self._made = 0
        # When all leaders had heard of the last subscription; its version; and the number of pops
        # until `FOLLOW_SECONDS` after that.
        self._filtered_at, self._version = 0.0, 0
        self._early_pops = 0
        self.is_read = True
        """False: a newcomer was not handed all that it must be."""

    async def prepare(self, mq: Client) -> None:
        """Create the topic."""
        await mq.admin.create_topic(TOPIC, queues=QUEUES)

    async def come(self, mq: Client, random: Random, is_wanted: Callable[[], bool]) -> None:
        """Be one newcomer after another.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        self.is_read = True
        async with mq.producer(TOPIC) as producer:
            while is_wanted():
                self._made += 1
                await self._come(mq, producer, f"newcomer-{self._made}", random)
                await trio.sleep(random.expovariate(1 / PAUSE_SECONDS))

    async def _come(self, mq: Client, producer: Producer, group: str, random: Random) -> None:
        is_latest, has_filter = random.random() < 0.5, random.random() < 0.5
        async with mq.consumer(
            TOPIC,
            group=group,
            mode=random.choice(["pop", "ordered"]),
            start="latest" if is_latest else "earliest",
            prefetch=0,
            invisible=INVISIBLE_SECONDS,
        ) as consumer:
            sent = await self._send(producer, random)
            wanted = sent if is_latest else dict(self._sent)
            self.is_read = False
            if has_filter:
                await self._read_filtered(mq, consumer, group, random, wanted)
            else:
                await self._read(consumer, set(wanted))
            self.is_read = True
        self._counts["newcomers"] += 1

    async def _send(self, producer: Producer, random: Random) -> dict[Place, str]:
        """Send some messages; returns those that are surely stored, with their tags."""
        stored: dict[Place, str] = {}
        for _ in range(MESSAGES):
            tag, key = random.choice([RED, "blue"]), f"k{random.randrange(KEYS)}"
            try:
                receipt = await producer.send(
                    tag.encode() + PADDING, key=key, tag=tag, timeout=CALL_SECONDS
                )
            except (Unavailable, OutcomeUnknown):
                self._counts["sent to newcomers in doubt"] += 1
            else:
                assert receipt.offset is not None, "the message has no delay"
                stored[receipt.queue, receipt.offset] = tag
        self._sent |= stored
        return stored

    async def _read_filtered(
        self,
        mq: Client,
        consumer: PopConsumer,
        group: str,
        random: Random,
        wanted: dict[Place, str],
    ) -> None:
        """Pop a few messages, or none, while the first filter comes, or before that; then all that
        match."""
        before: Tags = {}
        is_pop_first = random.random() < 0.5
        wait = random.uniform(0, FIRST_SECONDS if is_pop_first else POP_SECONDS)

        async def pop() -> None:
            await self._pop(consumer, before)

        async def subscribe() -> None:
            await mq.admin.subscribe(TOPIC, group, RED)

        async with trio.open_nursery() as nursery:
            # A feed that the first pop begins may be under way when the filter comes.
            nursery.start_soon(pop if is_pop_first else subscribe)
            await trio.sleep(wait)
            await (subscribe if is_pop_first else pop)()
        red = {at for at, tag in wanted.items() if tag == RED}
        # By their own tags: messages whose sends are in doubt may match, and come, too.
        self._early_pops, self._filtered_at = 0, trio.current_time()
        self._version, _ = self._filters()
        tags = await self._read(consumer, red - before.keys())
        wrong = sorted(at for at, tag in tags.items() if tag != RED)
        fact = f"{group}: {len(wrong)} messages came that its first filter does not let by"
        assert len(wrong) <= ASKED * (QUEUES + self._early_pops), f"{fact}: {wrong}"

    async def _read(self, consumer: PopConsumer, missing: set[Place]) -> Tags:
        """Pop until no message is missing; the tags of all that came."""
        read: Tags = {}
        while missing - read.keys():
            await self._pop(consumer, read)
        return read

    async def _pop(self, consumer: PopConsumer, read: Tags) -> None:
        is_early = self._is_early()
        messages = await consumer.pop(ASKED, wait=0.5)
        self._early_pops += is_early or self._is_early()
        read.update(((message.queue, message.offset), message.tag) for message in messages)
        if messages:
            await consumer.ack(messages, timeout=CALL_SECONDS)

    def _is_early(self) -> bool:
        """True until `FOLLOW_SECONDS` after all leaders have heard of the subscription: one that
        does not reach the system group may not know it for long."""
        now = trio.current_time()
        if self._filters()[1] < self._version:
            self._filtered_at = now
        return now < self._filtered_at + FOLLOW_SECONDS
