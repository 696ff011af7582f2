"""Clients of registers in the simulated world; see `raftmq.chaos.workloads.registers`."""

from collections import Counter
from collections.abc import Sequence

import trio

from raftmq.chaos.sim.checks.availability import JUDGED
from raftmq.chaos.sim.clients import Clients, Session
from raftmq.chaos.workloads.registers import CLIENTS, THINK_SECONDS, Registers
from raftmq.checkers.history import Recorder
from raftmq.client import Client


class RegisterWorkload:
    """The clients' side of a run."""

    served: Sequence[str] = JUDGED
    """Calls that must succeed while a majority is well."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        self._clients = clients
        self._registers = Registers(recorder)
        self.is_sending = True
        """Clients go on as long as this is true."""
        self.producers_left = CLIENTS
        """Clients that still work."""

    @property
    def counts(self) -> Counter[str]:
        """Acknowledged, unknown and so on."""
        return self._registers.counts

    async def prepare(self) -> None:
        """Create the topic and fill it."""

        async def job(mq: Client, _: Session) -> None:
            await self._registers.prepare(mq)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        for number in range(CLIENTS):
            self._clients.start(f"consumer-{number + 1}", self._work)

    @property
    def progress(self) -> int:
        """Operations that succeeded."""
        return self.counts["acked"]

    async def find_ends(self) -> None:
        """Do nothing: registers have no queues to read to their ends."""

    @property
    def is_drained(self) -> bool:
        """True if all clients have ended."""
        return not self.producers_left

    async def _work(self, mq: Client, session: Session) -> None:
        random = session.random

        async def think() -> None:
            await trio.sleep(random.expovariate(1 / THINK_SECONDS))

        await self._registers.work(mq, session.number, random, think, lambda: self.is_sending)
        self.producers_left -= 1
