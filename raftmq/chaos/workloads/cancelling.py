"""Calls that are cancelled in the middle, as by a deadline of the application.

A cancelled call is `unknown` in the history: it may have happened. The client goes on with the same
objects or with new ones, so the judges see the state that a cancelled call left in them.

Sources: trio's rules for cancellation, which the docstrings of the client's calls answer to.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import trio

T = TypeVar("T")

SHARE = 0.06
"""Share of calls that are cancelled unless they end before."""
PATIENCE_SECONDS = 0.01
"""Mean time until a call is cancelled: about the length of a call without faults."""


class Cancelled(Exception):
    """The call was cancelled: it may have happened."""


class Impatience:
    """Cancels some calls of one client."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self._random = random
        self._counts = counts
        self.is_over = False
        """True: no further call is cancelled."""

    async def call(self, job: Callable[[], Awaitable[T]]) -> T:
        """Make a call, unless it is cancelled.

        Raises:
            Cancelled: it is; what it returned is lost.
        """
        if self.is_over or self._random.random() >= SHARE:
            return await job()
        # Some are cancelled before their first request is written.
        seconds = self._random.choice([0.0, 1.0, 1.0, 10.0]) * PATIENCE_SECONDS
        with trio.move_on_after(seconds * self._random.expovariate(1)):
            return await job()
        self._counts["calls cancelled"] += 1
        raise Cancelled
