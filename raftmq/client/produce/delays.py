"""Delays of messages: the forms of a delay, the id of a delayed message, and its cancelling.

A delayed message has no offset before it falls due, so its id has three parts instead of two,
`<queue number>-<due>-<number>`, all in hexadecimal: due is in milliseconds since 1970, and the
broker gives each number once.
"""

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from raftmq.client.routing.requests import ask_leader, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.wire.producing import CancelDelayed, DelayedCancelled
from raftmq.words import counted

Delay = float | timedelta | datetime
"""Seconds or a timedelta from now, or a point in time with a time zone. The past means at once."""

_YEARS_MAX = 10
_SECONDS_MAX = _YEARS_MAX * 366 * 24 * 3600.0
_ID = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})")
_CANCELLED, _FELL_DUE = 1, -1


def due_ms(delay: Delay | None, now_ms: int) -> int:
    """The delivery time of a message, milliseconds since 1970; 0: at once.

    >>> due_ms(1.5, 1_000_000), due_ms(0, 1_000_000), due_ms(None, 1_000_000)
    (1001500, 0, 0)

    Raises:
        Rejected: `BAD_ARGUMENT`, the delay is none of the three types, less than 0, or more than
            ten years. A datetime that has passed is no mistake: the message is due at once.
    """
    match delay:
        case None:
            return 0
        case datetime():
            if delay.tzinfo is None:
                message = f"delay={delay!r} needs a time zone, as datetime.now(UTC) has"
                raise Rejected(Reason.BAD_ARGUMENT, message)
            seconds = delay.timestamp() - now_ms / 1000
        case timedelta():
            seconds = delay.total_seconds()
        case int() | float() if not isinstance(delay, bool) and not math.isnan(delay):
            seconds = float(delay)
        case _:
            message = f"a delay is seconds, a timedelta or a datetime, not {delay!r}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
    if seconds < 0 and not isinstance(delay, datetime):
        message = f"delay={delay!r} is less than 0: None delivers at once, 0.5 in half a second"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    if seconds > _SECONDS_MAX:
        message = f"a delay of {seconds:.0f} s; the limit is {_YEARS_MAX} years"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return now_ms + math.ceil(seconds * 1000) if seconds > 0 else 0


def dues_of(
    delay: Delay | Sequence[Delay | None] | None, count: int, now_ms: int
) -> Sequence[int] | None:
    """The delivery times of many messages: one delay for all, or one each; None: all at once.

    Raises:
        Rejected: as `due_ms`, or there are not as many delays as messages.
    """
    if delay is None:
        return None
    if isinstance(delay, Sequence):
        if len(delay) != count:
            both = f"{counted(count, 'message')} and {counted(len(delay), 'delay')}"
            message = f"{both}: give one for each, or one for all"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        dues = [due_ms(each, now_ms) for each in delay]
        return dues if any(dues) else None
    due = due_ms(delay, now_ms)
    return [due] * count if due else None


def format_delayed_id(queue_number: int, due: int, number: int) -> str:
    """The id of a delayed message.

    >>> format_delayed_id(1 << 16 | 3, 255, 1 << 16)
    '10003-ff-10000'
    """
    return f"{queue_number:x}-{due:x}-{number:x}"


def parse_delayed_id(text: str) -> tuple[int, int, int]:
    """The queue's number, the due time, and the number that an id names.

    >>> parse_delayed_id("10003-ff-10000") == (1 << 16 | 3, 255, 1 << 16)
    True

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no id of a delayed message.
    """
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Rejected(
            Reason.BAD_ARGUMENT,
            f"{str(text)[:80]!r} is no id of a delayed message: it is "
            "<queue number>-<due>-<number>, all in hexadecimal, as the receipt had it",
        )
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)


async def cancel_delayed(router: Router, message_id: str, timeout: float | None) -> bool:
    """See `Client.cancel`."""
    left = seconds_left(router, timeout)
    queue_number, due, number = parse_delayed_id(message_id)
    looking = router.topic_of(queue_number)
    topic = await router.within(left(), looking, f"looking up the topic of {message_id}")
    queue = queue_number & QUEUE_MASK
    if queue >= len(topic.groups):
        queues = counted(len(topic.groups), "queue")
        message = f"topic {topic.name!r} has {queues}, and no queue {queue}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    group = topic.groups[queue]
    request = CancelDelayed(group, [queue_number], [due], [number], router.draw_request())
    reply = await ask_leader(router, request, DelayedCancelled, timeout=left())
    (outcome,) = reply.outcomes
    if outcome == _FELL_DUE:
        message = f"the time of message {message_id} has come: it is delivered"
        raise Rejected(Reason.FELL_DUE, message)
    return outcome == _CANCELLED
