"""Producers, and consumers that share out a topic's queues as members of one group.

Each client is one member after another: the member joins, reads, commits, and leaves or ends
without leaving; faults kill it, pause it, cut it off. Its reads are polls of the history:
`check_total_queue` checks that the members together read everything.

One more client makes groups that begin at the latest message: see
`raftmq.chaos.workloads.latecomers`.

Invariants, asserted by the clients themselves:
- The owner of a queue has an epoch that no other owner of the queue ever has.
- The offset that the leader tells as committed is never less than an offset that any owner had
  committed before the question: no commit of a former owner, however late, lands after its
  successor's.
"""

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import trio

from raftmq.chaos.sim.clients import Clients, Session
from raftmq.chaos.workloads.latecomers import Latecomers
from raftmq.checkers.history import Recorder
from raftmq.client import Client, Consumer
from raftmq.client.consume.offsets import Stamp, by_partition, commit_offsets
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.queue_numbers import QUEUE_BITS

from .log import PRODUCERS, TOPIC, LogWorkload, queue_key, value_of

MEMBERS = 3
GROUP = "m"
SESSION_SECONDS = 3.0
LIFE_SECONDS = 12.0
"""Mean life of a member; then the member leaves, and another one comes."""
DIES_SHARE = 0.3
"""Share of members that end without leaving their group."""
WORK_SECONDS = 0.2
"""Mean time that a member works on a batch."""
READS_SHARE = 0.5
"""Share of commits before which the member asks for the committed offsets."""


class _Commit(NamedTuple):
    """Contents of a commit."""

    offsets: dict[int, int]
    epochs: dict[int, int]
    sequence: int


class MembersWorkload(LogWorkload):
    """The clients' side of a run."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        super().__init__(clients, recorder)
        # Queue and epoch → the process that owned it.
        self._owners: dict[tuple[int, int], int] = {}
        # Queue → the highest offset of a commit that was acknowledged to any member.
        self._reached: Counter[int] = Counter()
        self._latecomers = Latecomers(counts=self.counts)
        self.producers_left += 1

    async def prepare(self) -> None:
        """Create the topics."""
        await super().prepare()

        async def job(mq: Client, _: Session) -> None:
            await self._latecomers.prepare(mq)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(PRODUCERS):
            self._clients.start(f"producer-{number + 1}", self._produce)
        for number in range(MEMBERS):
            self._clients.start(f"consumer-{number + 1}", self._take_part)
        self._clients.start("latecomer", self._come)

    @property
    def is_drained(self) -> bool:
        """True if all messages were read and committed, and latecomers have read theirs."""
        return self._is_committed and self._latecomers.is_read

    async def _come(self, mq: Client, session: Session) -> None:
        await self._latecomers.come(mq, session.random, lambda: self.is_sending)
        self.producers_left -= 1

    @property
    def _is_committed(self) -> bool:
        """True if members have read and committed all messages."""
        return self.ends is not None and all(
            self._reached[queue] >= end for queue, end in self.ends.items()
        )

    async def _take_part(self, mq: Client, session: Session) -> None:
        random = session.random
        while not self._is_committed:
            life = random.expovariate(1 / LIFE_SECONDS)
            dies = life if random.random() < DIES_SHARE else float("inf")
            with trio.move_on_after(dies):
                async with mq.consumer(
                    TOPIC,
                    group=GROUP,
                    queues="assigned",
                    session=SESSION_SECONDS,
                    prefetch_bytes=200_000,
                ) as consumer:
                    self.counts["members"] += 1
                    await self._be_member(consumer, session, trio.current_time() + life)

    async def _be_member(self, consumer: Consumer, session: Session, until: float) -> None:
        random, earlier = session.random, _Commit({}, {}, 0)
        while trio.current_time() < until and not self._is_committed:
            await self._poll(consumer, session)
            await trio.sleep(random.expovariate(1 / WORK_SECONDS) + self._clients.slowness)
            # Some time has passed since the last commit: an older commit may have arrived since.
            if random.random() < READS_SHARE:
                await self._read_committed(consumer)
            latest = _Commit(consumer.position, consumer.epochs, consumer._sequence + 1)
            await self._commit(consumer)
            if self._clients.late_acks and earlier.offsets:
                self._clients.late_acks -= 1
                await self._send_late(consumer, earlier)
                await self._read_committed(consumer)
            earlier = latest

    async def _poll(self, consumer: Consumer, session: Session) -> None:
        operation = self._recorder.invoke(session.number, "poll", value=GROUP)
        try:
            messages = await consumer.fetch(session.random.randint(1, 100), wait=0.5)
        except Unavailable:
            self._recorder.fail(operation)
            return
        columns = zip(messages.queues, messages.bodies, messages.offsets, strict=True)
        rows = [(queue_key(queue), value_of(body), offset) for queue, body, offset in columns]
        self._recorder.ok_many(operation, rows)
        self.counts["delivered"] += len(rows)
        for queue, epoch in consumer.epochs.items():
            owner = self._owners.setdefault((queue, epoch), session.number)
            assert owner == session.number, f"queue {queue} has two owners in epoch {epoch}"

    async def _commit(self, consumer: Consumer) -> None:
        position = consumer.position
        try:
            await consumer.commit(timeout=2.0)
        except Rejected as error:
            if error.reason is not Reason.FENCED:
                raise
            self.counts["fenced"] += 1
        except (Unavailable, OutcomeUnknown):
            self.counts["commits in doubt"] += 1
        else:
            self.counts["commits"] += 1
            for queue, offset in position.items():
                self._reached[queue] = max(self._reached[queue], offset)

    async def _send_late(self, consumer: Consumer, commit: "_Commit") -> None:
        """A commit that was delayed on the network arrives after the next one."""
        view = consumer._view
        assert view is not None
        numbers = {view.id << QUEUE_BITS | queue: queue for queue in commit.offsets}
        groups = {number: view.groups[queue] for number, queue in numbers.items()}
        for group, part in by_partition(groups).items():
            offsets = {number: commit.offsets[numbers[number]] for number in part}
            epochs = {number: commit.epochs[numbers[number]] for number in part}
            stamp = Stamp(epochs, commit.sequence)
            with suppress(RaftmqError):
                await commit_offsets(consumer._router, group, GROUP, offsets, 2.0, stamp=stamp)
        self.counts["late commits"] += 1

    async def _read_committed(self, consumer: Consumer) -> None:
        floor = dict(self._reached)
        try:
            found = await consumer.committed(timeout=2.0)
        except Unavailable:
            return
        for queue, offset in found.items():
            least = floor.get(queue, 0)
            assert offset >= least, f"queue {queue} went back from {least} to {offset}"
