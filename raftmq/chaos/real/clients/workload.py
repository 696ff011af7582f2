"""Clients that write and read during faults, and the history of their calls.

Producers write small batches of unique numbers to the queues of one topic; consumer groups read
the numbers and commit their positions. At the end a last reader reads everything from the start.

    send: key = queue, value = number, offset as the receipt says
    poll: the same of each message that came

A client that is made to end leaves its operations without an end: the operations count as unknown.
Each new client is a new process of the history.

Invariants:
- A send is recorded as failed only if the client promised that nothing happened.

Left out: the promise that a committed position never goes back. `went_back` counts the cases: a
commit of an ended consumer may arrive after commits of the next one, and nothing fences it.

Sources: Jepsen's queue and Kafka workloads.
"""

from collections.abc import Callable
from random import Random

import anyio
import trio

import raftmq
from raftmq.checkers.history import Recorder, Value
from raftmq.client import PendingMany
from raftmq.client.produce.receipts import SentMany
from raftmq.errors import OutcomeUnknown, RaftmqError, Rejected, UnreadableBatch

TOPIC = "chaos"
QUEUES = 6
PRODUCERS = 2
GROUPS = ("first", "second")
READER = "reader of all"
"""Name of the last reader in the history: a name of no group, so that its polls hide no loss of a
group."""
WINDOW = 16
SEND_SECONDS_MAX = 15.0
QUIET_SECONDS_MAX = 40.0
"""A reader gives up if no message comes for this long after `set_ends`."""

Complain = Callable[[str, str], None]
"""Called with (name, text) of a promise that a client saw broken."""


class Workload:
    """The clients of one run. Each new client calls `url`: members come and go."""

    def __init__(
        self,
        url: Callable[[], str],
        recorder: Recorder,
        *,
        seed: int,
        complain: Complain,
        batch_messages: int = 20,
        pause_seconds: float = 0.02,
    ) -> None:
        self.acked = 0
        """Messages that were acknowledged."""
        self.polled = 0
        """Messages that the consumer groups got."""
        self.read_back = 0
        """Messages that the last reader got."""
        self.went_back = 0
        """Queues of a group in which a new consumer started before the committed position."""
        self.consumers_stand_still = False
        """Consumers hang, and hold the messages that they got."""
        self.consumer_pause_seconds = 0.0
        """Time that a consumer takes for each batch."""
        self._url = url
        self._recorder = recorder
        self._random = Random(f"workload {seed}")
        self._complain = complain
        self._batch_messages = batch_messages
        self._pause_seconds = pause_seconds
        self._processes = 0
        self._is_stopped = False
        self._groups_done = 0
        self._producers: list[trio.CancelScope] = []
        self._consumers: dict[str, trio.CancelScope] = {}
        self._wanted: dict[str, str] = {}
        self._floor: dict[str, dict[int, int]] = {}
        self._ends: dict[int, int] | None = None

    @property
    def is_read(self) -> bool:
        """Have all consumer groups reached the ends?"""
        return self._groups_done == len(GROUPS)

    async def create_topic(self) -> None:
        """Create the topic, before all other calls."""
        async with raftmq.connect(self._url(), timeout=30.0) as mq:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)

    async def produce(self) -> None:
        """All producers, until `stop`."""
        async with trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                nursery.start_soon(self._keep_producing, number)

    async def consume(self) -> None:
        """All consumer groups, until each group has reached the ends that `set_ends` found."""
        async with trio.open_nursery() as nursery:
            for group in GROUPS:
                nursery.start_soon(self._keep_consuming, group)

    def stop(self) -> None:
        """End all producers."""
        self._is_stopped = True

    async def set_ends(self) -> None:
        """Find out where the queues end. Raises `Unavailable`."""
        async with raftmq.connect(self._url(), timeout=30.0) as mq:
            self._ends = await mq.admin.find_offsets(TOPIC, "latest", timeout=30.0)

    async def read_all(self) -> None:
        """Read everything from the start, as one more process."""
        process = self._new_process()
        async with raftmq.connect(self._url(), timeout=30.0) as mq, mq.consumer(TOPIC) as consumer:
            await self._poll_until_end(process, consumer, group="")

    # Faults of clients, for the nemesis

    def crash_producer(self) -> None:
        """End one producer between a send and its answer; a new one takes its place."""
        if self._producers:
            self._random.choice(self._producers).cancel()

    def churn(self) -> None:
        """End all consumers; new ones take their places."""
        for scope in self._consumers.values():
            scope.cancel()

    def restart(self) -> None:
        """End all producers and consumers; new ones take their places."""
        for scope in self._producers:
            scope.cancel()
        self.churn()

    def commit_oddly(self, how: str) -> None:
        """Send the next commit of each group `twice`, or send a `late` older commit after it."""
        self._wanted = dict.fromkeys(GROUPS, how)

    # -- inside ----------------------------------------------------------------------------------

    def _new_process(self) -> int:
        self._processes += 1
        return self._processes

    async def _keep_producing(self, number: int) -> None:
        while not self._is_stopped:
            with trio.CancelScope() as scope:
                self._producers.append(scope)
                try:
                    await self._produce(number)
                except* RaftmqError:
                    # The connect failed in time: every send before it has its outcome already.
                    await trio.sleep(0.1)
            self._producers.remove(scope)

    async def _produce(self, number: int) -> None:
        window = trio.Semaphore(WINDOW)
        processes = [self._new_process() for _ in range(QUEUES)]
        async with (
            raftmq.connect(self._url(), timeout=20.0) as mq,
            mq.producer(TOPIC) as producer,
            trio.open_nursery() as nursery,
        ):
            turn = number
            while not self._is_stopped:
                await window.acquire()
                turn += 1
                queue = turn % QUEUES
                values = [self._recorder.unique_value() for _ in range(self._batch_messages)]
                key = str(queue)
                keys = [f"{key}-{value % 7}" for value in values]
                sent = [self._sent(*pair) for pair in zip(values, keys, strict=True)]
                operation = self._recorder.invoke_many(
                    processes[queue], "send", [(key, value) for value in sent]
                )
                pending = producer.send_many_nowait(
                    bodies=[b"%d" % value for value in values],
                    keys=keys,
                    tags=self._tags(values),
                    queue=queue,
                    timeout=SEND_SECONDS_MAX,
                )
                nursery.start_soon(self._await_receipts, operation, pending, key, sent, window)
                await trio.sleep(self._pause_seconds * self._random.uniform(0.5, 1.5))

    def _sent(self, number: int, key: str) -> Value:
        """A message's value in the history."""
        return number

    def _tags(self, numbers: list[int]) -> list[str | None] | None:
        """The messages' tags; None: the messages have no tags."""
        return None

    async def _await_receipts(
        self,
        operation: int,
        pending: PendingMany,
        key: str,
        values: list[Value],
        window: trio.Semaphore,
    ) -> None:
        sent: SentMany = await pending.wait(check=False)
        window.release()
        errors = [part.error for part in sent.ranges if part.error is not None]
        if not errors:
            self.acked += len(values)
            rows = [
                (key, values[position], part.receipt(nth).offset)
                for part in sent.ranges
                for nth, position in enumerate(part.positions)
            ]
            self._recorder.ok_many(operation, rows)
        elif len(errors) < len(sent.ranges) or any(isinstance(e, OutcomeUnknown) for e in errors):
            # A part of the batch happened, or may have: a failed send promises that nothing did.
            self._recorder.unknown(operation)
        else:
            self._recorder.fail(operation)

    async def _keep_consuming(self, group: str) -> None:
        is_done = False
        while not is_done:
            with trio.CancelScope() as scope:
                self._consumers[group] = scope
                try:
                    is_done = await self._consume(group)
                except* RaftmqError as errors:
                    self._notice(group, errors)
                    await trio.sleep(0.1)
        self._groups_done += 1

    def _notice(self, group: str, errors: BaseExceptionGroup[RaftmqError]) -> None:
        for error in leaves(errors):
            if isinstance(error, Rejected | UnreadableBatch):
                self._complain("consumer-refused", f"group {group}: {error}")

    async def _consume(self, group: str) -> bool:
        process = self._new_process()
        async with (
            raftmq.connect(self._url(), timeout=20.0) as mq,
            mq.consumer(TOPIC, group=group) as consumer,
        ):
            floor = self._floor.get(group, {})
            position = consumer.position
            self.went_back += sum(position[queue] < offset for queue, offset in floor.items())
            return await self._poll_until_end(process, consumer, group=group)

    async def _poll_until_end(self, process: int, consumer: raftmq.Consumer, *, group: str) -> bool:
        last = anyio.current_time()
        while not self._is_at_end(consumer):
            if self.consumers_stand_still and group:
                await trio.sleep(0.05)
                continue
            count = await self._poll(process, consumer, group or READER)
            now = anyio.current_time()
            if count:
                last = now
                if group:
                    self.polled += count
                    await self._commit(consumer, group)
                    await trio.sleep(self.consumer_pause_seconds)
                else:
                    self.read_back += count
            elif self._ends is not None and now - last > QUIET_SECONDS_MAX:
                found = f"is at {consumer.position}, the ends are {self._ends}"
                self._complain("V3", f"reader {group or 'of all'} {found}")
                return True
        return True

    async def _poll(self, process: int, consumer: raftmq.Consumer, group: str) -> int:
        operation = self._recorder.invoke(process, "poll", value=group)
        try:
            batch = await consumer.fetch(2_000, wait=0.2)
        except RaftmqError:
            self._recorder.fail(operation)
            raise
        rows = [(str(m.queue), int(m.body), m.offset) for m in batch]
        self._recorder.ok_many(operation, rows)
        return len(rows)

    async def _commit(self, consumer: raftmq.Consumer, group: str) -> None:
        """Commit the position, and make the odd commit that the nemesis asked for."""
        position = consumer.position
        floor = self._floor.setdefault(group, {})
        how = self._wanted.pop(group, "")
        try:
            await consumer.commit(position, timeout=5.0)
            floor.update(position)
            if how == "twice":
                await consumer.commit(position, timeout=5.0)
            elif how == "late":
                earlier = {queue: max(offset - 10, 0) for queue, offset in position.items()}
                # A commit may happen whatever its answer is, so the floor is lowered first.
                floor.update(earlier)
                await consumer.commit(earlier, timeout=5.0)
        except RaftmqError as error:
            if isinstance(error, Rejected):
                self._complain("consumer-refused", f"commit of group {group}: {error}")

    def _is_at_end(self, consumer: raftmq.Consumer) -> bool:
        if self._ends is None:
            return False
        position = consumer.position
        return all(position[queue] >= end for queue, end in self._ends.items())


def leaves(group: BaseExceptionGroup[RaftmqError]) -> list[BaseException]:
    """The exceptions inside nested groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
