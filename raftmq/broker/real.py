"""The real world: sockets, files, threads, the system's clock and randomness."""

import queue
import threading
import time
from collections.abc import Callable
from random import Random, SystemRandom
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any

import trio

from raftmq.log.files import FileSystem, RealFiles

from .world import Done, T


class ThreadWorker:
    """One long-lived thread with a queue of jobs.

    `trio.to_thread` costs about 0.1 ms a call; waking one thread through a queue and reporting by
    `run_sync_soon` costs a third of that, and keeps the jobs in order.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Run `job` on the thread after those submitted before it, then `done` on the loop."""
        self._jobs.put((job, done))

    def close(self) -> None:
        """Finish what was submitted and end the thread; blocks until then."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result, error = job(), None
            except BaseException as caught:
                result, error = None, caught
            try:
                self._token.run_sync_soon(done, result, error)
            except trio.RunFinishedError:
                return


class RealWorld:
    """The world outside a real node's process; see `raftmq.broker.world.World`."""

    def __init__(self) -> None:
        self.files: FileSystem = RealFiles()
        self.random = Random(SystemRandom().getrandbits(64))

    def now_ms(self) -> int:
        """The system's wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def worker(self, name: str, nursery: trio.Nursery) -> ThreadWorker:
        """Start a thread of that name."""
        return ThreadWorker(name)

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """Listen on a TCP port of one address."""
        (listener,) = await trio.open_tcp_listeners(port, host=host, backlog=1024)
        return listener

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a TCP connection that sends small frames at once."""
        stream = await trio.open_tcp_stream(host, port)
        stream.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        return stream
