"""Random faults under consumers that pop: nothing is lost, nothing comes twice under one token.

Each seed draws a fate for every request, leaders that move, cancellations, and what the application
does with each message: ack it alone, with others, without waiting, nack it, give it back, forget
it. Meanwhile messages come in.

Laws:
- no message is handed on twice under one token;
- a message whose ack was confirmed is never handed on again, under no token;
- in the end each message is acked, and the machine's books add up.
"""

from collections.abc import Sequence
from random import Random

import anyio
import pytest

from raftmq.client import connect
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import PoppedMessage, PoppedMessages
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.machine.catalog.consumer_groups import PutConsumerGroup
from raftmq.pop.policy import Mode, Policy
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import add
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate
from tests.client.popping_cluster import audit

pytestmark = pytest.mark.anyio

QUEUES = 4
FATES = [f for f in Fate if f not in {Fate.DONE, Fate.IGNORED, Fate.APPLIED_AND_IGNORED}]
FATES.remove(Fate.BEHIND)


class Run:
    """One random run, and the messages that its consumers saw."""

    def __init__(self, cluster: FakeCluster, seed: int, fault_share: float) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.fault_share = fault_share
        self.seen: set[tuple[str, int]] = set()
        self.acked: set[str] = set()
        self.total = 0

    def fate(self, _: FakeNode, frame: Frame) -> Fate:
        if frame.kind in {FrameKind.METADATA, FrameKind.ADMIN}:
            return Fate.DONE
        if self.random.random() > self.fault_share:
            return Fate.DONE
        if self.random.random() < 0.3:
            group = self.random.choice(list(self.cluster.logs))
            self.cluster.move(group, self.random.randint(1, 3))
            return Fate.DONE
        return self.random.choice(FATES)

    def took(self, messages: Sequence[PoppedMessage]) -> None:
        for m in messages:
            assert (m.id, m.token) not in self.seen, f"{m.id} twice under token {m.token}"
            assert m.id not in self.acked, f"{m.id} came again after its ack"
            self.seen.add((m.id, m.token))

    async def use(self, c: PopConsumer, batch: PoppedMessages) -> None:
        """Settle messages in one way or another."""
        timeout = self.random.choice([0.02, 0.5, 20.0])
        ids = [m.id for m in batch]
        try:
            match self.random.randrange(7):
                case 0:
                    settlement = await batch.ack(timeout=timeout)
                    self.acked |= set(ids) - {m.id for m in settlement.fenced}
                case 1:
                    for m in batch:
                        await m.ack(timeout=timeout)
                        self.acked.add(m.id)
                case 2:
                    batch.ack_nowait()
                    settlement = await c.flush(timeout=timeout)
                    if not settlement.fenced:
                        self.acked |= set(ids)
                case 3:
                    await batch.nack(self.random.choice([0.0, 0.05]), timeout=timeout)
                case 4:
                    await c.nack(list(batch)[::2], 0.0, timeout=timeout)
                    settlement = await c.ack(list(batch)[1::2], timeout=timeout)
                    self.acked |= set(ids[1::2]) - {m.id for m in settlement.fenced}
                case 5:
                    await batch.give_back(timeout=timeout)
                case 6:
                    await batch[0].extend(0.5, timeout=timeout)
        except Rejected as error:
            if error.reason is not Reason.FENCED:
                raise
        except (Unavailable, OutcomeUnknown):
            pass

    async def consume(self, c: PopConsumer) -> None:
        while True:
            count = self.random.choice([1, 3, 10])
            with anyio.move_on_after(self.random.choice([0.001, 0.01, 1.0])):
                # No other task may run between the return of `pop` and our note.
                batch = await c.pop(count, wait=self.random.choice([0.0, 0.05]))
                self.took(list(batch))
                if batch:
                    await self.use(c, batch)

    async def feed(self, batches: int) -> None:
        for _ in range(batches):
            queue = next(iter(self.cluster.catalog.topics.values())).id << 16
            count = self.random.randint(1, 8)
            add(self.cluster, queue + self.random.randrange(QUEUES), count, batch=3)
            self.total += count
            await anyio.sleep(self.random.random() * 0.02)


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_and_nothing_comes_twice_by_one_token(
    cluster: FakeCluster, seed: int
) -> None:
    cluster.create_topic(queues=QUEUES)
    policy = Policy(schedule_ms=(50,), attempts_max=1_000_000)
    cluster.change_catalog(PutConsumerGroup("g", Mode.POP, policy))
    run = Run(cluster, seed, [0.02, 0.1, 0.3][seed % 3])
    cluster.fate = run.fate
    for node in cluster.nodes.values():
        node.popping.answer_messages = run.random.choice([2, 1000])
    prefetch = run.random.choice([0, 4, 500])
    async with connect(URL, world=cluster) as mq:
        async with (
            mq.consumer("orders", group="g", mode="pop", invisible=1.0, prefetch=prefetch) as one,
            mq.consumer("orders", group="g", mode="pop", invisible=1.0) as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run.consume, one)
            tasks.start_soon(run.consume, two)
            await run.feed(40)
            await anyio.sleep(0.3)
            cluster.fate = lambda _node, _frame: Fate.DONE
            tasks.cancel_scope.cancel()
        await anyio.sleep(0.5)
        with anyio.fail_after(60.0):
            async with mq.consumer("orders", group="g", mode="pop") as last:
                while audit(cluster) != {"acked": run.total}:
                    batch = await last.pop(50, wait=0.5)
                    run.took(list(batch))
                    await batch.ack()
    assert audit(cluster) == {"acked": run.total}
    assert len(run.seen) >= run.total
