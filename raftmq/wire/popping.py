"""The messages of consumer groups that pop: asking for messages, settling them, dead letters.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| POP | `Pop`, `Popped` | - | batches, one after the other |
| SETTLE | `Settle`, `Settled` | - | - |
| LEAVE | `Leave`, `messages.Done` | - | - |
| BACKLOGS | `FindBacklogs`, `FoundBacklogs` | - | - |
| DEAD | `FindDead`, `FoundDead` | - | - |
| CHANGE_DEAD | `ChangeDead`, `DeadChanged` | - | - |
| CLAIM | `Claim`, `Claimed` | - | - |
| RESET | `ResetGroup`, `messages.Done` | - | - |

A consumer group is named by the number of its *attachment* to a topic, as the catalog's `Attach`
gave it. A consumer is named by a random number of its own, which it keeps while it lives. The
consumer talks to each partition group that has queues of the topic; each group knows it apart.

Every request may be repeated. A `Pop` takes the place of the one before. A `Settle` has a sequence
number, and a `ResetGroup` or `ChangeDead` a random one: a repeat does nothing and gets the answer
of the first, as long as that is among the last 4,096 of its partition group.
"""

import msgspec

from .fetches import FetchedQueue
from .messages import (
    _Wire,
)
from .numbers import Amount, DrawnNumber, SequenceNumber


class Pop(_Wire, frozen=True):
    """Ask a partition group's leader for messages: one request of a consumer at a time.

    The leader answers when there are messages, or when the wait ends. Messages that are there are
    handed out at once, up to `count`. With `is_kept` the rest of `count` is credit until the wait
    ends: later messages are handed out against the credit, also before the consumer asks again. So
    the consumer asks for the rest at once, which needs no entry of the log. Without credit a
    consumer that does not ask gets no messages.
    """

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that asks: random, 1 to 2^63 - 1."""
    count: int
    """The largest number of messages wanted, cut to 65,536, and for a topic with more than 1,024
    queues to 1,024. 0: only make the attachment known here."""
    wait_ms: Amount
    """Milliseconds to wait when there are no messages, cut to the node's limit. 0 answers at once;
    in a group with a filter or ordered by key, of whose next messages the leader has still to tell
    the replicas, within 500."""
    invisible_ms: int
    """Milliseconds for which the messages are this consumer's alone, from 1,000, cut to 12 hours;
    0: by the group's policy."""
    bytes_max: int
    """The answer's body has this number of bytes and one batch more at the most; messages that were
    handed out and did not fit come with the next answer."""
    is_resumed: bool = False
    """True for the first request on a connection: all messages in the consumer's hand are sent
    again, with the same tokens."""
    subscribed: int = 0
    """The version of the group's subscription, as `Subscribe` gave it: refused as `unavailable`
    until the queues' log knows it. 0: any version."""
    is_kept: bool = False
    """True: the rest of `count` is credit; False: the first hand-out ends the request."""


class Lease(_Wire, frozen=True):
    """Messages of one queue in the hand of the consumer, or a part of them: a lease whose batches
    do not fit into one answer comes in several parts, with the same token."""

    token: int
    """The number that settles the lease, higher with every hand-out of the partition group."""
    queue: int
    """The queue's number."""
    attempt: int
    """How often these messages were handed out, this time included."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Bit n, lowest first, says that the message at `base + n` belongs to the lease."""
    deadline_ms: int
    """When the lease ends by the leader's clock, milliseconds since 1970."""
    remaining_ms: int
    """Milliseconds from the making of the answer to the lease's end; 0: the lease is over."""


class Popped(_Wire, frozen=True):
    """The messages; empty when the wait ran out."""

    leases: list[Lease]
    """The leases that were handed out, or parts of them."""
    queues: list[FetchedQueue]
    """The places of their batches in the body, each once. A queue that cannot be read has an error;
    its messages are sent again when it can. Of a large batch a part may come alone, as a batch of
    its own: its base is the offset of the part's first message."""
    is_more: bool = False
    """True if more messages were handed out than fitted, or the leader does not know yet which ones
    a resumed consumer has: ask again at once."""
    is_serial: bool = False
    """True in a group that keeps the order of queues: if a message leaves a lease by other means
    than an ack, all later messages of that lease leave it, too."""
    has_runs: bool = False
    """True in a group ordered by key whose leases hold several messages of a key: as `is_serial`,
    for the later messages of the same key."""
    throttle_ms: int = 0
    """Milliseconds for which a quota held the request."""


SETTLE_ITEMS_MAX = 2048
"""Items in one `Settle`, each about 10 us of a record's apply."""


class SettleItem(_Wire, frozen=True):
    """One step of a `Settle`."""

    action: int
    """An `Action` of `raftmq.pop.actions`."""
    token: int
    """The lease's token."""
    base: int = 0
    """Offset of the first message; not for `EXTEND`."""
    bits: bytes = b""
    """Which messages from there on, as in `Lease`; not for `EXTEND`."""
    delay_ms: int = -1
    """Milliseconds. For `NACK`: how long the messages wait, at most 7 days; -1: by the group's
    schedule. For `EXTEND`: how long the lease runs from now on, at least 1 and at most 12 hours."""
    reason: str = ""
    """For `REJECT`: why, for people; up to `REASON_CHARACTERS_MAX` are kept."""


class Settle(_Wire, frozen=True):
    """Settle messages in hand: one request of a consumer to a partition group at a time."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that settles."""
    sequence: SequenceNumber
    """From 1, one more with each request of this consumer to this partition group; by handle: any
    number above the last one by handle."""
    items: list[SettleItem]
    """The steps, in order; 2,048 at the most."""
    by_handle: bool = False
    """True: the consumer's messages are settled by handle, perhaps by another process. These
    requests have a sequence of their own."""


class Settled(_Wire, frozen=True):
    """The settlement is on the disks of a majority."""

    results: list[int]
    """For each item: the number of messages that were settled, for `EXTEND` the milliseconds that
    the lease runs from now on; or `FENCED`, -1, or `OVER_LIMIT`, -2: see `raftmq.pop.actions`."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each item of which some messages were not in hand: the settled ones, from the first
    message that the item names on, as in `Lease`. Empty for other items; no entries if there is no
    such item."""

    @classmethod
    def of(cls, results: list[int | bytes]) -> "Settled":
        """The answer, from the machine's result of each item: see `pop.spans.told`."""
        if all(isinstance(each, int) for each in results):
            return cls([each for each in results if isinstance(each, int)])
        bits = [b"" if isinstance(each, int) else each for each in results]
        counts = [
            each if isinstance(each, int) else int.from_bytes(each, "little").bit_count()
            for each in results
        ]
        return cls(counts, bits)


class Leave(_Wire, frozen=True):
    """A consumer wants no more messages. Those in its hand stay there until they are settled or
    their lease runs out. On another connection than the consumer's last one it has no effect."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    consumer: DrawnNumber
    """The consumer that leaves."""
    is_idle: bool = False
    """True: no credit of the consumer stands, so the log need not hear that it leaves; the leader
    forgets the consumer's connection if it is this one."""


class FindBacklogs(_Wire, frozen=True):
    """Ask for the backlogs of consumer groups in a partition group, linearizably."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int = 0
    """The attachment's number; 0: all."""
    after_number: int = 0
    """For the next page: the attachment of the last entry of the one before."""
    after_queue: int = -1
    """For the next page: the queue of that entry."""


class BacklogView(_Wire, frozen=True):
    """The backlog of a consumer group in one queue: messages by their state, in the words of
    `raftmq.pop.backlog.Counts`."""

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
    """Messages that were acknowledged."""
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
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    after: int = 0
    """For the next page: the letter of the last entry of the one before."""
    limit: int = 1000
    """The largest number of letters wanted; the node cuts it to 1 to 2,000."""


class DeadView(_Wire, frozen=True):
    """A dead letter: neighbouring messages of one queue that failed together."""

    letter: int
    """The letter's number within attachment and partition group."""
    queue: int
    """The queue's number."""
    attempt: int
    """How often its messages were handed out."""
    base: int
    """Offset of the first message."""
    bits: bytes
    """Which messages from there on, as in `Lease`."""
    reason: str
    """The words of the consumer that rejected the messages; else `failed` or `expired`."""
    at_ms: int
    """When the letter was made, milliseconds since 1970."""


class FoundDead(_Wire, frozen=True):
    """The answer to `FindDead`."""

    letters: list[DeadView]
    """By number."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class ChangeDead(_Wire, frozen=True):
    """Hand dead letters out again as if for the first time, or throw them away: whole ones, or some
    messages of each."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    letters: list[int]
    """Numbers of the letters; 2,048 at the most. Letters that are gone are passed over."""
    is_purge: bool = False
    """True: throw the messages away; False: hand them out again."""
    bases: list[int] = msgspec.field(default_factory=list)
    """For each letter the offset of the first message that is meant; empty: whole letters are."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each letter which messages from there on are meant, as in `Lease`; messages that are not
    in the letter are passed over."""
    request: int = 0
    """A random number, equal in each repeat; 0: a repeat may take effect twice."""


class DeadChanged(_Wire, frozen=True):
    """The change is on the disks of a majority."""

    messages: int
    """Number of messages that left their dead letter."""


class ResetGroup(_Wire, frozen=True):
    """Let a consumer group go on from other offsets. Its leases in these queues are fenced, and its
    dead letters from there on come again as messages; those before stay."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    number: int
    """The attachment's number."""
    queues: list[int]
    """Numbers of queues, each once; 2,000 at the most."""
    offsets: list[int]
    """For each queue the next offset to hand out, cut to the range that the queue holds; -1: the
    queue's end."""
    request: int = 0
    """A random number, equal in each repeat; 0: a repeat may take effect twice."""


RESET_QUEUES_MAX = 2_000
"""Queues in one `ResetGroup`."""


class Claim(_Wire, frozen=True):
    """Claim a piece of work by its key, and ask whether another consumer has claimed it."""

    partition_group: int
    """The partition group; always the same one for a key."""
    number: int
    """The attachment's number."""
    key: bytes
    """The name of the work, 1 to 1,024 bytes."""
    claimant: int
    """The consumer's number: random, equal in each repeat."""
    ttl_ms: int
    """Milliseconds for which no other claim succeeds, at most 30 days; 0: give the claim up."""


class Claimed(_Wire, frozen=True):
    """The claim, or its end, is on the disks of a majority."""

    is_ours: bool
    """True: the running claim is the sender's; when a claim is given up: it was the sender's."""
    remaining_ms: int
    """Milliseconds that the running claim still lasts, the sender's or another one's; 0 when a
    claim is given up."""
