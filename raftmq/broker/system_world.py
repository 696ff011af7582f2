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
from raftmq.wire.patience import set_patience

from .world import Done, Outcome, T

RECEIVE_BYTES = 64 * 1024
"""Bytes of one read if the reader names no limit."""

SMALL_BYTES = 16 * 1024
"""Bytes of one read while little comes at once. A buffer of 256 KiB for each small frame is mapped,
cut down and unmapped by the C library: three system calls and a page fault."""

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
        self._jobs.put(None)
        self._thread.join()

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
        done(*outcome)


def _outcome_of(job: Callable[[], T]) -> Outcome[T]:
    try:
        return job(), None
    except BaseException as error:
        return None, error


class TcpStream(trio.abc.Stream):
    """A connection that can also send without waiting. trio sets TCP_NODELAY.

    Reads bypass trio's socket, which tries to read before it waits: nearly always in vain, and the
    exception with its layers costs a fifth of the work for a small message.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        # -1 once closed: the number may be another connection's then.
        self._descriptor = stream.socket.fileno()
        self._has_more = False
        # True: the last read brought much.
        self._is_busy = False

    def send_nowait(self, data: bytes) -> int:
        """Send the bytes that the socket takes now; their number.

        A broken connection takes nothing: the next `send_all` or `receive_some` reports it.
        """
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return 0

    def give_up_after(self, seconds: float) -> None:
        """See `raftmq.broker.world.Lasting`."""
        set_patience(self._stream.socket, seconds)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio says."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        self._descriptor = -1
        await self._stream.aclose()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio says."""
        await self._stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio says."""
        size = RECEIVE_BYTES if max_bytes is None else max_bytes
        if not self._is_busy:
            size = min(size, SMALL_BYTES)
        while True:
            if self._has_more:
                await trio.lowlevel.checkpoint()
            elif self._descriptor >= 0:
                await trio.lowlevel.wait_readable(self._descriptor)
            if self._descriptor < 0:
                raise trio.ClosedResourceError("this stream was closed")
            try:
                data = os.read(self._descriptor, size)
            except BlockingIOError:
                self._has_more = False
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error
            # A short read has emptied the socket.
            self._has_more = len(data) == size
            self._is_busy = len(data) >= SMALL_BYTES
            return data


class TcpListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts `TcpStream`s."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return TcpStream(await self._listener.accept())

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()


class CannotListen(OSError):
    """A node cannot serve at its address; the message names the address and what to do."""


def _why_not(error: OSError) -> str:
    """Why a port cannot be listened at, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return "another process has this port: stop it, or change node.port"
    return f"{error.strerror}: change node.host or node.port"


class RealWorld:
    """The world outside a real node's process; see `raftmq.broker.world.World`."""

    def __init__(self) -> None:
        self.files: FileSystem = RealFiles()
        self.random = Random(SystemRandom().getrandbits(64))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.descriptors_max = soft if soft != resource.RLIM_INFINITY else 2**31

    def now_ms(self) -> int:
        """The system's wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def worker(self, name: str, nursery: trio.Nursery) -> ThreadWorker:
        """Start a thread of that name."""
        return ThreadWorker(name)

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """Listen on a TCP port of one address.

        Raises:
            CannotListen: another process has the port, or the address is none of this machine.
        """
        try:
            return TcpListener(*await trio.open_tcp_listeners(port, host=host, backlog=1024))
        except OSError as error:
            raise CannotListen(f"{host}:{port}: {_why_not(error)}") from error

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a TCP connection that sends small frames at once."""
        try:
            return TcpStream(await trio.open_tcp_stream(host, port))
        except OSError as error:
            # trio wraps the system's errors, but callers must see that no process listens there.
            causes = getattr(error.__cause__, "exceptions", (error.__cause__,))
            if all(isinstance(cause, ConnectionRefusedError) for cause in causes):
                raise ConnectionRefusedError(str(error)) from error
            raise
