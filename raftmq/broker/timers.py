"""Calls at a later time, all from one task: a long poll costs a heap entry, not a task."""

import heapq
from collections.abc import Callable
from itertools import count

import trio


class Timers:
    """Deadlines on trio's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._sooner = trio.Event()

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`; calls due together come in the order they were asked for.

        There is no cancel: a call that has become pointless must notice that itself.
        """
        entry = (trio.current_time() + seconds, next(self._order), call)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._sooner.set()

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            self._sooner = trio.Event()
            until = self._heap[0][0] if self._heap else float("inf")
            with trio.move_on_at(until):
                await self._sooner.wait()
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                heapq.heappop(self._heap)[2]()
