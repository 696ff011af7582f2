"""The handlers of faults, by name: how each one is made on real processes.

A fault that happens once is a function; one that lasts is a context manager, which holds it while
it is open. Both get the stage and the event. `register` says so:

    @lasting("isolate-node")
    @asynccontextmanager
    async def _isolate_node(stage, event): ...

Invariants:
- When a context manager is left, also by cancelling, its fault is over.
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
"""Faults that happen."""
LASTING: dict[str, Lasting] = {}
"""Faults that begin and end."""

OnceT = TypeVar("OnceT", bound=Once)
LastingT = TypeVar("LastingT", bound=Lasting)


def once(*names: str) -> Callable[[OnceT], OnceT]:
    """The decorated function makes these faults."""

    def register(handler: OnceT) -> OnceT:
        for name in names:
            assert not FAULTS[name].lasts, name
            ONCE[name] = handler
        return handler

    return register


def lasting(*names: str) -> Callable[[LastingT], LastingT]:
    """The decorated context manager holds these faults."""

    def register(handler: LastingT) -> LastingT:
        for name in names:
            assert FAULTS[name].lasts, name
            LASTING[name] = handler
        return handler

    return register
