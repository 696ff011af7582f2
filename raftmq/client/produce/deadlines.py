"""Deadlines of a producer's messages: one task sleeps until the earliest one."""

from collections.abc import Callable
from math import inf

import anyio


class Deadlines:
    """Calls `expire` whenever the earliest deadline has passed."""

    def __init__(self, expire: Callable[[float], float]) -> None:
        """`expire` gets the time and returns the next deadline; infinity: none."""
        self._expire = expire
        self._next = inf
        self._moved = anyio.Event()

    def note(self, deadline: float) -> None:
        """Call `expire` at this time of the event loop's clock, or earlier."""
        if deadline < self._next:
            self._next = deadline
            self._moved.set()

    async def watch(self) -> None:
        """Run until it is cancelled."""
        while True:
            with anyio.move_on_after(self._next - anyio.current_time()):
                await self._moved.wait()
            self._moved = anyio.Event()
            now = anyio.current_time()
            if now >= self._next:
                self._next = self._expire(now)
