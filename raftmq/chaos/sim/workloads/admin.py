"""Administrators whose answers get lost, and producers.

See `workloads.administrators`, `workloads.group_lives` for groups that are moved and deleted while
they work, `workloads.newcomers` for groups that have just been made, and `workloads.misfits` for
changes of nodes that make no sense.
"""

from raftmq.chaos.sim.clients import Clients, Job, Session
from raftmq.chaos.workloads.administrators import (
    Administrators,
    Follower,
    judge_administration,
)
from raftmq.chaos.workloads.group_lives import GROUPS, GroupLives
from raftmq.chaos.workloads.misfits import ask_for_misfits
from raftmq.chaos.workloads.newcomers import Newcomers
from raftmq.checkers import Report
from raftmq.checkers.history import History, Recorder
from raftmq.client import Client

from .log import TOPIC, LogWorkload

PRODUCERS = 2
ADMINISTRATORS = 4
LOST_ANSWERS = 0.3
"""Share of the answers to an administrator's calls."""


class AdminWorkload(LogWorkload):
    """The clients' side of a run."""

    served = ("send",)  # the answers to other calls are held up

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        super().__init__(clients, recorder)
        self._administrators = Administrators(recorder, topic=TOPIC, counts=self.counts)
        self._lives = GroupLives(counts=self.counts)
        self._follower = Follower(self.counts)
        self._newcomers = Newcomers(counts=self.counts, filters=clients.filters_heard)
        self._has_looked = False
        self.producers_left = PRODUCERS + ADMINISTRATORS + 3

    async def prepare(self) -> None:
        """Create the topics."""
        await super().prepare()

        async def job(mq: Client, _: Session) -> None:
            await self._lives.prepare(mq)
            await self._newcomers.prepare(mq)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(PRODUCERS):
            self._clients.start(f"producer-{number + 1}", self._produce)
        for number in range(ADMINISTRATORS):
            name = f"administrator-{number + 1}"
            self._clients.start(name, self._administer, lost_answers=LOST_ANSWERS)
        self._clients.start("mover", self._move, lost_answers=LOST_ANSWERS)
        for group in GROUPS:
            self._clients.start(f"consumer-{group}", self._taker_of(group))
        self._clients.start("newcomer", self._come)
        self._clients.start("administrator-follower", self._follow)
        self._clients.start("misfit", self._misfit, lost_answers=LOST_ANSWERS)

    async def find_ends(self) -> None:
        """Start the last look at all topics and groups."""
        self._clients.start("auditor", self._look)

    @property
    def is_drained(self) -> bool:
        """True if the last look is over, and groups have taken all messages."""
        is_read = self._lives.is_drained and self._newcomers.is_read
        return self._has_looked and self._follower.is_done and is_read

    def judge(self, history: History) -> list[Report]:
        """Judge the answers to administrators."""
        return judge_administration(history)

    async def _administer(self, mq: Client, session: Session) -> None:
        await self._administrators.administer(
            mq, session.number, session.random, lambda: self.is_sending
        )
        self.producers_left -= 1

    async def _move(self, mq: Client, session: Session) -> None:
        await self._lives.move(mq, session.random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _come(self, mq: Client, session: Session) -> None:
        await self._newcomers.come(mq, session.random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _follow(self, mq: Client, _: Session) -> None:
        await self._follower.follow(mq, TOPIC, lambda: self._has_looked)

    async def _misfit(self, mq: Client, session: Session) -> None:
        await ask_for_misfits(
            mq,
            session.random,
            lambda: not self._clients.is_healed,
            self.counts,
            asked_to_leave=self._clients.asked_to_leave,
            must_stay=self._clients.must_stay,
        )
        self.producers_left -= 1

    def _taker_of(self, group: str) -> Job:
        async def take(mq: Client, _: Session) -> None:
            await self._lives.take(mq, group)

        return take

    async def _look(self, mq: Client, session: Session) -> None:
        await self._lives.find_end(mq)
        await self._administrators.look(mq, session.number)
        self._has_looked = True
