"""The simulated world as one process sees it: nodes and clients get it in place of the real world.

The two classes are the broker's `World` and the client's `ClientWorld`; both only pass calls on to
the process's machine and to the network.

Invariants:
- A worker takes simulated time for each job, one after the other; a job is done as a whole at the
  end of that time, so a crash meets it done, not done, or inside one of its calls to the disk. A
  small one may be done at once instead, as on a real machine with a quick disk.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from raftmq.broker.world import Done, Outcome, T, give_up_after
from raftmq.chaos.world.client_stream import TrioStream
from raftmq.chaos.world.disk import PowerLoss
from raftmq.chaos.world.listener import Listener
from raftmq.chaos.world.network import Network
from raftmq.chaos.world.process import Process
from raftmq.client.world import UNACKNOWLEDGED_SECONDS_MAX
from raftmq.log.files import FileSystem

DISK_SECONDS = 0.0004
"""Average time of a job on a worker."""

THREAD_SHARE = 0.4
"""Share of small jobs that run beside the loop, so that other calls happen meanwhile."""


class Worker:
    """Runs jobs one at a time; needs no task."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._jobs: deque[tuple[Callable[[], Any], Done[Any]]] = deque()
        self._is_busy = False

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Queue a job."""
        self._jobs.append((job, done))
        if not self._is_busy:
            self._begin()

    def try_now(self, job: Callable[[], T]) -> Outcome[T] | None:
        """Do a job at once, in no simulated time. None: not done, by chance, or as the disk is slow
        or the worker busy."""
        process = self._process
        is_slow = process.machine.slowness > 1 or process.random.random() < THREAD_SHARE
        if self._is_busy or self._jobs or is_slow:
            return None
        try:
            return job(), None
        except Exception as error:
            return None, error

    def close(self) -> None:
        """Do what was submitted, unless the process is dead."""
        while self._jobs and not self._process.is_dead:
            # No task waits for the outcome.
            with suppress(Exception):
                self._jobs.popleft()[0]()
        self._jobs.clear()

    def _begin(self) -> None:
        self._is_busy = True
        process = self._process
        if process.machine.slowness > 1:
            process.agenda.effects["disk jobs slowed"] += 1
        seconds = DISK_SECONDS * (0.5 + process.random.random()) * process.machine.slowness
        process.agenda.call_after(seconds, lambda: process.call(self._finish))

    def _finish(self) -> None:
        self._is_busy = False
        # `close` may have done the job already.
        if not self._jobs:
            return
        job, done = self._jobs.popleft()
        result, error = None, None
        try:
            result = job()
        # The process ended inside the job: the jobs behind it must not run.
        except PowerLoss:
            self._jobs.clear()
            return
        except Exception as caught:
            error = caught
        if self._jobs:
            self._begin()
        done(result, error)


class SimulatedWorld:
    """The world of a node."""

    def __init__(self, network: Network, process: Process) -> None:
        self.is_under_tls = network.is_under_tls
        self.certificate_ends_ms = 0
        """See `raftmq.broker.world.World`."""
        self.process_id = 1
        """See there; that of the simulation would make each run another one."""
        self.files: FileSystem = process.machine.disk.mount()
        """The machine's disk, for as long as the process lives."""
        self.random = process.random
        """The process's random generator."""
        self.descriptors_max = process.machine.descriptors_max
        """Files and sockets that a process of the machine may have open."""
        self.process = process
        """The process whose world this is."""
        self._network = network

    def now_ms(self) -> int:
        """The machine's wall clock."""
        return self.process.machine.clock.now_ms()

    def worker(self, name: str, nursery: trio.Nursery) -> Worker:
        """A worker that runs jobs one at a time."""
        return Worker(self.process)

    async def listen(self, host: str, port: int) -> Listener:
        """Take an address; the host must be the machine's name."""
        assert host == self.process.machine.name, f"{host} is not this machine"
        return await self._network.listen(self.process, port)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a stream."""
        return await self._network.connect(self.process, host, port)


class SimulatedClientWorld:
    """The world of a client."""

    def __init__(self, network: Network, process: Process) -> None:
        self.random = process.random
        """The process's random generator."""
        self._process = process
        self._network = network

    def now_ms(self) -> int:
        """The machine's wall clock."""
        return self._process.machine.clock.now_ms()

    async def connect(self, host: str, port: int) -> TrioStream:
        """Open a stream."""
        stream = await self._network.connect(self._process, host, port)
        give_up_after(stream, UNACKNOWLEDGED_SECONDS_MAX)
        return TrioStream(stream)
