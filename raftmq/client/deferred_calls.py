"""Calls put off until other tasks have had their turn, so that one request serves them all.

An answer to many callers wakes them; each of them soon asks for the next thing. If the first one's
request left at once, the others would wait for its answer, and then again: callers in two halves
that take turns. So the calls are made after the woken callers have run.

Invariants:
- A call that was added is made once, unless the task in `run` ends before.
"""

from collections.abc import Callable

import anyio
import anyio.lowlevel

from .supervisor import Job


class DeferredCalls:
    """Makes each added call once other tasks have run, or after `seconds`."""

    def __init__(
        self, seconds: float = 0.0, *, start: Callable[[Job], object] | None = None
    ) -> None:
        """`start` starts `run` when it is needed first; None: the caller starts it."""
        self._seconds = seconds
        self._pause: anyio.CancelScope | None = None
        self._start = start
        self._calls: dict[Callable[[], None], None] = {}
        self._added = anyio.Event()
        self._is_after_answer = False

    def set_seconds(self, seconds: float) -> None:
        """Make calls `seconds` after they were added; those that wait are made now."""
        if seconds != self._seconds and self._pause is not None:
            self._pause.cancel()
        self._seconds = seconds

    def add(self, call: Callable[[], None], *, is_after_answer: bool = False) -> None:
        """Make the call in the next round; after an answer, behind the tasks that it woke."""
        self._is_after_answer |= is_after_answer
        if call not in self._calls:
            self._calls[call] = None
            self._added.set()
        if self._start is not None:
            start, self._start = self._start, None
            start(self.run)

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            await self._added.wait()
            if self._seconds:
                with anyio.CancelScope() as self._pause:
                    await anyio.sleep(self._seconds)
            elif self._is_after_answer:
                # This task and the tasks that the answer woke run in one round, in any order.
                await anyio.lowlevel.checkpoint()
            self._is_after_answer = False
            self._added = anyio.Event()
            calls, self._calls = self._calls, {}
            for call in calls:
                call()
