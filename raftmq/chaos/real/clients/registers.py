"""Clients of registers on real processes; see `raftmq.chaos.workloads.registers`.

Invariants:
- A client that was made to end leaves its operation without an end, and the next one is a new
  process of the history.

Left out: commits that come twice or late. A register's writes are judged one by one, so that an
unrecorded commit would count as a broken promise.
"""

from collections.abc import Callable
from functools import partial
from random import Random

import trio

import raftmq
from raftmq.chaos.workloads.registers import CLIENTS, THINK_SECONDS, Registers
from raftmq.checkers.history import Recorder
from raftmq.errors import RaftmqError, Rejected

from .workload import Complain, leaves


class RegisterWorkload:
    """The clients of one run: all of them write and read."""

    def __init__(
        self, url: Callable[[], str], recorder: Recorder, *, seed: int, complain: Complain
    ) -> None:
        self.consumers_stand_still = False
        self.consumer_pause_seconds = 0.0
        self._registers = Registers(recorder)
        self._url = url
        self._random = Random(f"registers {seed}")
        self._complain = complain
        self._processes = 0
        self._is_stopped = False
        self._scopes: list[trio.CancelScope] = []

    @property
    def acked(self) -> int:
        """Operations that succeeded."""
        return self._registers.counts["acked"]

    @property
    def polled(self) -> int:
        """Reads that succeeded."""
        return self._registers.counts["reads"]

    @property
    def read_back(self) -> int:
        """Registers are not read back."""
        return 0

    @property
    def went_back(self) -> int:
        """0: the checker of linearizability finds values that go back."""
        return 0

    @property
    def is_read(self) -> bool:
        """True: registers have no end that must be read."""
        return True

    async def create_topic(self) -> None:
        """Create the topic and fill it."""
        async with raftmq.connect(self._url(), timeout=30.0, wait_refused=None) as mq:
            await self._registers.prepare(mq)

    async def produce(self) -> None:
        """All clients, until `stop`."""
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._keep_working)

    async def consume(self) -> None:
        """Nothing: the clients of `produce` read, too."""

    def stop(self) -> None:
        """End the work of all clients."""
        self._is_stopped = True

    async def set_ends(self) -> None:
        """Nothing: registers have no ends."""

    async def read_all(self) -> None:
        """Nothing: the clients of `produce` read until `stop`."""

    def crash_producer(self) -> None:
        """End one client in the middle of a call; a new one takes its place."""
        if self._scopes:
            self._random.choice(self._scopes).cancel()

    def churn(self) -> None:
        """End all clients; new ones take their places."""
        for scope in self._scopes:
            scope.cancel()

    def restart(self) -> None:
        """As `churn`."""
        self.churn()

    def commit_oddly(self, how: str) -> None:
        """Nothing: see this module's heading."""

    # -- inside ----------------------------------------------------------------------------------

    async def _keep_working(self) -> None:
        while not self._is_stopped:
            self._processes += 1
            random = Random(self._random.getrandbits(64))
            with trio.CancelScope() as scope:
                self._scopes.append(scope)
                try:
                    await self._work(self._processes, random)
                except* RaftmqError as errors:
                    for error in leaves(errors):
                        if isinstance(error, Rejected):
                            self._complain("consumer-refused", str(error))
                    await trio.sleep(0.1)
            self._scopes.remove(scope)

    async def _work(self, process: int, random: Random) -> None:
        think = partial(self._think, random)
        async with raftmq.connect(self._url(), timeout=20.0, wait_refused=None) as mq:
            await self._registers.work(mq, process, random, think, lambda: not self._is_stopped)

    async def _think(self, random: Random) -> None:
        await trio.sleep(random.expovariate(1 / THINK_SECONDS) + self.consumer_pause_seconds)
        # A hanging client polls for the end of the fault.
        while self.consumers_stand_still and not self._is_stopped:  # noqa: ASYNC110
            await trio.sleep(0.05)
