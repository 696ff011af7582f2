"""Random faults: acked messages are stored once and in order, and a consumer sees just the log.

Each seed draws a fate for every request: connections cut before or after the batch was applied,
lost answers, refusals, leaders that move. Producers of all kinds send; a consumer reads meanwhile.

Laws, per queue:
- each message acked is stored exactly once, at the offset of its receipt, and none is stored twice;
- the messages of one producer are stored in the order in which they were sent;
- a message told `Unavailable` is not stored;
- the consumer is handed exactly the log, in order;
- the client's own check raises no alarm.
"""

from collections import Counter
from random import Random

import anyio
import pytest

from raftmq.client import Client, Producer, connect
from raftmq.errors import OutcomeUnknown, RaftmqError, Unavailable
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

QUEUES = 3
# A node that is silent for good has a test of its own: here it would only cost time.
FATES = [f for f in Fate if f not in {Fate.DONE, Fate.IGNORED, Fate.APPLIED_AND_IGNORED}]


class Run:
    """One random run, and the answers that its producers got."""

    def __init__(self, cluster: FakeCluster, seed: int, *, fault_share: float) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.fault_share = fault_share
        self.acked: dict[bytes, tuple[int, int | None]] = {}
        self.denied: set[bytes] = set()
        self.sent: dict[str, list[bytes]] = {}

    def fate(self, _: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.METADATA or self.random.random() > self.fault_share:
            return Fate.DONE
        if self.random.random() < 0.3:
            group = self.random.choice(list(self.cluster.logs))
            self.cluster.move(group, self.random.randint(1, 3))
            return Fate.DONE
        return self.random.choice(FATES)

    async def produce(self, mq: Client, name: str, count: int) -> None:
        batch = self.random.choice([1, 2, 7, 1000])
        linger = self.random.choice([None, 0.003])
        async with mq.producer("orders", batch_messages=batch, linger=linger) as p:
            for number in range(count):
                await self.send_one(p, name, number)
                if self.random.random() < 0.1:
                    await anyio.sleep(self.random.random() * 0.01)
            for _ in range(50):
                try:
                    await p.flush()
                    break
                except RaftmqError:
                    continue

    async def send_one(self, p: Producer, name: str, number: int) -> None:
        timeout = self.random.choice([0.05, 0.5, 20.0])
        queue = self.random.randrange(QUEUES)
        kind = self.random.randrange(3)
        bodies = [b"%s-%06d-%d" % (name.encode(), number, n) for n in range(1 + 4 * (kind == 2))]
        self.sent.setdefault(f"{name}/{queue}", []).extend(bodies)
        if kind == 0:
            pending = p.send_nowait(bodies[0], queue=queue, timeout=timeout)
            self.tasks.start_soon(self.hear, pending, bodies[0])
        elif kind == 1:
            try:
                receipt = await p.send(bodies[0], queue=queue, timeout=timeout)
                self.acked[bodies[0]] = (receipt.queue, receipt.offset)
            except RaftmqError as error:
                self.took(bodies[0], error)
        else:
            sent = await p.send_many(bodies, queue=queue, timeout=timeout, check=False)
            for body, outcome in zip(bodies, sent, strict=True):
                if isinstance(outcome, RaftmqError):
                    self.took(body, outcome)
                else:
                    self.acked[body] = (outcome.queue, outcome.offset)

    async def hear(self, pending: "object", body: bytes) -> None:
        from raftmq.client import PendingSend

        assert isinstance(pending, PendingSend)
        try:
            receipt = await pending.wait()
            self.acked[body] = (receipt.queue, receipt.offset)
        except RaftmqError as error:
            self.took(body, error)

    def took(self, body: bytes, error: RaftmqError) -> None:
        assert isinstance(error, Unavailable | OutcomeUnknown), error
        if isinstance(error, Unavailable):
            self.denied.add(body)

    async def run(self, *, producers: int, count: int) -> list[list[bytes]]:
        """Produce and consume; returns the messages that the consumer was handed, by queue."""
        handed: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.cluster.fate = self.fate
        async with (
            connect(URL, world=self.cluster, check=True) as mq,
            mq.consumer("orders", group="g") as c,
            anyio.create_task_group() as self.tasks,
        ):
            reading = anyio.CancelScope()

            async def read() -> None:
                with reading:
                    while True:
                        for m in await c.fetch(self.random.randint(1, 20), wait=0.05):
                            assert m.offset == len(handed[m.queue])
                            handed[m.queue].append(m.body)

            self.tasks.start_soon(read)
            async with anyio.create_task_group() as producing:
                for number in range(producers):
                    producing.start_soon(self.produce, mq, f"p{number}", count)
            self.cluster.fate = lambda _node, _frame: Fate.DONE
            # Requests still on their way arrive.
            await anyio.sleep(0.25)
            with anyio.fail_after(30.0):
                while [len(q) for q in handed] != [len(q) for q in self.cluster.stored()]:
                    await anyio.sleep(0.01)
            reading.cancel()
            assert (await mq.check()).verdict == "valid"
        return handed

    def check(self, handed: list[list[bytes]]) -> None:
        stored = self.cluster.stored()
        assert handed == stored
        counts = Counter(body for queue in stored for body in queue)
        assert all(count == 1 for count in counts.values()), counts.most_common(3)
        for body, (queue, offset) in self.acked.items():
            assert counts[body] == 1, f"{body!r} was acked and is not stored"
            assert offset is None or stored[queue][offset] == body
        assert not self.denied & set(counts), "stored, though Unavailable was told"
        for key, bodies in self.sent.items():
            mine = set(bodies)
            in_log = [body for body in stored[int(key[-1])] if body in mine]
            place = {body: at for at, body in enumerate(bodies)}
            assert in_log == sorted(in_log, key=place.__getitem__), f"order of {key}"


@pytest.mark.parametrize("seed", range(12))
async def test_acked_is_stored_once_in_order_and_consumers_see_the_log(
    cluster: FakeCluster, seed: int
) -> None:
    cluster.create_topic(queues=QUEUES)
    run = Run(cluster, seed, fault_share=[0.02, 0.1, 0.3][seed % 3])
    handed = await run.run(producers=3, count=40)
    run.check(handed)
    assert len(run.acked) > 100
