"""Groups that are moved back while they work: one that pops, its clones, instances of broadcast.

| client | does |
|---|---|
| a popper of `r` | acknowledges each message, some of them late, after a reset |
| a popper of a clone | the same, once the clone is made |
| an instance of `b` | reads all, commits, ends or dies, and goes on where it was |
| a mover | moves `r` and the instances to earlier places, and clones `r` once |

The form of the history: `raftmq.checkers.pop.resets` and `raftmq.checkers.log.instances`.

Invariants:
- A place is never beyond the offset that the group has reached, so that no message is passed over.
- A clone without an answer is given up: the next one has another name.
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
from raftmq.checkers.log.instances import COMMIT_OFFSET
from raftmq.checkers.pop.calls import FENCED, Got, Named, begin_settling, end_settling
from raftmq.checkers.pop.resets import RESET
from raftmq.client import Client, Consumer, PopConsumer, PoppedMessages
from raftmq.client.pop.popped import PoppedMessage
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable

POPPED = "r"
"""The group that pops."""
BROADCAST = "b"
"""The broadcast group."""
INSTANCES = ("one", "two")
MOVE_SECONDS = 1.2
"""Mean time between two resets."""
CALL_SECONDS = 3.0
INVISIBLE_SECONDS = 5.0
"""Leases outlast the pause before late acknowledgements: nothing but a reset fences them."""
SCHEDULE_SECONDS = (0.2,)
ATTEMPTS_MAX = 1000
LATE_SHARE = 0.25
"""Share of hand-outs that are acknowledged late."""
SESSION_SECONDS = 3.0
LIFE_SECONDS = 4.0
"""Mean life of an instance's process; then the next one begins."""
DIES_SHARE = 0.5
"""Share of processes that end without leaving."""


class Resets:
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
        # Group or instance → queue → the offset that it has reached.
        self._reached: dict[str, Counter[int]] = {
            name: Counter() for name in (POPPED, *map(instance_name, INSTANCES))
        }
        self._clones = 0
        self._is_cloned = trio.Event()
        # True: the group that pops was reset, at least once.
        self._was_reset = False
        self.clone = ""
        """Name of the clone; empty: no clone was made yet."""
        self.ends: dict[int, int] | None = None
        """By queue: where instances may stop; None: not yet known."""
        self.drained: set[str] = set()
        """Instances that have read everything."""
        self.is_draining = False
        """True: all messages are acknowledged at once."""
        self.is_over = False
        """True: poppers end."""

    def end(self) -> None:
        """Let all poppers end, also a popper that waits for a clone."""
        self.is_over = True
        self._is_cloned.set()

    async def prepare(self, mq: Client) -> None:
        """Create the group that pops."""
        await mq.admin.create_consumer_group(
            POPPED, schedule=SCHEDULE_SECONDS, attempts_max=ATTEMPTS_MAX
        )

    def _key(self, name: str, queue: int) -> str:
        return f"{name} {self._topic}/{queue}"

    # Groups that pop

    async def pop(self, mq: Client, process: int, random: Random, *, is_clone: bool) -> None:
        """Be a popper, until all is over; see `Claims.contend` for the arguments.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        if is_clone:
            await self._is_cloned.wait()
        group = self.clone if is_clone else POPPED
        if self.is_over:
            return
        impatience = Impatience(Random(random.getrandbits(64)), self._counts)
        async with mq.consumer(
            self._topic,
            group=group,
            mode="pop",
            invisible=INVISIBLE_SECONDS,
            prefetch=random.choice([0, 5, None]),
        ) as consumer:
            kept: PoppedMessages | None = None
            while not self.is_over:
                impatience.is_over = self.is_draining
                messages = await self._pop(consumer, group, process, random, impatience)
                if kept is not None:
                    await self._ack(consumer, group, process, kept, impatience)
                    kept = None
                if messages is None:
                    continue
                if not self.is_draining and random.random() < LATE_SHARE:
                    kept = messages
                    await trio.sleep(random.expovariate(1 / 0.4))
                else:
                    await self._ack(consumer, group, process, messages, impatience)

    async def _pop(
        self,
        consumer: PopConsumer,
        group: str,
        process: int,
        random: Random,
        impatience: Impatience,
    ) -> PoppedMessages | None:
        def got(message: PoppedMessage) -> Got:
            queue = f"{self._topic}/{message.queue}"
            return got_of(message, queue, self._number_of(message.body))

        count = random.choice([1, 5, 30])
        try:
            messages = await pop_written(
                consumer, count, self._recorder, process, group, got, impatience
            )
        except Cancelled:
            return None
        self._counts["delivered"] += len(messages or ())
        if group == POPPED:
            self._note_reached(group, [(each.queue, each.offset) for each in messages or ()])
        return messages

    def _note_reached(self, name: str, places: list[tuple[int, int]]) -> None:
        reached = self._reached[name]
        for queue, offset in places:
            reached[queue] = max(reached[queue], offset + 1)

    async def _ack(
        self,
        consumer: PopConsumer,
        group: str,
        process: int,
        messages: PoppedMessages,
        impatience: Impatience,
    ) -> None:
        named = [Named(f"{self._topic}/{m.queue}", m.offset, m.token) for m in messages]
        operation = begin_settling(self._recorder, process, "ack", group, named)
        try:
            settlement = await impatience.call(
                partial(consumer.ack, messages, timeout=CALL_SECONDS)
            )
        except (Unavailable, OutcomeUnknown, Cancelled):
            self._recorder.unknown(operation)
            return
        gone = set(settlement.fenced)
        results = [
            (one, FENCED if (each.id, each.token) in gone else 1)
            for one, each in zip(named, messages, strict=True)
        ]
        self._counts["fenced"] += len(gone)
        end_settling(self._recorder, operation, group, results)

    # Instances of a broadcast group

    async def broadcast(self, mq: Client, process: int, random: Random, instance: str) -> None:
        """Be one life of an instance; see `Claims.contend` for the other arguments.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        life = random.expovariate(1 / LIFE_SECONDS)
        dies = life if random.random() < DIES_SHARE else float("inf")
        until = trio.current_time() + life
        self._counts["lives"] += 1
        impatience = Impatience(Random(random.getrandbits(64)), self._counts)
        with trio.move_on_after(dies):
            async with mq.consumer(
                self._topic,
                group=BROADCAST,
                mode="broadcast",
                instance=instance,
                start="earliest",
                session=SESSION_SECONDS,
                prefetch_bytes=200_000,
            ) as consumer:
                name = instance_name(instance)
                while trio.current_time() < until or self.ends is not None:
                    impatience.is_over = self.is_draining
                    await self._poll(consumer, name, process, random, impatience)
                    if random.random() < 0.5:
                        await self._commit(consumer, name, process, impatience)
                    if self._has_read_all(consumer):
                        self.drained.add(instance)
                        return

    def _has_read_all(self, consumer: Consumer) -> bool:
        position = consumer.position
        return self.ends is not None and all(
            position.get(queue, 0) >= end for queue, end in self.ends.items()
        )

    async def _poll(
        self, consumer: Consumer, name: str, process: int, random: Random, impatience: Impatience
    ) -> None:
        operation = self._recorder.invoke(process, "poll", value=name)
        try:
            count = random.randint(1, 60)
            messages = await impatience.call(partial(consumer.fetch, count, wait=0.4))
        except Cancelled:
            # The next poll returns the messages that the cancelled call took.
            self._recorder.unknown(operation)
            return
        except Unavailable:
            self._recorder.fail(operation)
            return
        columns = zip(messages.queues, messages.bodies, messages.offsets, strict=True)
        rows = [
            (f"{self._topic}/{queue}", self._number_of(body), offset)
            for queue, body, offset in columns
        ]
        self._recorder.ok_many(operation, rows)
        self._counts["broadcast"] += len(rows)
        places = zip(messages.queues, messages.offsets, strict=True)
        self._note_reached(name, list(places))
        await trio.sleep(random.expovariate(1 / 0.1))

    async def _commit(
        self, consumer: Consumer, name: str, process: int, impatience: Impatience
    ) -> None:
        before = consumer.position
        operation = self._recorder.invoke(process, COMMIT_OFFSET)
        try:
            await impatience.call(partial(consumer.commit, timeout=CALL_SECONDS))
        except Rejected as error:
            if error.reason is not Reason.FENCED:
                raise
            # The commit may hold for some of the queues.
            self._recorder.unknown(operation)
        except (Unavailable, OutcomeUnknown, Cancelled):
            self._recorder.unknown(operation)
        else:
            # A queue may have been lost meanwhile, and come back at an earlier place.
            rows = [
                (self._key(name, queue), min(offset, before[queue]), None)
                for queue, offset in consumer.position.items()
                if queue in before
            ]
            self._recorder.ok_many(operation, rows)

    # Moving

    async def move(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Be the mover; at least one reset of the group that pops succeeds.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        while is_wanted() or not self._was_reset:
            await trio.sleep(random.expovariate(1 / MOVE_SECONDS))
            name = random.choice([POPPED, POPPED, *map(instance_name, INSTANCES)])
            if not self.clone and random.random() < 0.4:
                await self._clone(mq, process)
            else:
                await self._reset(mq, process, random, name)

    async def _reset(self, mq: Client, process: int, random: Random, name: str) -> None:
        reached = self._reached[name]
        queue = random.randrange(self._queues)
        place = 0 if random.random() < 0.3 else max(0, reached[queue] - random.randint(0, 20))
        moved = list(range(self._queues)) if place == 0 else [queue]
        rows = [(self._key(name, each), place) for each in moved]
        operation = self._recorder.invoke_many(process, RESET, rows)
        try:
            await mq.admin.reset_group(
                name, self._topic, to=place, queues=moved, timeout=CALL_SECONDS
            )
        except Rejected as error:
            # No consumer of the group was opened yet.
            if error.reason is not Reason.UNKNOWN_GROUP:
                raise
            self._recorder.fail(operation)
        except (Unavailable, OutcomeUnknown):
            # Leaders are asked one after the other: some may have done it.
            self._recorder.unknown(operation)
        else:
            self._counts["resets"] += 1
            self._was_reset |= name == POPPED
            self._recorder.ok(operation)

    async def _clone(self, mq: Client, process: int) -> None:
        self._clones += 1
        name = f"{POPPED}{self._clones}"
        operation = self._recorder.invoke(process, RESET)
        with suppress(Unavailable, OutcomeUnknown):
            try:
                changes = await mq.admin.clone_group(
                    POPPED, name, self._topic, timeout=CALL_SECONDS
                )
            except Rejected as error:
                if error.reason is not Reason.UNKNOWN_GROUP:
                    raise
                self._recorder.fail(operation)
                return
            rows = [(self._key(name, change.queue), change.after, None) for change in changes]
            self._recorder.ok_many(operation, rows)
            if len(changes) == self._queues:
                self.clone = name
                self._is_cloned.set()
                self._counts["clones"] += 1
            return
        self._recorder.unknown(operation)


def instance_name(instance: str) -> str:
    """Name of an instance where a group is named."""
    return f"{BROADCAST}@{instance}"
