"""The real world: sockets, files, threads, the system's clock and randomness."""

import ctypes
import errno
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any

import trio

from raftmq.log.files import FileSystem, RealFiles
from raftmq.tls.contexts import NodeContexts

from .tcp_stream import NodeTls, TcpListener, TcpStream, TlsStream, plain_socket
from .world import Done, Outcome, T

SWITCH_SECONDS = 0.0002
"""How long one thread of a node's process may hold the interpreter while another waits for it. The
disk thread needs it back after each system call; at Python's 5 ms that wait is longer than the
fsync. Measured: docs/decisions, the page on the disk thread."""

MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Buffers from this size on are mapped and unmapped one by one; smaller ones come from the heap."""

FREED_BYTES_MAX = 64 * 1024 * 1024
"""Free memory that each heap keeps. By default glibc returns what lies above a few MiB at once, and
the next answer of 1 MiB pays 256 page faults for it: a fifth of the work of a read from disk."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # numbers of <malloc.h>


def tune_interpreter() -> None:
    """Set up this process to be a node: for `raftmq serve`, not for a process that is shared."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Shells set 1,024, which is meant for programs that still use `select`.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Let the C library keep what large buffers leave, where it can be told to (glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_MAX)


QUICK_SECONDS = 0.002
"""A small job that took longer on the event loop sends the next ones to the thread."""

WARY_TIMES_MIN = 2
"""Small jobs go to the thread for this many times as long as the slow one took, for twice as many
after the next slow one, and so on until one is quick. On a busy machine many jobs are slow by
chance, and the thread costs more than the wait; a slow disk keeps the loop ever more seldom."""

WARY_SECONDS_MAX = 60.0
"""The longest time for which small jobs go to the thread."""


class ThreadWorker:
    """One long-lived thread with a queue of jobs.

    `trio.to_thread` costs about 0.1 ms a call; waking one thread through a queue and reporting by
    `run_sync_soon` costs a third of that, and keeps the jobs in order. A job that takes less time
    is better done on the loop: `try_now` does that as long as such jobs are quick.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._under_way = 0
        self._is_closed = False
        self._wary_until = 0.0
        self._wary_times = WARY_TIMES_MIN
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Run `job` on the thread after those submitted before it, then `done` on the loop."""
        self._under_way += 1
        self._jobs.put((job, done))

    def try_now(self, job: Callable[[], T]) -> Outcome[T] | None:
        """Run a job on the loop, unless one is under way or the last one here was slow."""
        started = time.monotonic()
        if self._under_way or started < self._wary_until:
            return None
        outcome = _outcome_of(job)
        ended = time.monotonic()
        if ended - started < QUICK_SECONDS:
            self._wary_times = WARY_TIMES_MIN
        else:
            self._wary_until = ended + min(self._wary_times * (ended - started), WARY_SECONDS_MAX)
            self._wary_times *= 2
        return outcome

    def close(self) -> None:
        """Finish the jobs submitted so far and end the thread; blocks until then."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()

    async def end_with_nursery(self) -> None:
        """Wait until the nursery of this task is cancelled. No `done` is called from then on: it
        could start no task in a nursery that is closed."""
        try:
            await trio.sleep_forever()
        finally:
            self._is_closed = True

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            outcome = _outcome_of(job)
            try:
                self._token.run_sync_soon(self._report, done, outcome)
            except trio.RunFinishedError:
                return

    def _report(self, done: Done[Any], outcome: Outcome[Any]) -> None:
        self._under_way -= 1
        # The owner of a closed worker has ended, and may not be called.
        if not self._is_closed:
            done(*outcome)


def _outcome_of(job: Callable[[], T]) -> Outcome[T]:
    try:
        return job(), None
    except BaseException as error:
        return None, error


class CannotListen(OSError):
    """A node cannot serve at its address; the message names the address and what to do."""


def _why_not(error: OSError) -> str:
    """Why a port cannot be listened at, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return "another process has this port: stop it, or change node.port"
    return f"{error.strerror}: change node.host or node.port"


class RealWorld:
    """The world outside a real node's process; see `raftmq.broker.world.World`.

    Args:
        contexts: for TLS on all connections; None: they are plain.
    """

    def __init__(self, contexts: NodeContexts | None = None) -> None:
        self._tls = NodeTls(contexts) if contexts is not None else None
        self.is_under_tls = contexts is not None
        self._contexts = contexts
        self.files: FileSystem = RealFiles()
        self.random = Random(SystemRandom().getrandbits(64))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.descriptors_max = soft if soft != resource.RLIM_INFINITY else 2**31

    @property
    def process_id(self) -> int:
        """See `World`."""
        return os.getpid()

    @property
    def certificate_ends_ms(self) -> int:
        """See `World`."""
        return 0 if self._contexts is None else self._contexts.ends_ms

    def now_ms(self) -> int:
        """The system's wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def worker(self, name: str, nursery: trio.Nursery) -> ThreadWorker:
        """Start a thread of that name."""
        worker = ThreadWorker(name)
        nursery.start_soon(worker.end_with_nursery)
        return worker

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """Listen on a TCP port of one address.

        Raises:
            CannotListen: another process has the port, or the address is none of this machine.
        """
        try:
            (listener,) = await trio.open_tcp_listeners(port, host=host, backlog=1024)
        except OSError as error:
            raise CannotListen(f"{host}:{port}: {_why_not(error)}") from error
        return TcpListener(listener, self._tls)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a TCP connection that sends small frames at once."""
        try:
            sock = plain_socket(await trio.open_tcp_stream(host, port))
        except OSError as error:
            # trio wraps the system's errors, but callers must see that no process listens there.
            causes = getattr(error.__cause__, "exceptions", (error.__cause__,))
            if all(isinstance(cause, ConnectionRefusedError) for cause in causes):
                raise ConnectionRefusedError(str(error)) from error
            raise
        return TcpStream(sock) if self._tls is None else TlsStream(sock, self._tls, is_server=False)
