"""Where a consumer starts to read."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from raftmq.errors import Reason, Rejected
from raftmq.wire.messages import EARLIEST, LATEST

from .offsets import time_ms

Start = Literal["earliest", "latest"] | datetime | int
"""Where to begin: an end of the queue, the first message stored at or after a time (with a time
zone), or an offset."""

OnTrimmed = Literal["error", "earliest", "latest"]
"""What to do where retention has dropped the messages that would come next."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """A start at an offset, not at something to be looked up."""

    offset: int


def start_of(start: Start) -> int | Exactly:
    """What to ask the leaders (`FindOffset.at`), or an offset.

    Raises:
        Rejected: `BAD_ARGUMENT`, it is no place to start.
    """
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    if isinstance(start, datetime):
        return time_ms(start)
    is_offset = isinstance(start, int) and 0 <= start < 1 << 63
    require(is_offset, f"{start!r} is no 'earliest', 'latest', datetime, or offset from 0 to 2^63")
    assert isinstance(start, int)
    return Exactly(start)


def milliseconds(seconds: float, name: str) -> int:
    """A time as it is sent.

    Raises:
        Rejected: `BAD_ARGUMENT`, it is no finite number.
    """
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise Rejected(Reason.BAD_ARGUMENT, f"{name} is seconds, not {seconds!r}") from None


def require(holds: bool, message: str) -> None:
    """Raise `Rejected` with `BAD_ARGUMENT` unless this holds."""
    if not holds:
        raise Rejected(Reason.BAD_ARGUMENT, message)
