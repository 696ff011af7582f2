"""A client whose event loop runs in a thread of its own, made by the blocking `connect`.

Leaving the client ends the thread. If the program ends first, `atexit` ends the thread, as by an
error: at that time the threads still run, and a call that waits for one later would wait for ever.

Invariants:
- The end of the process waits at most EXIT_SECONDS for a client that was not left.
- A client of a parent process is not ended by its forked child.
"""

import asyncio
import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from raftmq.client.arguments import Unentered
from raftmq.errors import RaftmqError

from .loop import Loop

B = TypeVar("B")

EXIT_SECONDS = 2.0
"""How long the end of the process waits for a client that was not left."""


class Background(Unentered, AbstractContextManager[B]):
    """Context manager that the blocking `connect` and `open` return; `make` makes the client."""

    _ENTER = "with"

    def __init__(
        self,
        opening: AbstractAsyncContextManager[Any],
        backend: str,
        make: Callable[[Loop, Any], B],
    ) -> None:
        self._opening = opening
        self._backend = backend
        self._make = make
        self._stack = ExitStack()
        self._thread: _LoopThread | None = None
        self._loop: Loop | None = None

    def __enter__(self) -> B:
        if self._thread is not None:
            raise RaftmqError("a connection is used once: call connect() again")
        self._thread = _LoopThread(self._backend)
        loop = self._loop = Loop(self._thread.portal)
        try:
            client = self._make(loop, loop.enter(self._stack, self._opening))
        except BaseException:
            self._thread.end(is_cancel=True)
            raise
        _OPEN[self] = None
        return client

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        assert self._loop is not None
        _OPEN.pop(self, None)
        if not self._loop.is_here or self._loop.is_over:
            # A forked child has no thread that could leave the client; the parent still uses it.
            return
        is_left = False
        try:
            # The end would wait for ever for objects that were entered and not left.
            self._loop.leave_all()
            self._stack.__exit__(kind, error, traceback)
            is_left = error is None
        finally:
            self._loop.is_over = True
            self._thread.end(is_cancel=not is_left)

    def _abandon(self) -> None:
        """End a client that was not left, at the end of the process."""
        assert self._thread is not None
        assert self._loop is not None
        if self._loop.is_here and not self._loop.is_over:
            self._loop.is_over = True
            self._thread.end(is_cancel=True, seconds=EXIT_SECONDS)


class _LoopThread:
    """A daemon thread with an event loop."""

    def __init__(self, backend: str) -> None:
        self._ready: Future[BlockingPortal] = Future()
        self._backend = backend
        self._is_cancel = False
        # Set by the thread: calls a function on its loop; ends the loop.
        self._soon: Callable[[Callable[[], object]], object]
        self._over: anyio.Event
        run = threading.Thread(target=self._run, name=f"raftmq-{backend}", daemon=True)
        self._thread = run
        run.start()
        self.portal = self._ready.result()
        """The way into the loop."""

    def end(self, *, is_cancel: bool, seconds: float | None = None) -> None:
        """End the loop and wait for its thread, at most `seconds` (None: without a limit);
        `is_cancel` cancels the tasks that still run on it."""
        self._is_cancel = is_cancel
        with suppress(RuntimeError):  # The loop has ended by itself.
            # Does not wait for an answer: code of the application may block the loop.
            self._soon(self._over.set)
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend=self._backend)
        except BaseException as error:
            # An error after the start belongs to a call, which has raised it already.
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._soon, self._over = _caller_from_threads(self._backend), anyio.Event()
            self._ready.set_result(portal)
            await self._over.wait()
            await portal.stop(self._is_cancel)


def _caller_from_threads(backend: str) -> Callable[[Callable[[], object]], object]:
    """Lets the running event loop call a function soon; for other threads, without waiting."""
    if backend == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


_OPEN: dict[Background[Any], None] = {}
"""Clients that were entered and not left."""


@atexit.register
def _abandon_all() -> None:
    for background in reversed(list(_OPEN)):
        background._abandon()
