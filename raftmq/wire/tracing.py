"""The messages about what became of a message.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| WHY | `FindTouches`, `FoundTouches` | - | - |
"""

from .messages import _Wire


class FindTouches(_Wire, frozen=True):
    """Ask which records touched a message, and how, linearizably."""

    partition_group: int
    """The partition group."""
    queue: int
    """The queue's number."""
    offset: int
    """The message."""
    after: int = 0
    """For the next page: `FoundTouches.after` of the one before."""


class TouchView(_Wire, frozen=True):
    """What one record did to the message."""

    kind: int
    """0 stored, 1 handed out, 2 acked, 3 nacked, 4 its lease ran out, 5 ready again, 6 given back,
    7 lease extended, 8 dead letter, 9 redriven, 10 purged, 11 passed over by a filter, 12 the
    filter is gone, 13 lost to retention, 14 retention took what stands before it, 15 the group was
    set to go on after it, 16 the group was set to go on from it or from before. By 14 and 15 only
    what is unsettled is lost or skipped; 12 is about what was passed over."""
    at_ms: int
    """The record's time, milliseconds since 1970."""
    index: int
    """The record's position in the log of the partition group."""
    term: int
    """The record's term."""
    node: int
    """Who led that term, as far as the answering node has seen since it was started; 0: unknown."""
    number: int
    """The attachment of the consumer group; 0: all."""
    attempt: int
    """How often the message was handed out by then."""
    consumer: int
    """Who did it or whose it is; 0: nobody."""
    token: int
    """The lease; 0: none."""
    detail: int
    """For 1 and 7: until when the lease runs; for 3 and 4: when it is due again; in milliseconds
    since 1970. For 8: the number of the dead letter."""
    reason: str
    """For 8: why, as long as the dead letter is there."""


class FoundTouches(_Wire, frozen=True):
    """The answer to `FindTouches`."""

    touches: list[TouchView]
    """In the order of the log; a page may be empty though more follow."""
    after: int
    """More may follow, by later records than this one: ask again; 0: that is all."""
    is_whole: bool
    """False: the log no longer reaches back to where the message was stored, or a part of what is
    kept of it cannot be read."""
