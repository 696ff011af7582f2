"""Producers, and consumers that pop, in the simulated world; see `raftmq.chaos.workloads.popping`.

Producers do as in the log workload; one more delays messages and opens transactions, see
`raftmq.chaos.workloads.withholding`. Faults show what one paused process costs the others: a client
that hangs holds its messages. In runs with quotas a crowd takes its part of them (`crowds`).
"""

from raftmq.chaos.sim.clients import Clients, Job, Session
from raftmq.chaos.workloads.popping import KINDS, Popping, groups_of, tag_of, written
from raftmq.chaos.workloads.withholding import Withholding
from raftmq.checkers.history import Recorder
from raftmq.client import Client

from .crowds import CONSUMERS, Crowd
from .log import PRODUCERS, QUEUES, TOPIC, LogWorkload, body_of, queue_key, value_of

CALM_CLOCK_MS = 200
"""Greatest difference between a right clock and a time that a leader stamped a moment ago."""
CALM_LATE_MS = 10_000
"""Longest delay of a due message without faults: other consumers may have popped the message ahead
meanwhile, and held it for a part of the longest lease, more than once."""


LOST_ANSWERS = 0.2
"""Share of the answers to cancellations, redrives and purges, and to their questions."""


class PopWorkload(LogWorkload):
    """The clients' side of a run."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        super().__init__(clients, recorder)
        self.groups = groups_of(clients.seed)
        """The consumer groups that pop."""
        self._popping = Popping(
            recorder,
            clients,
            topic=TOPIC,
            number_of=value_of,
            queue_name=queue_key,
            counts=self.counts,
            groups=self.groups,
            now_ms=clients.now_ms,
        )
        self._withholding = Withholding(
            recorder,
            topic=TOPIC,
            queues=QUEUES,
            queue_name=queue_key,
            body_of=lambda number: body_of(number, 0),
            number_of=value_of,
            now_ms=clients.now_ms,
            counts=self.counts,
        )
        self._crowd = Crowd(self.counts, is_wanted=lambda: not clients.is_healed)
        self.producers_left += 1

    @property
    def withholding(self) -> Withholding:
        """The clients that delay messages, open transactions, and check back."""
        return self._withholding

    @property
    def late_ms(self) -> int:
        """See `Popping.late_ms`."""
        return self._popping.late_ms

    async def prepare(self) -> None:
        """Create the topic and the groups."""
        await super().prepare()

        async def job(mq: Client, _: Session) -> None:
            await self._popping.prepare(mq)
            if self._clients.in_flight_max is not None:
                await self._crowd.prepare(mq)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(PRODUCERS):
            self._clients.start(f"producer-{number + 1}", self._produce)
        self._clients.start("producer-later", self._produce_later, lost_answers=LOST_ANSWERS)
        self._clients.start("decider", self._decide)
        for group in self.groups:
            for number in range(KINDS[group].consumers):
                self._clients.start(f"consumer-{group}{number + 1}", self._popper_of(group))
        self._clients.start("operator", self._operate, lost_answers=LOST_ANSWERS)
        if self._clients.in_flight_max is not None:
            self._clients.start("keeper", self._keep)
            for number in range(CONSUMERS):
                self._clients.start(f"crowd-{number + 1}", self._take)

    async def find_ends(self) -> None:
        """Let consumers ack everything, and start an auditor that asks for the remaining work."""
        self._popping.is_draining = self._withholding.is_draining = True
        self._clients.start("auditor", self._audit)

    @property
    def is_drained(self) -> bool:
        """True if nothing is left to do."""
        return self._popping.is_drained and self._withholding.is_read

    def _begin(self, session: Session, value: int, key: str | None, queue: int) -> int:
        sent = written(value, key)
        return self._recorder.invoke(session.number, "send", queue_key(queue), sent)

    def _popper_of(self, group: str) -> Job:
        async def consume(mq: Client, session: Session) -> None:
            await self._popping.consume(mq, session.number, session.random, group)

        return consume

    def _tag(self, value: int) -> str | None:
        return tag_of(value)

    async def _produce_later(self, mq: Client, session: Session) -> None:
        await self._withholding.produce(mq, session.number, session.random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _decide(self, mq: Client, session: Session) -> None:
        await self._withholding.decide(mq, session.number, session.random)

    async def _operate(self, mq: Client, session: Session) -> None:
        await self._popping.operate(mq, session.number, session.random)

    async def _keep(self, mq: Client, session: Session) -> None:
        await self._crowd.keep(mq, session.random)

    async def _take(self, mq: Client, session: Session) -> None:
        await self._crowd.take(mq, session.random)

    async def _audit(self, mq: Client, session: Session) -> None:
        await self._withholding.read_all(mq, session.number)
        await self._popping.audit(mq, session.number)
