"""How long work on the event loop may take before all others have their turn.

Filters cost time in proportion to messages, groups and batches, of which there may be thousands.
Work for many requests stops when its *turn* is over and goes on in the next turn. An answer to one
request has as many masks as its *budget* allows, and the consumer asks again.

Invariants:
- A turn ends by the clock, so results must not depend on where it ends.
- A budget counts work, not time: the same question gives the same answer.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Final

import trio

from raftmq.log.builder import Placement

TURN_SECONDS: Final = 0.002
"""Length of a turn, about: a turn may end a step of work later."""
MASK_WORK: Final = 256
"""Fixed cost of a mask beside its messages, in messages: mostly the decoding of the batch."""
TEXT_BYTES: Final = 16
"""Bytes of texts that filters look at, for the work of one message."""
MASKS_WORK_MAX: Final = 16_384
"""Cost of the masks that are made in one go, in messages: about five milliseconds."""


class Turn:
    """The time for which one task may hold the loop."""

    def __init__(self, times: int = 1) -> None:
        """Begin the turn now; `times` times as long as others."""
        self._seconds = TURN_SECONDS * times
        self._until = trio.current_time() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether all others should have their turn."""
        return trio.current_time() >= self._until

    async def pause_if_over(self) -> None:
        """Let all others have their turn if this one is over; then the next one begins.

        Cancellation comes out of the pause, and leaves nothing behind.
        """
        if self.is_over:
            await trio.lowlevel.checkpoint()
            self._until = trio.current_time() + self._seconds


async def in_another_turn(call: Callable[[], None]) -> None:
    """Make a call, as a task of its own: all others have their turn before it begins."""
    call()


class Turns:
    """Calls for many requests that a step of a node brings: reads that one heartbeat round grants,
    fetches that wait for one message.

    Those within the step's turn are made at once, the others in later turns. Those of one owner are
    made in order, and owners with calls that wait take turns: one with thousands of them holds up
    the others by one call at a time.
    """

    def __init__(self, start_soon: Callable[..., None]) -> None:
        """`start_soon` runs a task of the node's own."""
        self._start_soon = start_soon
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._is_running = False
        self._until = -inf

    def begin(self) -> None:
        """A step of the node begins, and with it a turn."""
        self._until = trio.current_time() + TURN_SECONDS

    def make(self, owner: Hashable, call: Callable[[], None]) -> None:
        """Make a call of an owner now, or in a later turn."""
        if owner not in self._waiting and trio.current_time() < self._until:
            call()
            return
        self._waiting.setdefault(owner, deque()).append(call)
        if not self._is_running:
            self._is_running = True
            self._start_soon(in_another_turn, self._go_on)

    def _go_on(self) -> None:
        turn = Turn()
        while self._waiting:
            owner = next(iter(self._waiting))
            calls = self._waiting.pop(owner)
            call = calls.popleft()
            if calls:
                self._waiting[owner] = calls
            call()
            if turn.is_over:
                break
        self._is_running = bool(self._waiting)
        if self._is_running:
            self._start_soon(in_another_turn, self._go_on)


class MaskBudget:
    """How many masks may be made in one go."""

    def __init__(self) -> None:
        self._left = MASKS_WORK_MAX

    @property
    def is_spent(self) -> bool:
        """Whether no more masks are made in this go."""
        return self._left <= 0

    def spend(self, cost: int) -> bool:
        """Make a mask that goes through this many bytes of texts; False: the budget is spent. A new
        one affords a mask of any cost."""
        if self.is_spent:
            return False
        self._left -= cost // TEXT_BYTES
        return True

    def afford(self, placements: Sequence[Placement]) -> list[Placement]:
        """The first of these batches, as long as some budget is left: a new one affords one."""
        afforded: list[Placement] = []
        for placement in placements:
            if self.is_spent:
                break
            # The mask of a batch with a single message that matches is known.
            if placement.count > 1:
                self._left -= MASK_WORK + placement.count
            afforded.append(placement)
        return afforded
