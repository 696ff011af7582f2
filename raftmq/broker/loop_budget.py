"""How long work on the event loop may take before all others have their turn.

Filters cost time in proportion to messages, groups and batches, of which there may be thousands.
Work for many requests stops when its *turn* is over and goes on in the next turn. An answer to one
request has as many masks as its *budget* allows, and the consumer asks again.

Invariants:
- A turn ends by the clock, so results must not depend on where it ends.
- A budget counts work, not time: the same question gives the same answer.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

import trio

from raftmq.log.builder import Placement

TURN_SECONDS: Final = 0.002
"""Length of a turn, about: a turn may end a step of work later."""
MASK_WORK: Final = 256
"""Fixed cost of a mask beside its messages, in messages: mostly the decoding of the batch."""
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


class MaskBudget:
    """How many masks may be made in one go."""

    def __init__(self) -> None:
        self._left = MASKS_WORK_MAX

    @property
    def is_spent(self) -> bool:
        """Whether no more masks are made in this go."""
        return self._left <= 0

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


class MessageBudget:
    """How many messages one answer may bring: whole batches, and one at the least."""

    def __init__(self, messages: float) -> None:
        """`inf`: without a bound."""
        self._left = messages

    @property
    def is_spent(self) -> bool:
        """Whether no more batches are added."""
        return self._left <= 0

    def afford(self, placements: Sequence[Placement]) -> Sequence[Placement]:
        """The first of these batches, as long as some budget is left."""
        if self._left == inf:
            return placements
        for count, placement in enumerate(placements):
            if self.is_spent:
                return placements[:count]
            self._left -= placement.count
        return placements
