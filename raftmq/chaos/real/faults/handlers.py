"""The handlers of faults, by name: each handler makes a fault on real processes.

The handler of a fault that happens once is a function. The handler of a lasting fault is a context
manager; the fault lasts while the context is open. Both get the stage and the event:

    @lasting("isolate-node")
    @asynccontextmanager
    async def _isolate_node(stage, event): ...

Invariants:
- When a context manager exits, also by cancellation, its fault is over.
- A handler that cannot make its fault raises `Skipped`, and has changed nothing.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from raftmq.chaos.faults import FAULTS, Event
from raftmq.chaos.real.stage import Stage

Once = Callable[[Stage, Event], Awaitable[None]]
Lasting = Callable[[Stage, Event], AbstractAsyncContextManager[None]]

ONCE: dict[str, Once] = {}
"""Handlers of faults that happen once."""
LASTING: dict[str, Lasting] = {}
"""Handlers of faults that begin and end."""

OnceT = TypeVar("OnceT", bound=Once)
LastingT = TypeVar("LastingT", bound=Lasting)


def once(*names: str) -> Callable[[OnceT], OnceT]:
    """Register the decorated function as the handler of these faults."""

    def register(handler: OnceT) -> OnceT:
        for name in names:
            assert not FAULTS[name].lasts, name
            ONCE[name] = handler
        return handler

    return register


def lasting(*names: str) -> Callable[[LastingT], LastingT]:
    """Register the decorated context manager as the handler of these faults."""

    def register(handler: LastingT) -> LastingT:
        for name in names:
            assert FAULTS[name].lasts, name
            LASTING[name] = handler
        return handler

    return register
