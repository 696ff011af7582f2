"""A steady load on a real cluster, and the proof afterwards.

Several producers write small batches to all queues of a topic, one consumer group reads while they
do, and a last reader reads everything again when it is over. `demo.checker` compares: acked
messages are there exactly once, as sent and where the receipt says; refused ones are not there; in
order for each producer and queue, which is the key here.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

import raftmq
from demo.checker import Ledger, Witness
from raftmq.client import PendingMany
from raftmq.errors import OutcomeUnknown
from raftmq.testing import Cluster

TOPIC = "load"
QUEUES = 6
PRODUCERS = 2
ROWS_MAX = 200_000
BATCH_MESSAGES = 10
WINDOW = 32
PAUSE_SECONDS = 0.004
"""After each batch of a producer: faults are wanted here, not a full processor."""
SEND_SECONDS_MAX = 40.0
QUIET_SECONDS_MAX = 20.0


class Load:
    """The load on one cluster; see `running`."""

    def __init__(self, nodes: Cluster) -> None:
        self.ledger = Ledger(ROWS_MAX)
        """Rows that were sent, acked and refused."""
        self.live = Witness(self.ledger, "live")
        """Rows that the consumer group read meanwhile."""
        self.errors: list[Exception] = []
        """Why messages were not acked."""
        self._nodes = nodes
        self._next_row = 0
        self._is_stopped = False
        self._ends: dict[int, int] | None = None

    async def wait_acked(self, count: int, *, timeout: float = 40.0) -> None:
        """Wait until this many more messages are acked."""
        until = self.ledger.acked + count
        with anyio.fail_after(timeout):
            while self.ledger.acked < until:
                await anyio.sleep(0.01)

    async def produce(self, number: int) -> None:
        """One producer, until the load is stopped."""
        window = anyio.Semaphore(WINDOW)
        async with (
            raftmq.connect(self._nodes.url) as mq,
            mq.producer(TOPIC) as producer,
            anyio.create_task_group() as tasks,
        ):
            turn = number
            while not self._is_stopped:
                await window.acquire()
                turn += 1
                queue = turn % QUEUES
                rows = range(self._next_row, self._next_row + BATCH_MESSAGES)
                self._next_row = rows.stop
                key = f"producer {number}, queue {queue}"
                props = [{"row": row} for row in rows]
                bodies = [b"%d " % row * 10 for row in rows]
                for row, body, prop in zip(rows, bodies, props, strict=True):
                    self.ledger.send(row, body, key, None, prop)
                pending = producer.send_many_nowait(
                    bodies=bodies,
                    keys=[key] * len(bodies),
                    props=props,
                    queue=queue,
                    timeout=SEND_SECONDS_MAX,
                )
                tasks.start_soon(self._take_receipts, pending, rows, window)
                await anyio.sleep(PAUSE_SECONDS)

    async def read(self) -> None:
        """The consumer group, until the ends are known and reached."""
        async with (
            raftmq.connect(self._nodes.url) as mq,
            mq.consumer(TOPIC, group=self.live.name, auto_commit=0.2) as consumer,
        ):
            await self._read_on(consumer, self.live)

    async def verify(self) -> None:
        """Read everything again, and compare both readings with the sent messages."""
        last = Witness(self.ledger, "last")
        async with raftmq.connect(self._nodes.url) as mq, mq.consumer(TOPIC) as consumer:
            await self._read_on(consumer, last)
        for witness in (self.live, last):
            witness.finish()
            found = {k.name: f for k, f in witness.findings.items() if f.count}
            assert not found, f"{witness.name}: {found}"
        assert self.ledger.acked > 0

    def stop(self) -> None:
        """Send no more."""
        self._is_stopped = True

    async def find_ends(self) -> None:
        """Ask where the queues end."""
        async with raftmq.connect(self._nodes.url) as mq:
            self._ends = await mq.admin.find_offsets(TOPIC, "latest")

    async def _read_on(self, consumer: raftmq.Consumer, witness: Witness) -> None:
        last = anyio.current_time()
        while self._ends is None or any(
            consumer.position[queue] < end for queue, end in self._ends.items()
        ):
            batch = await consumer.fetch(500, wait=0.1)
            for m in batch:
                witness.see(m.body, m.key, m.tag, m.props, queue=m.queue, offset=m.offset)
            now = anyio.current_time()
            if batch or self._ends is None:
                last = now
            quiet = f"{witness.name} is at {consumer.position}, the ends are {self._ends}"
            assert now - last < QUIET_SECONDS_MAX, quiet

    async def _take_receipts(
        self, pending: PendingMany, rows: range, window: anyio.Semaphore
    ) -> None:
        sent = await pending.wait(check=False)
        window.release()
        for part in sent.ranges:
            for nth, position in enumerate(part.positions):
                if part.error is None:
                    self.ledger.ack(rows[position], part.queue, part.receipt(nth).offset)
                elif not isinstance(part.error, OutcomeUnknown):
                    self.ledger.refuse(rows[position])
            if part.error is not None:
                self.errors.append(part.error)


@asynccontextmanager
async def running(nodes: Cluster) -> AsyncIterator[Load]:
    """`async with running(nodes) as load:` keeps it up; afterwards everything is verified."""
    load = Load(nodes)
    async with raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
    async with anyio.create_task_group() as readers:
        readers.start_soon(load.read)
        async with anyio.create_task_group() as producers:
            for number in range(PRODUCERS):
                producers.start_soon(load.produce, number)
            await load.wait_acked(500)
            yield load
            load.stop()
        await load.find_ends()
    await load.verify()


async def wait_agreed(nodes: Cluster, *, timeout: float = 40.0) -> None:
    """Wait until all replicas of each partition group are in the same state."""
    with anyio.fail_after(timeout):
        while True:
            statuses = await nodes.statuses()
            states: dict[int, set[tuple[int, int]]] = {}
            for status in statuses.values():
                for group in status["groups"]:
                    state = (group["applied"], group["digest"])
                    states.setdefault(group["group"], set()).add(state)
            is_all = list(statuses) == nodes.nodes
            if is_all and all(len(state) == 1 for state in states.values()):
                return
            await anyio.sleep(0.1)
