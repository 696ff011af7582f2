"""Producers and consumers of one topic: what is sent, read and committed, as a history.

| client | does |
|---|---|
| producer-1 .. n | sends with and without keys, one by one, many at once, without waiting |
| looker | looks for keys, if disks rot |
| consumer-a, consumer-b | read all queues as two groups, commit at times, start again where |
| | they had committed |

Every value is a number that was never sent before; the body carries it, and some padding. The
row's key is the queue, `t/0`; a keyed message names the queue that its key leads to, and the
receipt must agree. Commits, and what a consumer finds committed, are writes and reads of a
register, `a t/0`.

Invariants:
- A message whose send did not end with a receipt is `unknown`, or `fail` if the client promised
  that it is not stored (`Unavailable`, `Rejected`).
- Consumers drain: they stop when they have read up to the ends that the leaders told after the last
  producer was done.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import trio

from raftmq.batch import queue_of
from raftmq.chaos.sim.checks.availability import JUDGED
from raftmq.chaos.sim.clients import Clients, Job, Session
from raftmq.checkers.history import Recorder
from raftmq.client import Client, Consumer, PendingSend, Producer, Receipt
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

TOPIC = "t"
QUEUES = 4
PRODUCERS = 3
GROUPS = ("a", "b")

THINK_SECONDS = 0.15
"""Between two calls of a producer, on average."""
SEND_SECONDS = (0.3, 2.0, 6.0)
"""Timeouts of sends."""
COMMIT_SECONDS = 1.0
"""Between two commits of a consumer, on average."""
LOOK_SECONDS = 1.0
"""Between two looks for a key, on average."""
FOUND_MAX = 5
"""Messages of a key that are asked for."""
PADDINGS = (0, 0, 50, 400, 2000)
"""Bytes beside the value in a body."""
KEYS = 20
"""Different keys."""


def queue_key(queue: int) -> str:
    """Name of a queue in the history."""
    return f"{TOPIC}/{queue}"


def body_of(value: int, padding: int) -> bytes:
    """A message that carries a value."""
    return b"%d %s" % (value, bytes(padding))


def value_of(body: bytes) -> int:
    """The value that a message carries."""
    return int(body.partition(b" ")[0])


class LogWorkload:
    """The clients' side of a run."""

    served: Sequence[str] = JUDGED
    """Calls that must succeed while a majority is well."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        self._clients = clients
        self._recorder = recorder
        self.is_sending = True
        """Producers go on as long as this is true."""
        self.ends: dict[int, int] | None = None
        """By queue: where consumers may stop; None: not yet known."""
        self.counts: Counter[str] = Counter()
        """Acknowledged, refused, delivered and so on."""
        self.drained: set[str] = set()
        """Consumer groups that have read everything."""
        self.producers_left = PRODUCERS
        """Producers that still send."""

    async def prepare(self) -> None:
        """Create the topic."""

        async def job(mq: Client, _: Session) -> None:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)

        await self._clients.once(job)

    async def keep_all(self) -> None:
        """Have the topic keep all messages, however little the nodes' settings keep."""

        async def job(mq: Client, _: Session) -> None:
            while True:
                try:
                    await mq.settings.put({"log.retention_ms": 0}, scope="topic", of=TOPIC)
                    return
                except Rejected as error:
                    # A new cluster has the first level for a moment, which knows no settings.
                    if error.reason is not Reason.OLD_SOFTWARE:
                        raise
                await trio.sleep(0.1)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(PRODUCERS):
            self._clients.start(f"producer-{number + 1}", self._produce)
        for group in GROUPS:
            self._clients.start(f"consumer-{group}", self._consumer_of(group))

    async def look(self, mq: Client, session: Session) -> None:
        """Search by key: that reads parts of the indexes which nothing else reads."""
        while self.is_sending:
            # A key without a message is looked for in every index, and none costs more than a few.
            key = f"k{session.random.randrange(2 * KEYS)}"
            try:
                found = await mq.find(TOPIC, key=key, limit=FOUND_MAX, timeout=SEND_SECONDS[-1])
            except RaftmqError:
                self.counts["looks refused"] += 1
            else:
                self.counts["looks"] += 1
                assert all(message.key == key for message in found), f"others than of key {key}"
            await trio.sleep(session.random.expovariate(1 / LOOK_SECONDS))

    async def find_ends(self) -> None:
        """Ask the leaders for the ends of the queues."""

        async def job(mq: Client, _: Session) -> None:
            self.ends = await mq.admin.find_offsets(TOPIC, "latest")

        await self._clients.once(job)

    @property
    def progress(self) -> int:
        """Messages that were acknowledged."""
        return self.counts["acked"]

    @property
    def is_drained(self) -> bool:
        """True if every group has read everything."""
        return len(self.drained) == len(GROUPS)

    # Producers

    async def _produce(self, mq: Client, session: Session) -> None:
        random = session.random
        linger = random.choice([None, None, 0.005])
        async with (
            mq.producer(TOPIC, linger=linger, buffer_messages=500) as producer,
            trio.open_nursery() as nursery,
        ):
            while self.is_sending:
                match random.randrange(4):
                    case 0 | 1:
                        await self._send(producer, session)
                    case 2:
                        await self._send_many(producer, session)
                    case _:
                        self._send_nowait(producer, session, nursery)
                await trio.sleep(random.expovariate(1 / THINK_SECONDS))
        self.producers_left -= 1

    def _message(self, random: Random) -> tuple[int, bytes, str | None, int]:
        """A value, the body that carries it, a key or none, and the queue it goes to."""
        value = self._recorder.unique_value()
        body = body_of(value, random.choice(PADDINGS))
        if random.random() < 0.5:
            key = f"k{random.randrange(KEYS)}"
            return value, body, key, queue_of(key, QUEUES)
        return value, body, None, random.randrange(QUEUES)

    def _begin(self, session: Session, value: int, key: str | None, queue: int) -> int:
        """A send begins."""
        return self._recorder.invoke(session.number, "send", queue_key(queue), value)

    def _tag(self, value: int) -> str | None:
        """A message's tag."""
        return None

    async def _send(self, producer: Producer, session: Session) -> None:
        value, body, key, queue = self._message(session.random)
        timeout = session.random.choice(SEND_SECONDS)
        named = None if key else queue
        operation = self._begin(session, value, key, queue)
        try:
            receipt = await producer.send(
                body, key=key, tag=self._tag(value), queue=named, timeout=timeout
            )
        except RaftmqError as error:
            self._failed(operation, error)
        else:
            self._stored(operation, receipt, queue)

    async def _send_many(self, producer: Producer, session: Session) -> None:
        random = session.random
        _, _, key, queue = self._message(random)
        values = [self._recorder.unique_value() for _ in range(random.randint(2, 12))]
        bodies = [body_of(value, random.choice(PADDINGS)) for value in values]
        timeout = random.choice(SEND_SECONDS)
        operations = [self._begin(session, value, key, queue) for value in values]
        keys = [key] * len(bodies) if key else None
        tags = [self._tag(value) for value in values]
        named = None if key else queue
        try:
            sent = await producer.send_many(
                bodies=bodies, keys=keys, tags=tags, queue=named, timeout=timeout, check=False
            )
        except RaftmqError as error:
            for operation in operations:
                self._failed(operation, error)
            return
        for operation, outcome in zip(operations, sent, strict=True):
            if isinstance(outcome, RaftmqError):
                self._failed(operation, outcome)
            else:
                self._stored(operation, outcome, queue)

    def _send_nowait(self, producer: Producer, session: Session, nursery: trio.Nursery) -> None:
        for _ in range(session.random.randint(1, 4)):
            value, body, key, queue = self._message(session.random)
            timeout = session.random.choice(SEND_SECONDS)
            named = None if key else queue
            operation = self._begin(session, value, key, queue)
            try:
                pending = producer.send_nowait(
                    body, key=key, tag=self._tag(value), queue=named, timeout=timeout
                )
            except RaftmqError as error:
                self._failed(operation, error)
            else:
                nursery.start_soon(self._hear, pending, operation, queue)

    async def _hear(self, pending: PendingSend, operation: int, queue: int) -> None:
        try:
            receipt = await pending.wait()
        except RaftmqError as error:
            self._failed(operation, error)
        else:
            self._stored(operation, receipt, queue)

    def _stored(self, operation: int, receipt: Receipt, queue: int) -> None:
        assert receipt.queue == queue, f"sent to queue {queue}, stored in {receipt.queue}"
        self.counts["acked"] += 1
        self._recorder.ok(operation, offset=receipt.offset)

    def _failed(self, operation: int, error: RaftmqError) -> None:
        match error:
            case Unavailable():
                self.counts["unavailable"] += 1
                self._recorder.fail(operation)
            case Rejected():
                self.counts[f"rejected {error.reason.value}"] += 1
                self._recorder.fail(operation)
            case _:
                self.counts["unknown"] += isinstance(error, OutcomeUnknown)
                self._recorder.unknown(operation)

    # Consumers

    def _consumer_of(self, group: str) -> Job:
        async def consume(mq: Client, session: Session) -> None:
            async with mq.consumer(TOPIC, group=group, prefetch_bytes=200_000) as consumer:
                await _Reading(self._recorder, self._clients, group, consumer, session).run(
                    lambda: self.ends, self.counts
                )
            self.drained.add(group)

        return consume


class _Reading:
    """One process of a consumer group."""

    def __init__(
        self,
        recorder: Recorder,
        clients: Clients,
        group: str,
        consumer: Consumer,
        session: Session,
    ) -> None:
        self._recorder = recorder
        self._clients = clients
        self._group = group
        self._consumer = consumer
        self._session = session
        self._committed: dict[int, int] = {}

    async def run(self, ends: Callable[[], dict[int, int] | None], counts: Counter[str]) -> None:
        """Read and commit until all queues were read up to their ends."""
        await self._read_committed()
        random = self._session.random
        commit_at = trio.current_time() + random.expovariate(1 / COMMIT_SECONDS)
        while not self._is_done(ends()):
            counts["delivered"] += await self._poll()
            if self._clients.slowness:
                await trio.sleep(self._clients.slowness)
            if trio.current_time() >= commit_at:
                await self._commit(self._consumer.position)
                commit_at = trio.current_time() + random.expovariate(1 / COMMIT_SECONDS)

    def _is_done(self, ends: dict[int, int] | None) -> bool:
        position = self._consumer.position
        return ends is not None and all(position[queue] >= end for queue, end in ends.items())

    async def _poll(self) -> int:
        operation = self._recorder.invoke(self._session.number, "poll", value=self._group)
        try:
            messages = await self._consumer.fetch(self._session.random.randint(1, 100), wait=0.5)
        except Unavailable:
            self._recorder.fail(operation)
            return 0
        columns = zip(messages.queues, messages.bodies, messages.offsets, strict=True)
        rows = [(queue_key(queue), value_of(body), offset) for queue, body, offset in columns]
        self._recorder.ok_many(operation, rows)
        return len(rows)

    def _register(self, queue: int) -> str:
        return f"{self._group} {queue_key(queue)}"

    async def _read_committed(self) -> None:
        operations = {
            queue: self._recorder.invoke(self._session.number, "read", self._register(queue))
            for queue in range(QUEUES)
        }
        try:
            found = await self._consumer.committed()
        except RaftmqError:
            for operation in operations.values():
                self._recorder.fail(operation)
            raise
        for queue, operation in operations.items():
            self._recorder.ok(operation, value=found.get(queue))

    async def _commit(self, position: dict[int, int]) -> None:
        changed = {q: at for q, at in position.items() if self._committed.get(q) != at}
        if not changed:
            return
        before = self._committed | {}
        await self._write(changed)
        if self._clients.repeats:
            self._clients.repeats -= 1
            await self._write(changed)
        late = {queue: before[queue] for queue in changed if queue in before}
        if self._clients.late_acks and late:
            self._clients.late_acks -= 1
            await self._write(late)

    async def _write(self, offsets: dict[int, int]) -> None:
        operations = [
            self._recorder.invoke(self._session.number, "write", self._register(queue), offset)
            for queue, offset in offsets.items()
        ]
        try:
            await self._consumer.commit(offsets, timeout=2.0)
        except (Unavailable, OutcomeUnknown) as error:
            is_open = isinstance(error, OutcomeUnknown)
            for operation in operations:
                (self._recorder.unknown if is_open else self._recorder.fail)(operation)
            return
        self._committed |= offsets
        for operation in operations:
            self._recorder.ok(operation)
