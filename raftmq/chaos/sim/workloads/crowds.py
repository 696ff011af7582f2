"""A crowd of consumers that ask again at once, in a group that is deleted again and again.

| client | does |
|---|---|
| a keeper | sends messages, and deletes the group with force now and then |
| the crowd | pops, mostly without a wait; acks at once, or leaves messages to their leases |

A consumer whose group is gone is opened again, and makes the group again. Quotas hold for the crowd
as for all clients: how many messages it has in flight is judged at the nodes
(`raftmq.chaos.sim.checks.in_flight`), and which ones is not.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import trio

from raftmq.chaos.workloads.group_lives import GONE
from raftmq.client import Client, SomeUnsent
from raftmq.errors import OutcomeUnknown, Rejected, Unavailable

TOPIC = "crowd"
GROUP = "crowd"
QUEUES = 4
"""A queue in each data group, and one more."""
CONSUMERS = 3
SEND_SECONDS = 0.5
"""Between two batches of the keeper, on average."""
MESSAGES = 4
"""Messages of a batch."""
DELETE_SHARE = 0.25
"""Share of the batches after which the group is deleted."""
COUNTS = (1, 10, 100)
WAITS = (0.0, 0.0, 0.0, 0.5)
INVISIBLE_SECONDS = 1.0
LEFT_SHARE = 0.1
"""Share of the answers whose messages are left to their leases."""
PAUSE_SECONDS = 0.05
"""After an answer without messages, on average: an empty queue must not be all that is asked."""


class Crowd:
    """State that all clients of the crowd share."""

    def __init__(self, counts: Counter[str], *, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: False from the end on."""
        self._counts = counts
        self._is_wanted = is_wanted

    async def prepare(self, mq: Client) -> None:
        """Create the topic."""
        await mq.admin.create_topic(TOPIC, queues=QUEUES)

    async def keep(self, mq: Client, random: Random) -> None:
        """Be the keeper.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        async with mq.producer(TOPIC) as producer:
            while self._is_wanted():
                await trio.sleep(random.expovariate(1 / SEND_SECONDS))
                try:
                    await producer.send_many([b"x"] * MESSAGES)
                except SomeUnsent as unsent:
                    # No check counts these messages, and the next ones follow.
                    if not isinstance(unsent.__cause__, Unavailable | OutcomeUnknown):
                        raise
                if random.random() < DELETE_SHARE:
                    await self._delete(mq)

    async def _delete(self, mq: Client) -> None:
        try:
            await mq.admin.delete_consumer_group(GROUP, force=True)
        except Rejected as error:
            # No consumer has made the group again yet.
            if error.reason not in GONE:
                raise
        else:
            self._counts["crowds deleted"] += 1

    async def take(self, mq: Client, random: Random) -> None:
        """Be one of the crowd.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while self._is_wanted():
            try:
                await self._pop(mq, random)
            except Rejected as error:
                if error.reason not in GONE:
                    raise

    async def _pop(self, mq: Client, random: Random) -> None:
        async with mq.consumer(
            TOPIC, group=GROUP, mode="pop", prefetch=0, invisible=INVISIBLE_SECONDS
        ) as consumer:
            while self._is_wanted():
                messages = await consumer.pop(random.choice(COUNTS), wait=random.choice(WAITS))
                self._counts["taken by the crowd"] += len(messages)
                if not messages:
                    await trio.sleep(random.expovariate(1 / PAUSE_SECONDS))
                elif random.random() >= LEFT_SHARE:
                    await messages.ack()
