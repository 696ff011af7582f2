"""How many messages one answer to a fetch may bring, as quotas have room for them (`Room`)."""

from collections.abc import Sequence
from math import inf

from raftmq.log.builder import Placement


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
