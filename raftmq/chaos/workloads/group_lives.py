"""Consumer groups that are reset, and deleted while they work: all messages come again each time.

| client | does |
|---|---|
| a mover | sends messages; resets groups to their beginning, or deletes them with force |
| a taker of each group | takes all and settles it; opens its consumer again if the group is gone |

The groups read one topic, one of them popping, the other as members that share out queues. The
first consumer after a deletion makes the group again, while requests of the mover and of the former
consumer are still under way.

Invariants, asserted by the takers:
- A settled message comes again only after a move: it was settled at most as often as its group was
  moved. Settlements of members while a reset is under way do not count: a member that comes
  meanwhile has a newer epoch, and the whole reset is done again (`raftmq.client.admin.resets`).
- In the end each message was settled after the begin of the last move that is known to be done: the
  takers wait in vain for a message that a new group lacks, or passes over.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import trio

from raftmq.client import Client
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable

TOPIC = "lives"
POPPED = "lives-popped"
SHARED = "lives-shared"
GROUPS = (POPPED, SHARED)
MESSAGES_MAX = 12
MOVE_SECONDS = 1.0
"""Between two calls of the mover, on average."""
CALL_SECONDS = (1.0, 3.0, 12.0)
SETTLE_SECONDS = 2.0
INVISIBLE_SECONDS = 30.0
"""Leases outlast all settling: nothing but a move lets a message come again."""
SESSION_SECONDS = 3.0
GONE = frozenset({Reason.UNKNOWN_GROUP, Reason.FENCED})
"""Reasons that a consumer of a deleted group gets."""


class GroupLives:
    """State that all clients of a run share."""

    def __init__(self, *, counts: Counter[str]) -> None:
        self._counts = counts
        # Group → offset → how often it was settled for sure.
        self._settled: dict[str, Counter[int]] = {group: Counter() for group in GROUPS}
        # Group → calls that were to move it, and the number of the last one that is known to be
        # done.
        self._moves: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        # Group → offset → number of moves that had begun at the last hand-out of the message after
        # which the message was settled, or may have been.
        self._latest: dict[str, dict[int, int]] = {group: {} for group in GROUPS}
        self._end: int | None = None
        # A reset of the group with members is under way.
        self._is_resetting = False

    @property
    def is_drained(self) -> bool:
        """True if each group has settled all messages since its last move."""
        return self._end is not None and all(
            self._latest[group].get(offset, -1) >= self._done[group]
            for group in GROUPS
            for offset in range(self._end)
        )

    async def prepare(self, mq: Client) -> None:
        """Create the topic."""
        await mq.admin.create_topic(TOPIC, queues=1)

    async def find_end(self, mq: Client) -> None:
        """No further message is sent: takers are to settle all messages up to the present end.

        Raises:
            Unavailable: no node could be reached.
        """
        self._end = (await mq.admin.find_offsets(TOPIC, "latest"))[0]

    async def move(self, mq: Client, random: Random, is_wanted: Callable[[], bool]) -> None:
        """Be the mover."""
        async with mq.producer(TOPIC) as producer:
            sent = 0
            while is_wanted():
                if sent < MESSAGES_MAX:
                    sent += 1
                    await producer.send(b"x")
                await trio.sleep(random.expovariate(1 / MOVE_SECONDS))
                await self._move(mq, random.choice(GROUPS), random)

    async def _move(self, mq: Client, group: str, random: Random) -> None:
        timeout = random.choice(CALL_SECONDS)
        is_reset = random.random() < 0.5
        # Before the request: messages may come again although it has no answer.
        self._moves[group] += 1
        self._is_resetting = is_reset and group == SHARED
        try:
            if is_reset:
                await mq.admin.reset_group(group, TOPIC, to="earliest", timeout=timeout)
            else:
                await mq.admin.delete_consumer_group(group, force=True, timeout=timeout)
        except (Unavailable, OutcomeUnknown):
            # The move may not have happened.
            self._counts["moves in doubt"] += 1
        except Rejected as error:
            # The group was deleted just before, and is not made again yet.
            if error.reason is not Reason.UNKNOWN_GROUP:
                raise
        else:
            self._done[group] = self._moves[group]
            self._counts["groups reset" if is_reset else "groups deleted"] += 1
        finally:
            self._is_resetting = False

    async def take(self, mq: Client, group: str) -> None:
        """Be the taker of a group.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while not self.is_drained:
            try:
                if group == POPPED:
                    await self._pop(mq)
                else:
                    await self._fetch(mq)
            except Rejected as error:
                if error.reason not in GONE:
                    raise
                self._counts["consumers of deleted groups"] += 1

    async def _pop(self, mq: Client) -> None:
        async with mq.consumer(
            TOPIC, group=POPPED, mode="pop", prefetch=0, invisible=INVISIBLE_SECONDS
        ) as consumer:
            while not self.is_drained:
                messages = await consumer.pop(5, wait=0.5)
                moves = self._moves[POPPED]
                offsets = [message.offset for message in messages]
                self._handed(POPPED, offsets)
                if not messages:
                    continue
                try:
                    settlement = await consumer.ack(messages, timeout=SETTLE_SECONDS)
                except OutcomeUnknown:
                    self._note(POPPED, offsets, moves, is_sure=False)
                    continue
                fenced = set(settlement.fenced)
                done = [each.offset for each in messages if (each.id, each.token) not in fenced]
                self._note(POPPED, done, moves, is_sure=True)

    async def _fetch(self, mq: Client) -> None:
        async with mq.consumer(
            TOPIC, group=SHARED, queues="assigned", session=SESSION_SECONDS
        ) as consumer:
            while not self.is_drained:
                messages = await consumer.fetch(5, wait=0.5)
                moves = self._moves[SHARED]
                offsets = list(messages.offsets)
                self._handed(SHARED, offsets)
                if not offsets:
                    continue
                try:
                    await consumer.commit(timeout=SETTLE_SECONDS)
                except OutcomeUnknown:
                    self._note(SHARED, offsets, moves, is_sure=False)
                else:
                    self._note(SHARED, offsets, moves, is_sure=True)

    def _handed(self, group: str, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._counts["delivered"] += 1
            settled, moves = self._settled[group][offset], self._moves[group]
            fact = f"{group}: offset {offset} was settled {settled} times, the group moved {moves}"
            assert settled <= moves, fact

    def _note(self, group: str, offsets: Iterable[int], moves: int, *, is_sure: bool) -> None:
        counts = is_sure and not (group == SHARED and self._is_resetting)
        for offset in offsets:
            self._settled[group][offset] += counts
            self._latest[group][offset] = moves
