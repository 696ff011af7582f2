"""The start of a consumer that reads by offset."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from raftmq.client.arguments import require
from raftmq.wire.messages import EARLIEST, LATEST

from .offsets import time_ms

Start = Literal["earliest", "latest"] | datetime | int
"""The first message to read: an end of the queue, the first message stored at or after a time (with
a time zone), or an offset."""

OnTrimmed = Literal["error", "earliest", "latest"]
"""The reaction when retention has dropped the next messages: raise, or go on at an end."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """A start at an offset, which needs no look-up."""

    offset: int


def start_of(start: Start) -> int | Exactly:
    """The question to the leaders (`FindOffset.at`), or an offset.

    Raises:
        Rejected: `BAD_ARGUMENT`, `start` is no place to start.
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
