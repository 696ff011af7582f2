"""Calls at a later time, all from one task: a long poll costs a heap entry, not a task.

Invariants:
- A cancelled call holds no references, and there are at most as many entries of cancelled calls as
  of others, and twice `SLACK`.
"""

import heapq
from collections.abc import Callable
from itertools import count

import trio

SLACK = 64
"""Entries of cancelled calls that are not worth the work of taking them out."""


class Timer:
    """A call that was asked for, so that it can be cancelled."""

    __slots__ = ("_timers", "call")

    def __init__(self, timers: "Timers", call: Callable[[], None]) -> None:
        self._timers = timers
        self.call: Callable[[], None] | None = call
        """None once it was made or cancelled."""

    def cancel(self) -> None:
        """Do not make the call; without effect if it was made."""
        if self.call is not None:
            self.call = None
            self._timers.note_cancelled()


class Timers:
    """Deadlines on trio's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._cancelled = 0
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """Entries, those of cancelled calls included."""
        return len(self._heap)

    def call_after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` after `seconds`; calls due together come in the order they were asked for.

        A call that may wait for long and hold much should be cancelled when it becomes pointless.
        """
        timer = Timer(self, call)
        entry = (trio.current_time() + seconds, next(self._order), timer)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._sooner.set()
        return timer

    def note_cancelled(self) -> None:
        """A call was cancelled: take such entries out once they are the larger half."""
        self._cancelled += 1
        if self._cancelled > len(self._heap) // 2 + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            self._sooner = trio.Event()
            until = self._heap[0][0] if self._heap else float("inf")
            with trio.move_on_at(until):
                await self._sooner.wait()
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                timer = heapq.heappop(self._heap)[2]
                call, timer.call = timer.call, None
                if call is None:
                    self._cancelled -= 1
                else:
                    call()
