"""The event loop of the blocking face, in a thread of its own."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Loop:
    """The event loop in the other thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal
        """The way into it."""

    def wait(self, job: Callable[[], Awaitable[T]]) -> T:
        """Run an async call there and wait for it."""
        result: T = self.portal.call(job)
        return result

    def call(self, job: Callable[[], T]) -> T:
        """Run a call that does not wait there."""
        result: T = self.portal.call(job)
        return result


class Entered:
    """The base of what is used as `with`: it enters and leaves an async object on the loop."""

    def __init__(self, loop: Loop, inner: AbstractAsyncContextManager[Any]) -> None:
        self._loop = loop
        self._inner = inner
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._loop.portal.wrap_async_context_manager(self._inner))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
