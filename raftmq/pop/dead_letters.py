"""Dead letters: neighbouring messages that are no longer handed out.

    letter 7 holds 100 102 103;  redrive 102 of it  →  letter 7 holds 100 103

A letter keeps its number until its last message has left it, and no number is used twice: so a
repeated command that names a letter and some of its messages means the same messages.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from raftmq.errors import Reason
from raftmq.results import Refused

from .pieces import Piece, divided
from .spans import Span


class DeadLetter(NamedTuple):
    """Messages that are no longer handed out."""

    queue: int
    """The queue's number."""
    messages: Span
    """Which messages, and how often they were tried."""
    reason: str
    """Why: in the words of the consumer, or `expired` or `failed`."""
    at: int
    """The time of the record that made the letter, in milliseconds."""
    is_parked: bool = False
    """True: messages that follow in order wait for the letter."""
    keys: bytes = b""
    """The hashes of the messages' keys, in a group ordered by key."""

    @property
    def piece(self) -> Piece:
        """The letter's messages with their keys."""
        return Piece(*self.messages, self.keys)

    def divided(self, chosen: Span) -> "tuple[DeadLetter | None, DeadLetter | None]":
        """A letter of the chosen messages, and a letter of the rest."""
        first, rest = divided(self.piece, chosen)
        return self._with(first), self._with(rest)

    def _with(self, part: Piece | None) -> "DeadLetter | None":
        return None if part is None else self._replace(messages=part.span, keys=part.keys)


def keep_before(dead: dict[int, DeadLetter], offsets: Mapping[int, int]) -> Counter[int]:
    """Forget the dead messages of queues from these offsets on, as a reset hands them out again,
    and unpark the letters before. The result is how many messages of each queue stay dead."""
    count = Counter[int]()
    for number, letter in [item for item in dead.items() if item[1].queue in offsets]:
        kept, _ = letter.piece.before(offsets[letter.queue])
        if kept is None:
            del dead[number]
        else:
            dead[number] = letter._replace(messages=kept.span, is_parked=False, keys=kept.keys)
            count[letter.queue] += kept.size
    return count


def no_letter(number: int) -> Refused:
    """The refusal of a call on a dead letter that is not there."""
    message = f"there is no dead letter {number}, or it has none of these messages: list them"
    return Refused(Reason.BAD_ARGUMENT, message)
