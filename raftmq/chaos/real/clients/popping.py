"""Consumers that pop, on real processes; see `raftmq.chaos.workloads.popping`. One more producer
delays messages and opens transactions; see `raftmq.chaos.workloads.withholding`.

Invariants:
- A client that was made to end leaves its calls without an end, and the next one is a new process
  of the history.

Left out: reading the committed log along, as the simulated world does.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import trio

import raftmq
from raftmq.chaos.workloads.popping import FEW, KINDS, Popping, groups_of, tag_of, written
from raftmq.chaos.workloads.withholding import Withholding
from raftmq.checkers.history import Recorder, Value
from raftmq.errors import RaftmqError

from .workload import QUEUES, TOPIC, Complain, Workload

BATCH_MESSAGES = 5
PAUSE_SECONDS = 0.05
"""Pause between two batches of a producer; slow, since many messages are settled one by one."""

HANG_SECONDS = 3.0
"""Time for which a hanging consumer holds its messages."""


class PopWorkload(Workload):
    """The clients of one run: the producers of `Workload`, and consumers that pop."""

    def __init__(
        self, url: Callable[[], str], recorder: Recorder, *, seed: int, complain: Complain
    ) -> None:
        super().__init__(
            url,
            recorder,
            seed=seed,
            complain=complain,
            batch_messages=BATCH_MESSAGES,
            pause_seconds=PAUSE_SECONDS,
        )
        self.repeats = self.late_acks = 0
        self.counts: Counter[str] = Counter()
        """Delivered, settled, refused and so on."""
        self._groups = groups_of(seed, FEW)
        self._popping = Popping(
            recorder,
            self,
            topic=TOPIC,
            number_of=int,
            queue_name=str,
            counts=self.counts,
            groups=self._groups,
        )
        self._withholding = Withholding(
            recorder,
            topic=TOPIC,
            queues=QUEUES,
            queue_name=str,
            body_of=lambda number: b"%d" % number,
            number_of=int,
            now_ms=lambda: time.time_ns() // 1_000_000,
            counts=self.counts,
        )
        self._scopes: list[trio.CancelScope] = []
        self._deciding = trio.CancelScope()

    @property
    def slowness(self) -> float:
        """See `Habits`; a hanging consumer holds its messages longer than most leases run."""
        return HANG_SECONDS if self.consumers_stand_still else self.consumer_pause_seconds

    @slowness.setter
    def slowness(self, seconds: float) -> None:
        self.consumer_pause_seconds = seconds

    @property
    def polled(self) -> int:
        """Messages that consumers were handed."""
        return self.counts["delivered"]

    @polled.setter
    def polled(self, count: int) -> None:
        assert not count, "it is counted elsewhere"

    @property
    def is_read(self) -> bool:
        """Are all groups drained, and all withheld messages read?"""
        return self._popping.is_drained and self._withholding.is_read

    async def create_topic(self) -> None:
        """Create the topic and the groups."""
        await super().create_topic()
        async with raftmq.connect(self._url(), timeout=30.0) as mq:
            await self._popping.prepare(mq)

    async def produce(self) -> None:
        """All producers, until `stop`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().produce)
            nursery.start_soon(self._keep_withholding)

    async def consume(self) -> None:
        """All consumers, until nothing is left; and the task that decides open transactions."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deciding)
            for group in self._groups:
                for _ in range(KINDS[group].consumers):
                    nursery.start_soon(self._keep_popping, group)

    async def set_ends(self) -> None:
        """From now on consumers ack every message, so that the queues can be drained."""
        self._popping.is_draining = self._withholding.is_draining = True

    async def read_all(self) -> None:
        """Wait until nothing is left, and record the final state of all messages."""
        process = self._new_process()
        while not self.is_read:
            try:
                async with raftmq.connect(self._url(), timeout=30.0) as mq:
                    await self._withholding.read_all(mq, process)
                    await self._popping.audit(mq, process)
            except* RaftmqError as errors:
                self._notice("of all", errors)
                await trio.sleep(0.1)

    def churn(self) -> None:
        """End all consumers; new ones take their places."""
        for scope in self._scopes:
            scope.cancel()

    def restart(self) -> None:
        """End all producers, consumers and the process that checks back; new ones take their
        places."""
        super().restart()
        self._deciding.cancel()

    def commit_oddly(self, how: str) -> None:
        """Ack the next batches `twice`, or some forgotten batches `late`."""
        if how == "twice":
            self.repeats += 2
        else:
            self.late_acks += 2

    # -- inside ----------------------------------------------------------------------------------

    def _sent(self, number: int, key: str) -> Value:
        return written(number, key)

    def _tags(self, numbers: list[int]) -> list[str | None] | None:
        return [tag_of(number) for number in numbers]

    async def _keep_withholding(self) -> None:
        while not self._is_stopped:
            with trio.CancelScope() as scope:
                self._producers.append(scope)
                await self._connected(
                    lambda mq, process, random: self._withholding.produce(
                        mq, process, random, lambda: not self._is_stopped
                    )
                )
            self._producers.remove(scope)

    async def _keep_deciding(self) -> None:
        while not self._withholding.is_draining:
            with trio.CancelScope() as self._deciding:
                await self._connected(self._withholding.decide)

    async def _connected(
        self, job: Callable[[raftmq.Client, int, Random], Awaitable[None]]
    ) -> None:
        """Run a job as a process of its own, until the job ends or fails."""
        process, random = self._new_process(), Random(self._random.getrandbits(64))
        try:
            async with raftmq.connect(self._url(), timeout=20.0) as mq:
                await job(mq, process, random)
        except* RaftmqError as errors:
            self._notice("of withheld messages", errors)
            await trio.sleep(0.1)

    async def _keep_popping(self, group: str) -> None:
        while group not in self._popping.drained:
            process, random = self._new_process(), Random(self._random.getrandbits(64))
            with trio.CancelScope() as scope:
                self._scopes.append(scope)
                try:
                    async with raftmq.connect(self._url(), timeout=20.0) as mq:
                        await self._popping.consume(mq, process, random, group)
                except* RaftmqError as errors:
                    self._notice(group, errors)
                    await trio.sleep(0.1)
            self._scopes.remove(scope)
