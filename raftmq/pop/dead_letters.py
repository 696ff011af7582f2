"""Dead letters: neighbouring messages that are not handed out any more.

    letter 7 holds 100 102 103;  redrive 102 of it  →  letter 7 holds 100 103

A letter keeps its number until its last message has left it, and no number comes twice: so whoever
names a letter and messages of it means the same ones when he says it again.
"""

from typing import NamedTuple

from .pieces import Piece, divided
from .spans import Span


class DeadLetter(NamedTuple):
    """Messages that are not handed out any more."""

    queue: int
    """The queue's number."""
    messages: Span
    """Which, and how often they were tried."""
    reason: str
    """Why: in the words of the consumer, or `expired` or `failed`."""
    at: int
    """Since when, in milliseconds."""
    is_parked: bool = False
    """True: what comes after it waits for it."""
    keys: bytes = b""
    """The hashes of their keys, in a group ordered by key."""

    @property
    def piece(self) -> Piece:
        """Its messages with their keys."""
        return Piece(*self.messages, self.keys)

    def divided(self, chosen: Span) -> "tuple[DeadLetter | None, DeadLetter | None]":
        """Those of its messages that are among the chosen ones, and the rest."""
        first, rest = divided(self.piece, chosen)
        return self._with(first), self._with(rest)

    def _with(self, part: Piece | None) -> "DeadLetter | None":
        return None if part is None else self._replace(messages=part.span, keys=part.keys)


def keep_before(dead: dict[int, DeadLetter], queue: int, offset: int) -> int:
    """Forget the letters of a queue's messages from an offset on, as those come again; the others
    block nothing any more. How many messages they have."""
    count = 0
    for number, letter in [item for item in dead.items() if item[1].queue == queue]:
        kept, _ = letter.piece.before(offset)
        if kept is None:
            del dead[number]
        else:
            dead[number] = letter._replace(messages=kept.span, is_parked=False, keys=kept.keys)
            count += kept.size
    return count
