"""A made-up world for whole brokers: memory for a network and a disk, a seeded clock and random.

Run under trio's `MockClock` with the scheduler's random seeded, three brokers and their clients
take the same steps in every run of the same seed.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import trio
import trio.testing

from raftmq.broker.world import Done, T
from raftmq.chaos.world.network import Listener, Network
from raftmq.log.files import FileSystem

DISK_SECONDS = 0.0005
"""What a job on a worker takes."""


class TaskWorker:
    """Runs jobs one at a time, each taking a little simulated time."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](10_000)
        nursery.start_soon(self._run)

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Queue a job."""
        self._send.send_nowait((job, done))

    def close(self) -> None:
        """Take no more jobs."""
        self._send.close()

    async def _run(self) -> None:
        async for job, done in self._receive:
            await trio.sleep(DISK_SECONDS)
            try:
                result, error = job(), None
            except Exception as caught:
                result, error = None, caught
            done(result, error)


class MadeUpWorld:
    """The world of one node."""

    def __init__(self, network: Network, files: FileSystem, *, seed: int) -> None:
        self.files = files
        self.random = Random(seed)
        self.skew_ms = 0
        self._network = network

    def now_ms(self) -> int:
        """The made-up wall clock."""
        return 1_700_000_000_000 + int(trio.current_time() * 1000) + self.skew_ms

    def worker(self, name: str, nursery: trio.Nursery) -> TaskWorker:
        """A task that runs jobs."""
        return TaskWorker(nursery)

    async def listen(self, host: str, port: int) -> Listener:
        """Take an address."""
        return await self._network.listen(host, port)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a stream."""
        return await self._network.connect(host, port)


def run(main: Callable[..., Any], *args: Any, seed: int, **kwargs: Any) -> Any:
    """Run an async function on a seeded scheduler with a clock that jumps over idle time."""
    import trio._core._run as scheduler

    # The order in which ready tasks run is drawn from this; trio's own tests seed it the same way.
    scheduler._r.seed(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(partial(main, *args, **kwargs), clock=clock)
