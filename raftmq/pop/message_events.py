"""Events of a message in a consumer group, as the message's trace shows them.

`PopGroup` notes them while it applies a record; `raftmq.log.traces` keeps them. For example:

    HANDED -> ACKED
    HANDED -> NACKED -> READY -> HANDED -> EXPIRED -> READY -> HANDED -> DEAD -> REDRIVEN -> HANDED

Invariants:
- The events of a message, followed by `follow`, say in which state the machine has it, for each
  message that the group has looked at.
"""

from enum import IntEnum


class EventKind(IntEnum):
    """Kinds of events of a message."""

    STORED = 0
    """The message's batch was placed in the queue; from the index of batches, never in a row."""
    HANDED = 1
    """A consumer has the message in hand; detail: the lease's deadline."""
    ACKED = 2
    """The consumer acknowledged the message."""
    NACKED = 3
    """The consumer failed; detail: when the message is due again."""
    EXPIRED = 4
    """The lease ran out; detail: when the message is due again. Consumer and token are in the row
    of the hand-out: leases that run out together are one row."""
    READY = 5
    """The message waited and is due: it is handed out next."""
    GIVEN_BACK = 6
    """The consumer did not begin the message, or an earlier one failed: no attempt counts."""
    EXTENDED = 7
    """The lease got another deadline, which is the detail."""
    DEAD = 8
    """The message is in a dead letter; detail: the letter's number."""
    REDRIVEN = 9
    """The message left its dead letter, to go out as if for the first time."""
    PURGED = 10
    """The message left its dead letter, and was thrown away."""
    PASSED = 11
    """The message does not match the group's filter."""
    UNFILTERED = 12
    """The filter is gone: messages that it passed over ahead of the consumers are fresh again."""
    LOST = 13
    """Retention removed the message before it was settled."""
    TRIMMED = 14
    """Retention removed all messages before an offset; those that were not settled are lost."""
    SKIPPED = 15
    """A reset went beyond the message; if not settled by then, it is never handed out."""
    RESET = 16
    """A reset went to the message or before it: the message is handed out again."""


OPEN = FRESH, LEASED, WAITING, READY = ("fresh", "leased", "waiting", "ready")
"""States of a message that is not settled, in the words of `Counts`."""
SETTLED = DEAD, ACKED, PASSED, LOST, PURGED, SKIPPED = (
    "dead",
    "acked",
    "passed",
    "lost",
    "purged",
    "skipped",
)
"""States that are final, but for a redrive, a reset, or a filter that is removed. `skipped`: not
settled when a reset passed over the message; it is not in `Counts`."""

LEADS_TO = {
    EventKind.HANDED: LEASED,
    EventKind.ACKED: ACKED,
    EventKind.NACKED: WAITING,
    EventKind.EXPIRED: WAITING,
    EventKind.READY: READY,
    EventKind.GIVEN_BACK: READY,
    EventKind.DEAD: DEAD,
    EventKind.REDRIVEN: READY,
    EventKind.PURGED: PURGED,
    EventKind.PASSED: PASSED,
    EventKind.UNFILTERED: FRESH,
    EventKind.LOST: LOST,
    EventKind.TRIMMED: LOST,
    EventKind.SKIPPED: SKIPPED,
    EventKind.RESET: FRESH,
}
"""Kind → the state after the event, but for the exceptions in `follow`; other kinds change no
state."""
SWEEPING = (EventKind.TRIMMED, EventKind.SKIPPED, EventKind.RESET, EventKind.UNFILTERED)
"""Events about a whole stretch: all messages before an offset, or from one on."""


def follow(state: str, kind: int, *, detail: int, at: int) -> str:
    """The state of a message after an event by a record of the time `at`.

    >>> follow("leased", EventKind.NACKED, detail=2000, at=1000)
    'waiting'
    """
    match kind:
        case EventKind.NACKED | EventKind.EXPIRED if detail <= at:
            return READY
        case EventKind.TRIMMED | EventKind.SKIPPED if state in SETTLED:
            return state
        case EventKind.UNFILTERED if state != PASSED:
            return state
        case _:
            return LEADS_TO.get(EventKind(kind), state)
