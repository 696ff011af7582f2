"""The messages about a log: the trace of one message, the events of all, its bounds.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| WHY | `FindTrace`, `FoundTrace` | - | - |
| EVENTS | `FindEvents`, `FoundEvents` | - | columns, one after the other |
| LOG | `FindLog`, `FoundLog` | - | - |

The body of the answer to EVENTS has each column of its rows as a whole, little-endian and without
padding: `indexes u64`, `terms u64`, `times i64` (milliseconds since 1970), `queues u64`,
`bases u64`, `consumers u64`, `tokens u64`, `details i64`, `widths u32`, `numbers u32`,
`bits_at u32`, `attempts u16`, `kinds u8`, then `bits`. A row is about the `width` messages of the
queue from offset `base` on; width 0: about all before `base`; width 2^32 - 1: about all from `base`
on. If `bits_at` is not 2^32 - 1, the row is only about messages whose bits are set from byte
`bits_at` of `bits` on, the lowest first. The rest is as in `MessageEventView`. Rows of kind 0 say
where batches were stored: `consumers` is the producer's id there, 0 without one, and the rest is 0.

A backup asks LOG for the bounds of a log, and copies the log by REPAIR (`messages`): the snapshot
by its index and CRC, then the records after the snapshot up to `FoundLog.last`.
"""

from .messages import _Wire
from .numbers import Amount


class FindTrace(_Wire, frozen=True):
    """Ask which records touched a message, and how, linearizably."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    queue: int
    """The queue's number."""
    offset: int
    """The message's offset in the queue."""
    after: int = 0
    """For the next page: `FoundTrace.after` of the one before."""


class MessageEventView(_Wire, frozen=True):
    """The effect of one record on the message."""

    kind: int
    """0 stored, 1 handed out, 2 acked, 3 nacked, 4 its lease ran out, 5 ready again, 6 given back,
    7 lease extended, 8 dead letter, 9 redriven, 10 purged, 11 passed over by a filter, 12 the
    filter is gone, 13 lost to retention, 14 retention took all before an offset, 15 the group was
    set to go on after it, 16 the group was set to go on from it or from before. 14 and 15 lose or
    skip a message only if it is unsettled; 12 is about messages that were passed over."""
    at_ms: int
    """The record's time, milliseconds since 1970."""
    index: int
    """The record's position in the log of the partition group."""
    term: int
    """The record's term."""
    node: int
    """The leader of that term, if the answering node has seen it since its start; 0: unknown."""
    number: int
    """The attachment of the consumer group; 0: all."""
    attempt: int
    """How often the message was handed out by then."""
    consumer: int
    """The consumer that acted or has the message; 0: none."""
    token: int
    """The lease's token; 0: none."""
    detail: int
    """For 1 and 7: when the lease ends; for 3 and 4: when the message is due again; in milliseconds
    since 1970. For 8: the number of the dead letter."""
    reason: str
    """For 8: the dead letter's reason; empty if the letter is gone. Else empty."""


class FoundTrace(_Wire, frozen=True):
    """The answer to `FindTrace`."""

    events: list[MessageEventView]
    """In the order of the log; a page may be empty though more follow."""
    after: int
    """Events by records after this one may follow: ask again; 0: this page is the last."""
    is_whole: bool
    """False: the log no longer holds the record that stored the message, or a part of the indexes
    cannot be read."""


class FindEvents(_Wire, frozen=True):
    """Ask for the events of all messages in a range of a log's records, linearizably."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    start: int
    """Index of the first record."""
    stop: int = 0
    """Index of the record after the last one; 0: all records that are applied."""
    skip: int = 0
    """For the next page: `FoundEvents.skip` of the one before."""
    bytes_max: Amount = 4 * 1024 * 1024
    """About the bytes of the answer's body, cut to 4 MiB; 0: only `first` and `end` are wanted."""


class FoundEvents(_Wire, frozen=True):
    """The answer to `FindEvents`: rows in the order of the log, those of a record by queue."""

    rows: int
    """Number of rows in the body: the length of each column."""
    bits: int
    """Bytes of `bits` at the end of the body."""
    next: int
    """Index of the record to go on with: the page has all rows of the records before it."""
    skip: int
    """Number of rows of the record `next` that were sent: `FindEvents.skip` for the next page."""
    first: int
    """Index of the first record that the log still has."""
    end: int
    """Index of the record after the last that is applied."""


class FindLog(_Wire, frozen=True):
    """Ask the leader of a partition group for the bounds of its log, linearizably."""

    partition_group: int
    """The partition group's number; 0: the system group."""


class FoundLog(_Wire, frozen=True):
    """The kept log at one moment: all that was acknowledged before the request is in it."""

    snapshot: int
    """Index of the oldest snapshot; the records after it are kept."""
    snapshot_crc: int
    """CRC-32C of that snapshot's state."""
    last: int
    """Index of the last applied record."""
    digest: int
    """The machine's digest after that record, equal on all replicas."""
