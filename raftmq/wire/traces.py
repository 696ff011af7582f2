"""The messages about what became of messages: of one, and of all.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| WHY | `FindTouches`, `FoundTouches` | - | - |
| EVENTS | `FindEvents`, `FoundEvents` | - | columns, one after the other |

The body of the answer to EVENTS has each column of its rows as a whole, little-endian and without
padding: `indexes u64`, `terms u64`, `times i64` (milliseconds since 1970), `queues u64`,
`bases u64`, `consumers u64`, `tokens u64`, `details i64`, `widths u32`, `numbers u32`,
`bits_at u32`, `attempts u16`, `kinds u8`, then `bits`. A row is about the `width` messages of the
queue from offset `base` on; width 0: about all before `base`; width 2^32 - 1: about all from it on.
If `bits_at` is not 2^32 - 1, it is about those of them whose bits are set from byte `bits_at` of
`bits` on, the lowest first. The rest is as in `TouchView`; of rows of kind 0, which say where
batches were stored, it is 0.
"""

from .messages import _Wire
from .numbers import Amount


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
    """The leader of that term, as far as the node has seen since it was started; 0: unknown."""
    number: int
    """The attachment of the consumer group; 0: all."""
    attempt: int
    """How often the message was handed out by then."""
    consumer: int
    """The consumer that did it or has the message; 0: none."""
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


class FindEvents(_Wire, frozen=True):
    """Ask what became of all messages by the records of a log, linearizably."""

    partition_group: int
    """The partition group."""
    start: int
    """The first record."""
    stop: int = 0
    """The record after the last one; 0: up to the last that is applied."""
    skip: int = 0
    """For the next page: `FoundEvents.skip` of the one before."""
    bytes_max: Amount = 4 * 1024 * 1024
    """About the length of the answer's body; 0: only `first` and `end` are wanted."""


class FoundEvents(_Wire, frozen=True):
    """The answer to `FindEvents`: rows in the order of the log, those of a record by queue."""

    rows: int
    """How many there are."""
    bits: int
    """Bytes of their bits."""
    next: int
    """The record to go on with: the page has all rows of those before it."""
    skip: int
    """The page has this many rows of `next`, too."""
    first: int
    """The first record that the log still has."""
    end: int
    """The record after the last that is applied."""
