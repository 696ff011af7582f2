"""The event loop of the blocking face, in a thread of its own.

A call ends when the wait for it ends: if a signal handler raises (Ctrl-C, an alarm), the call is
cancelled on the loop, and a result that came nevertheless is put back for the next call.

Left out: a signal that comes while an object is entered or left.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import anyio
import anyio.lowlevel
from anyio.from_thread import BlockingPortal

from raftmq.errors import RaftmqError

T = TypeVar("T")


class Leaves(Protocol):
    """An object to leave before the loop ends."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> object:
        """Leave the object; may raise an error."""


async def _keep(_: object) -> None:
    """Put nothing back."""


class Loop:
    """The event loop in the other thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._process = os.getpid()
        self._entered: dict[Leaves, None] = {}
        self.portal = portal
        """The portal to the event loop."""
        self.is_over = False
        """True once the client was left, or the process ends."""

    @property
    def is_here(self) -> bool:
        """False in a forked child: the thread of the loop is its parent's."""
        return os.getpid() == self._process

    def wait(
        self,
        job: Callable[[], Awaitable[T]],
        put_back: Callable[[T], Awaitable[None]] = _keep,
    ) -> T:
        """Run an async call on the loop and wait for it.

        If the wait is interrupted, the call is cancelled; `put_back` takes a result that comes
        nevertheless.
        """
        self._check()
        call = _Call(job, put_back)
        try:
            result: T = self.portal.call(call.run)
        except BaseException:
            # The wait was interrupted: the call must end before its caller goes on.
            if not call.has_failed:
                self.portal.call(call.end)
            raise
        return result

    def call(self, job: Callable[[], T]) -> T:
        """Run a plain function on the loop."""
        self._check()
        result: T = self.portal.call(job)
        return result

    def enter(self, stack: ExitStack, inner: AbstractAsyncContextManager[T]) -> T:
        """Enter an async object on the loop; the stack leaves it."""
        self._check()
        entered: T = stack.enter_context(self.portal.wrap_async_context_manager(inner))
        return entered

    def note_entered(self, entered: Leaves) -> None:
        """Note an object that must be left before the loop ends."""
        self._entered[entered] = None

    def note_left(self, entered: Leaves) -> None:
        """Note that an object was left."""
        self._entered.pop(entered, None)

    def leave_all(self) -> None:
        """Leave the objects that the user entered and did not leave, the newest first. Each is left
        as by an error: the user did not decide to commit an open transaction."""
        while self._entered:
            entered = next(reversed(self._entered))
            error = RaftmqError(f"the client was left before its {type(entered).__name__} was")
            with suppress(RaftmqError):
                entered.__exit__(type(error), error, None)

    def _check(self) -> None:
        if self.is_over:
            raise RaftmqError(
                "the client was closed: its `with` block has ended; call connect() again"
            )
        if not self.is_here:
            raise RaftmqError(
                f"this client was opened by process {self._process}, and this is a forked child: "
                "nothing was done; open a client in the child"
            )


class _Call(Generic[T]):
    """An async call on the loop, which the caller may end early."""

    def __init__(
        self, job: Callable[[], Awaitable[T]], put_back: Callable[[T], Awaitable[None]]
    ) -> None:
        self._job = job
        self._put_back = put_back
        self._scope: anyio.CancelScope | None = None
        self._finished: anyio.Event | None = None
        self._is_over = False
        self._results: list[T] = []
        self.has_failed = False
        """True if the call itself raised."""

    async def run(self) -> T:
        """Run the call."""
        self._finished = anyio.Event()
        try:
            with anyio.CancelScope() as self._scope:
                if self._is_over:
                    # The interruption came before the call began.
                    self._scope.cancel()
                    await anyio.lowlevel.checkpoint()
                self._results.append(await self._job())
        except Exception:
            self.has_failed = True
            raise
        finally:
            self._finished.set()
        if not self._results:
            raise RaftmqError("the call was interrupted")
        return self._results[0]

    async def end(self) -> None:
        """End the call, for which the caller no longer waits; put its result back."""
        self._is_over = True
        if self._scope is None or self._finished is None:
            return
        self._scope.cancel()
        await self._finished.wait()
        for result in self._results:
            await self._put_back(result)
