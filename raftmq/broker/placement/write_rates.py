"""How fast the logs on this node grow, as an exponential mean over a minute.

Each replica that votes measures, so a new leader knows the rate at once, and the rate begins at the
first measurement. A member that copies a log would take the copy for writes.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from raftmq.broker.replica.group import Group

LOOK_SECONDS = 5.0
"""Between two looks."""
SMOOTHING_SECONDS = 60.0
"""Time constant of the exponential mean."""


class _Seen(NamedTuple):
    """A log at a look."""

    at: float
    """When, by trio's clock."""
    base: int
    """First record of the segment that was written."""
    bytes: int
    """Size of that segment."""
    rate: float | None
    """Bytes per second; None: not known yet."""


class WriteRates:
    """The rates of one node's replicas."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._looked_at = -math.inf

    def of(self, group: int) -> float:
        """Bytes per second by which a group's log grew lately; 0: that is not known yet."""
        seen = self._seen.get(group)
        return (seen.rate if seen is not None else None) or 0.0

    def look(self, groups: Iterable[Group], now: float) -> None:
        """Measure all groups that this node carries, if it is time."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self._seen = {
            group.number: self._measure(group, now)
            for group in groups
            if group.raft.id in group.conf_state.voters
        }

    def _measure(self, group: Group, now: float) -> _Seen:
        sizes = {segment.base: segment.bytes for segment in group.store.segments()}
        newest = max(sizes, default=0)
        before = self._seen.get(group.number)
        if before is None:
            return _Seen(now, newest, sizes.get(newest, 0), None)
        # A log that was cut, or replaced by a snapshot, counts from there on.
        grown = sum(size for base, size in sizes.items() if base >= before.base)
        grown = max(0, grown - before.bytes)
        rate = grown / (now - before.at)
        if before.rate is not None:
            share = 1 - math.exp((before.at - now) / SMOOTHING_SECONDS)
            rate = before.rate + share * (rate - before.rate)
        return _Seen(now, newest, sizes.get(newest, 0), rate)
