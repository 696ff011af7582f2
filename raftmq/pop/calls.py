"""What is said to the consumer groups of a data group that pop: the commands of its log.

A group is named by the number of its attachment to a topic (`consumer_groups`), a consumer by a
random number of its own. Times that are told are lengths; when they end is counted from the stamp
of the record that carries the command.
"""

from enum import IntEnum

import msgspec

from .policy import Mode, Policy


class OpenGroup(msgspec.Struct, frozen=True, array_like=True, tag="open_group"):
    """Serve an attachment, or go on with another policy. The leader puts it before the first wish
    that comes after a change of the catalog."""

    number: int
    """The attachment's number."""
    topic: int
    """The topic's number."""
    consumer_group: str
    """The consumer group's name: its filters are found by it."""
    version: int
    """Of the policy; one that is not newer changes nothing."""
    mode: Mode
    """How it is served."""
    policy: Policy
    """What becomes of its messages."""
    queues: list[int]
    """Queues of this data group that do not begin at offset 0."""
    starts: list[int]
    """For each where the group begins to read; -1: at the queue's end."""


class CloseGroups(msgspec.Struct, frozen=True, array_like=True, tag="close_groups"):
    """Attachments are gone: forget all that was said."""

    numbers: list[int]
    """Their numbers."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A consumer wants messages; its last wish is void."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that asks."""
    count: int
    """The largest number of messages wanted; 0: the consumer wants none."""
    wait_ms: int
    """How long the wish stands."""
    invisible_ms: int
    """How long the messages are its alone; 0: as the policy says."""
    is_kept: bool = False
    """True: what is not handed out at once goes on standing; else it is for one hand-out."""


class Feed(msgspec.Struct, frozen=True, array_like=True, tag="feed"):
    """The leader has read messages for a group that cannot tell from offsets what may go out."""

    number: int
    """The attachment's number."""
    queue: int
    """The queue's number."""
    base: int
    """Offset of the first message: what the group knows already ends here."""
    count: int
    """How many messages."""
    mask: bytes | None
    """Bit n, little-endian, says that the message at `base + n` matches; None: all do."""
    keys: bytes
    """The hash of each message's key, four bytes little-endian, 0: it has none; empty: none has."""
    subscription: int = -1
    """The number of the group's latest subscription, as the leader knew it, 0: it had none. If the
    log knows another one by now, nothing is taken in: `mask` may be of a filter that does not
    hold. -1: an older leader did not say, and is believed."""


class Deed(IntEnum):
    """What becomes of messages in hand; see `raftmq.wire.popping.Action`."""

    ACK = 0
    NACK = 1
    REJECT = 2
    GIVE_BACK = 3
    EXTEND = 4


class Step(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of some messages of one lease."""

    deed: int
    """A `Deed`."""
    token: int
    """The lease."""
    base: int = 0
    """Offset of the first message."""
    bits: bytes = b""
    """Which messages from there on: little-endian, bit n is the message at `base + n`."""
    delay_ms: int = -1
    """For a nack how long they wait, -1: by the schedule; for an extension how long it runs."""
    reason: str = ""
    """For a rejection."""


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """A consumer settles messages in hand. A repeat gets the results of the first time."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that settles."""
    sequence: int
    """From 1, one more each time; by handle: any that is higher than the last one by handle."""
    steps: list[Step]
    """What to do, in order."""
    by_handle: bool = False
    """True: messages that the consumer popped are settled by handle. Such settlements have numbers
    of their own, so that the consumer may go on with its own ones."""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """A consumer wants no more messages; what it has in hand stays its own."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that leaves."""


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Something is due and nothing else flows: let time pass."""


class Lose(msgspec.Struct, frozen=True, array_like=True, tag="lose"):
    """Retention took the beginning of queues."""

    queues: list[int]
    """Numbers of queues."""
    earliest: list[int]
    """For each the first offset that is kept."""


class ChangeDead(msgspec.Struct, frozen=True, array_like=True, tag="change_dead"):
    """Hand dead letters out again, or throw them away: whole ones, or some messages of each."""

    number: int
    """The attachment's number."""
    letters: list[int]
    """Their numbers."""
    is_purge: bool
    """True: throw them away."""
    bases: list[int] = msgspec.field(default_factory=list)
    """For each letter the offset of the first message that is meant; empty: whole letters are."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each letter which messages from there on are meant: little-endian, bit n is the message
    at `base + n`."""
    request: int = 0
    """A random number of the caller's own: a repeat of it does nothing, and gets the same answer.
    0, which older software wrote: none."""


class ResetGroup(msgspec.Struct, frozen=True, array_like=True, tag="reset_group"):
    """Go on elsewhere in some queues: leases there end, retries are forgotten."""

    number: int
    """The attachment's number."""
    queues: list[int]
    """Numbers of queues."""
    offsets: list[int]
    """For each the next message to hand out; -1: at the queue's end."""
    request: int = 0
    """As of `ChangeDead`."""


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """A consumer says that it does something, and asks whether it was done already."""

    number: int
    """The attachment's number."""
    key: bytes
    """What is done."""
    claimant: int
    """The consumer's number: random, the same when it asks again."""
    ttl_ms: int
    """For how long nobody else may; 0: the claim is given up."""


Call = (
    OpenGroup
    | CloseGroups
    | Feed
    | Ask
    | Settle
    | Leave
    | Tick
    | Lose
    | ChangeDead
    | ResetGroup
    | Claim
)
