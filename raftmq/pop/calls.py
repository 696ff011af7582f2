"""Commands in the log of a data group, to its consumer groups that pop.

A group is named by the number of its attachment to a topic (`consumer_groups`), a consumer by a
random number of its own. Times in commands are lengths: each begins at the stamp of the record that
carries the command.
"""

import msgspec

from .policy import Mode, Policy


class OpenGroup(msgspec.Struct, frozen=True, array_like=True, tag="open_group"):
    """Serve an attachment, or go on with another policy. The leader proposes this command before
    the first request that comes after a change of the catalog."""

    number: int
    """The attachment's number."""
    topic: int
    """The topic's number."""
    consumer_group: str
    """The consumer group's name, under which `subscriptions` keeps its filters."""
    version: int
    """The policy's version; a policy that is not newer changes nothing."""
    mode: Mode
    """How the group is served."""
    policy: Policy
    """The rules for leases, retries and dead letters."""
    queues: list[int]
    """Queues of this data group in which the group does not begin at offset 0."""
    starts: list[int]
    """For each the offset at which the group begins; -1: at the queue's end."""


class CloseGroups(msgspec.Struct, frozen=True, array_like=True, tag="close_groups"):
    """Attachments were deleted: forget their state."""

    numbers: list[int]
    """Numbers of attachments."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A consumer wants messages; its last credit is void."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that asks."""
    count: int
    """The largest number of messages wanted; 0: the consumer wants none."""
    wait_ms: int
    """How long the credit stands; 0: for its own record only."""
    invisible_ms: int
    """How long the consumer's leases run; 0: as the policy says."""
    is_kept: bool = False
    """True: the part that is not handed out stays credit; False: one hand-out ends the credit."""


class Feed(msgspec.Struct, frozen=True, array_like=True, tag="feed"):
    """The leader read messages for a group that has a filter or keeps an order by key."""

    number: int
    """The attachment's number."""
    queue: int
    """The queue's number."""
    base: int
    """Offset of the first message, at which the group's knowledge ends so far."""
    count: int
    """How many messages."""
    mask: bytes | None
    """Bit n, little-endian, says that the message at `base + n` matches; None: all do."""
    keys: bytes
    """The hash of each message's key, four bytes little-endian, 0: no key; empty: no key at all."""
    subscription: int = -1
    """The number of the group's latest subscription, as the leader knew it, 0: it had none. If the
    log has another number by now, nothing is taken in: `mask` may be of a filter that does not
    hold. -1: an older leader sent no number, so there is no check."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One action, on some messages of one lease."""

    action: int
    """An `Action` of `actions`."""
    token: int
    """The lease's token."""
    base: int = 0
    """Offset of the first message."""
    bits: bytes = b""
    """Which messages from there on: little-endian, bit n is the message at `base + n`."""
    delay_ms: int = -1
    """Nack: how long the messages wait, -1: by the schedule. Extension: how long the lease runs."""
    reason: str = ""
    """For a rejection: why, in the consumer's words."""


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """A consumer settles messages in hand. A repeat gets the results of the first time."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that settles."""
    sequence: int
    """From 1, rising by one; by handle: any number that is higher than the last one by handle."""
    steps: list[Step]
    """The steps, in the order in which they are carried out."""
    by_handle: bool = False
    """True: messages that the consumer popped are settled by handle. Such settlements have numbers
    of their own, so that the numbers of the consumer itself stay in sequence."""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """A consumer wants no more messages; messages in its hand stay its own."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that leaves."""


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Let time pass: something is due, and no other record comes."""


class Lose(msgspec.Struct, frozen=True, array_like=True, tag="lose"):
    """Retention removed the beginning of queues."""

    queues: list[int]
    """Numbers of queues."""
    earliest: list[int]
    """For each the first offset that is kept."""


class ChangeDead(msgspec.Struct, frozen=True, array_like=True, tag="change_dead"):
    """Hand dead letters out again, or throw them away: whole ones, or some messages of each."""

    number: int
    """The attachment's number."""
    letters: list[int]
    """Numbers of dead letters."""
    is_purge: bool
    """True: throw the messages away."""
    bases: list[int] = msgspec.field(default_factory=list)
    """For each letter the offset of the first chosen message; empty: whole letters are chosen."""
    bits: list[bytes] = msgspec.field(default_factory=list)
    """For each letter which messages from there on are chosen: little-endian, bit n is the message
    at `base + n`."""
    request: int = 0
    """A random number of the caller's own: a repeat with this number changes nothing, and gets the
    first answer. 0, as older software wrote: no number."""


class ResetGroup(msgspec.Struct, frozen=True, array_like=True, tag="reset_group"):
    """Go on elsewhere in some queues: leases there end, retries are forgotten."""

    number: int
    """The attachment's number."""
    queues: list[int]
    """Numbers of queues."""
    offsets: list[int]
    """For each the next message to hand out; -1: at the queue's end."""
    request: int = 0
    """As in `ChangeDead`."""


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """A consumer claims a piece of work, and asks whether the work was claimed before."""

    number: int
    """The attachment's number."""
    key: bytes
    """The name of the work."""
    claimant: int
    """The consumer's number: random, the same when the consumer asks again."""
    ttl_ms: int
    """How long the claim keeps other consumers off; 0: the claim is given up."""


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
