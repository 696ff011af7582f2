"""The messages of consumer groups that pop: asking for messages, settling them, dead letters.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| POP | `Pop`, `Popped` | - | batches, one after the other |
| SETTLE | `Settle`, `Settled` | - | - |
| LEAVE | `Leave`, `messages.Done` | - | - |
| BACKLOGS | `FindBacklogs`, `FoundBacklogs` | - | - |
| DEAD | `FindDead`, `FoundDead` | - | - |
| BURY | `ChangeDead`, `DeadChanged` | - | - |
| CLAIM | `Claim`, `Claimed` | - | - |
| RESET | `ResetGroup`, `messages.Done` | - | - |

A consumer group is named by the number of its *attachment* to a topic, as the catalog's `Attach`
gave it. A consumer is named by a random number of its own, the same for as long as it lives. It
talks to each partition group that has queues of the topic, and is known to each by itself.

What a request may be repeated: all of them. A `Pop` takes the place of the one before. A `Settle`
has a sequence number, and a `ResetGroup` or `ChangeDead` a random one: a repeat does nothing and
gets the answer of the first, as long as it is among the last 4,096 of its partition group.
"""

from enum import IntEnum

import msgspec

from .fetches import FetchedQueue
from .messages import (
    _Wire,
)
from .numbers import Amount, DrawnNumber, SequenceNumber


class Pop(_Wire, frozen=True):
    """Ask a partition group's leader for messages: one request of a consumer at a time.

    It is answered when there are some, or when the wait ends. What is there is handed out at once,
    up to `count`. With `is_kept` the rest of `count` is credit until the wait ends: what comes is
    handed out against it, also before the consumer asks again. So it asks for the rest at once,
    which needs no entry of the log. Without credit nothing is handed out to who does not ask.
    """

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that asks: random, 1 to 2^63 - 1."""
    count: int
    """At most this many messages. 0: only make the attachment known here."""
    wait_ms: Amount
    """How long to wait when there are none; 0 answers at once."""
    invisible_ms: int
    """How long the messages are this consumer's alone; 0: as the group's policy says."""
    bytes_max: int
    """The answer's body has this many bytes and one batch more at the most; what was handed out and
    did not fit comes with the next answer."""
    is_resumed: bool = False
    """True for the first request on a connection: all that the consumer has in hand comes once
    more, with the same tokens."""
    subscribed: int = 0
    """The version of the group's subscription, as `Subscribe` gave it: refused as `unavailable`
    until the queues' log knows it. 0: whatever holds."""
    is_kept: bool = False
    """True: it is credit, and not for one answer alone."""


class Lease(_Wire, frozen=True):
    """Messages of one queue in the hand of the consumer, or a part of them: a lease whose batches
    do not fit into one answer comes in several, with the same token."""

    token: int
    """What settles it; it grows with every hand-out of the partition group."""
    queue: int
    """The queue's number."""
    attempt: int
    """How often these messages were handed out, this time included."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Bit n, lowest first, says that the message at `base + n` belongs to it."""
    deadline_ms: int
    """Until when, by the leader's clock, milliseconds since 1970."""
    remaining_ms: int
    """How long that is from when the answer was made."""


class Popped(_Wire, frozen=True):
    """The messages; empty when the wait ran out."""

    leases: list[Lease]
    """What was handed out."""
    queues: list[FetchedQueue]
    """Where their batches stand in the body, each once; a queue that cannot be read has an error,
    and what was handed out of it comes again when it can. Of a large batch there may be a part
    alone, as a batch of its own: its base is the offset of the part's first message."""
    is_more: bool = False
    """True if more was handed out than fitted: ask again at once."""
    is_serial: bool = False
    """True in a group that keeps the order of queues: whatever ends a message of a lease, but an
    ack, takes all that comes after it in that lease along."""


class Action(IntEnum):
    """What becomes of messages in hand."""

    ACK = 0
    """They are done with."""
    NACK = 1
    """They failed: hand them out again, later."""
    REJECT = 2
    """They can never be done: dead letters at once."""
    GIVE_BACK = 3
    """They were not begun with: whoever comes may have them, and this attempt does not count."""
    EXTEND = 4
    """The whole lease runs longer."""


SETTLE_ITEMS_MAX = 4096
"""In one `Settle`."""
REASON_CHARACTERS_MAX = 1000
"""Kept of a `SettleItem.reason`."""


class SettleItem(_Wire, frozen=True):
    """One step of a `Settle`."""

    action: int
    """An `Action`."""
    token: int
    """The lease."""
    base: int = 0
    """Offset of the first message; not for `EXTEND`."""
    bits: bytes = b""
    """Which messages from there on, as in `Lease`; not for `EXTEND`."""
    delay_ms: int = -1
    """For `NACK`: how long the messages wait, -1: by the group's schedule. For `EXTEND`: how long
    the lease runs from now on."""
    reason: str = ""
    """For `REJECT`: why, for people; up to `REASON_CHARACTERS_MAX` are kept."""


class Settle(_Wire, frozen=True):
    """Settle messages in hand: one request of a consumer to a partition group at a time."""

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that settles."""
    sequence: SequenceNumber
    """From 1, one more with each request of this consumer to this partition group; by handle: any
    that is higher than the last one by handle."""
    items: list[SettleItem]
    """What to do, in order; 4,096 at the most."""
    by_handle: bool = False
    """True: the consumer's messages are settled by handle, perhaps by another process. These
    requests are counted by themselves."""


FENCED = -1
"""In `Settled.results`: the lease is no longer this consumer's; nothing was done."""
OVER_LIMIT = -2
"""In `Settled.results`: a number is out of its range; nothing was done."""


class Settled(_Wire, frozen=True):
    """It is on the disks of a majority."""

    results: list[int]
    """For each item: how many messages were settled, for `EXTEND` how many milliseconds the lease
    runs from now on; or `FENCED` or `OVER_LIMIT`."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each item of which some messages were not in hand: which were settled, from the first one
    that it names on, as in `Lease`; empty for the others, and if there is no such item."""

    @classmethod
    def of(cls, results: list[int | bytes]) -> "Settled":
        """The answer, of what the machine says of each item: see `pop.spans.told`."""
        if all(isinstance(each, int) for each in results):
            return cls([each for each in results if isinstance(each, int)])
        bits = [b"" if isinstance(each, int) else each for each in results]
        counts = [
            each if isinstance(each, int) else int.from_bytes(each, "little").bit_count()
            for each in results
        ]
        return cls(counts, bits)


class Leave(_Wire, frozen=True):
    """A consumer wants no more: it waits for nothing. What it has in hand stays so until it is
    settled or its time runs out."""

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that leaves."""
    is_idle: bool = False
    """True: no wish of it stands, so the log need not hear of it; the leader forgets how the
    consumer is reached, if that is by this connection."""


class FindBacklogs(_Wire, frozen=True):
    """Ask what the consumer groups of a partition group have left to do, linearizably."""

    partition_group: int
    """The partition group."""
    number: int = 0
    """The attachment's number; 0: all."""
    after_number: int = 0
    """For the next page: the attachment of the last entry of the one before."""
    after_queue: int = -1
    """For the next page: the queue of that entry."""


class BacklogView(_Wire, frozen=True):
    """What a consumer group has left to do of one queue."""

    number: int
    """The attachment's number."""
    queue: int
    """The queue's number."""
    end: int
    """The offset after the queue's last message."""
    next: int
    """The first offset that was never handed out."""
    leased: int
    """Messages in hand."""
    waiting: int
    """Messages that failed and wait for their time."""
    ready: int
    """Messages that are to be handed out again, or wait for their turn with their key."""
    dead: int
    """Messages in dead letters."""
    acked: int
    """Messages that are done with."""
    passed: int
    """Messages that a filter passed over."""
    lost: int
    """Messages that retention took before they were settled."""
    purged: int = 0
    """Messages of dead letters that were thrown away."""


class FoundBacklogs(_Wire, frozen=True):
    """The answer to `FindBacklogs`."""

    backlogs: list[BacklogView]
    """By attachment and queue."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class FindDead(_Wire, frozen=True):
    """Ask for the dead letters of a consumer group in one partition group, linearizably."""

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    after: int = 0
    """For the next page: the letter of the last entry of the one before."""
    limit: int = 1000
    """At most this many."""


class DeadView(_Wire, frozen=True):
    """A dead letter: neighbouring messages of one queue that failed together."""

    letter: int
    """Its number within attachment and partition group."""
    queue: int
    """The queue's number."""
    attempt: int
    """How often its messages were tried."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Which messages from there on, as in `Lease`."""
    reason: str
    """In the words of the consumer that rejected it, or `failed` or `expired`."""
    at_ms: int
    """Since when, milliseconds since 1970."""


class FoundDead(_Wire, frozen=True):
    """The answer to `FindDead`."""

    letters: list[DeadView]
    """By number."""
    is_cut: bool = False
    """True: more follow."""


class ChangeDead(_Wire, frozen=True):
    """Hand dead letters out again as if for the first time, or throw them away: whole ones, or some
    messages of each."""

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    letters: list[int]
    """Their numbers; 4,096 at the most. Those that are gone are passed over."""
    is_purge: bool = False
    """True: throw them away."""
    bases: list[int] = msgspec.field(default_factory=list)
    """For each letter the offset of the first message that is meant; empty: whole letters are."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each letter which messages from there on are meant, as in `Lease`; those that are not in
    it are passed over."""
    request: int = 0
    """Random, the same when it is asked again; 0: it may be done twice."""


class DeadChanged(_Wire, frozen=True):
    """It is on the disks of a majority."""

    messages: int
    """How many messages that were."""


class ResetGroup(_Wire, frozen=True):
    """Let a consumer group go on from other offsets. Its leases in these queues are fenced, and its
    dead letters from there on come again as messages; those before stay."""

    partition_group: int
    """The partition group."""
    number: int
    """The attachment's number."""
    queues: list[int]
    """Numbers of queues, 10,000 at the most."""
    offsets: list[int]
    """For each the next message to hand out, cut to what the queue holds; -1: at its end."""
    request: int = 0
    """As of `ChangeDead`."""


RESET_QUEUES_MAX = 10_000
"""In one `ResetGroup`."""


class Claim(_Wire, frozen=True):
    """Say that something is done, and ask whether it was done already."""

    partition_group: int
    """The partition group; always the same one for a key."""
    number: int
    """The attachment's number."""
    key: bytes
    """What is done, 1 to 1024 bytes."""
    claimant: int
    """The consumer's number: random, the same when it asks again."""
    ttl_ms: int
    """For how long no other claim succeeds; 0: the claim is given up."""


class Claimed(_Wire, frozen=True):
    """It is on the disks of a majority."""

    is_ours: bool
    """True: no other claim runs; when it is given up: it was ours."""
    remaining_ms: int
    """How long the claim runs, whoever has it."""
