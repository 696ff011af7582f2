"""Actions of consumers on messages in hand, and their results: alike on the wire and in the log."""

from enum import IntEnum


class Action(IntEnum):
    """The actions on messages in hand."""

    ACK = 0
    """The messages are done."""
    NACK = 1
    """The messages failed: hand them out again, later."""
    REJECT = 2
    """The messages can never succeed: dead letters at once."""
    GIVE_BACK = 3
    """The messages were not begun: any consumer may have them; this attempt does not count."""
    EXTEND = 4
    """The whole lease runs longer."""


FENCED = -1
"""In results: the lease is no longer this consumer's; nothing was done."""
OVER_LIMIT = -2
"""In results: a number is out of its range; nothing was done."""
REASON_CHARACTERS_MAX = 1000
"""Characters that are kept of the reason for a rejection."""
