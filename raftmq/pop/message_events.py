"""What may become of a message in a consumer group, as its trace tells it.

`PopGroup` says so while it applies a record; `raftmq.log.traces` keeps it. One message of a group:

    HANDED -> ACKED
    HANDED -> NACKED -> READY -> HANDED -> EXPIRED -> READY -> HANDED -> DEAD -> REDRIVEN -> HANDED

Invariants:
- The touches of a message, followed by `follow`, say in which state the machine has it, for each
  message that the group has looked at.
"""

from enum import IntEnum


class TouchKind(IntEnum):
    """What happened to a message."""

    STORED = 0
    """Its batch was placed in the queue; never in a row: the index of batches says so."""
    HANDED = 1
    """A consumer has it from now on; detail: until when."""
    ACKED = 2
    """It is done with."""
    NACKED = 3
    """Its consumer failed; detail: when it is due again."""
    EXPIRED = 4
    """Its lease ran out; detail: when it is due again. Consumer and token are in the row of the
    hand-out: leases that run out together are one row."""
    READY = 5
    """It waited and is due: it is handed out next."""
    GIVEN_BACK = 6
    """Its consumer did not begin with it, or one before it failed: the attempt does not count."""
    EXTENDED = 7
    """Its lease runs longer; detail: until when."""
    DEAD = 8
    """It is a dead letter; detail: the letter's number."""
    REDRIVEN = 9
    """The dead letter is handed out again as if for the first time."""
    PURGED = 10
    """The dead letter was thrown away."""
    PASSED = 11
    """It does not match the group's filter."""
    UNFILTERED = 12
    """The filter is gone: what it passed over ahead of the consumers is fresh again."""
    LOST = 13
    """Retention took it before it was settled."""
    TRIMMED = 14
    """Retention took all that stands before it in the queue; what was not settled is lost."""
    SKIPPED = 15
    """The group was set to go on after it; what was not settled is never handed out."""
    RESET = 16
    """The group was set to go on from here, or from before it: it is handed out again."""


FRESH, LEASED, WAITING, READY, DEAD, ACKED, PASSED, LOST, PURGED = (
    "fresh",
    "leased",
    "waiting",
    "ready",
    "dead",
    "acked",
    "passed",
    "lost",
    "purged",
)
"""States of a message, in the words of `Counts`."""

_FOLLOWING = {
    TouchKind.HANDED: LEASED,
    TouchKind.ACKED: ACKED,
    TouchKind.READY: READY,
    TouchKind.GIVEN_BACK: READY,
    TouchKind.DEAD: DEAD,
    TouchKind.REDRIVEN: READY,
    TouchKind.PURGED: PURGED,
    TouchKind.PASSED: PASSED,
    TouchKind.LOST: LOST,
    TouchKind.RESET: FRESH,
}
SKIPPED = "skipped"
"""Open when a reset passed over it; none of `Counts`."""
_SETTLED = frozenset((ACKED, PASSED, DEAD, PURGED, LOST, SKIPPED))


def follow(state: str, kind: int, *, detail: int, at: int) -> str:
    """The state of a message after a touch by a record of the time `at`.

    >>> follow("leased", TouchKind.NACKED, detail=2000, at=1000)
    'waiting'
    """
    match kind:
        case TouchKind.NACKED | TouchKind.EXPIRED:
            return WAITING if detail > at else READY
        case TouchKind.TRIMMED:
            return state if state in _SETTLED else LOST
        case TouchKind.SKIPPED:
            return state if state in _SETTLED else SKIPPED
        case TouchKind.UNFILTERED:
            return FRESH if state == PASSED else state
        case _:
            return _FOLLOWING.get(TouchKind(kind), state)
