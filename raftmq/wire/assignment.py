"""The messages of consumers that read by offset: who reads which queue, and how far they came.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| COMMIT | `CommitOffsets`, `OffsetsCommitted` | - | - |
| COMMITTED | `Committed`, `CommittedOffsets` | - | - |
| HEARTBEAT | `Heartbeat`, `Assigned` | - | - |
| MEMBERS | `FindMembers`, `FoundMembers` | - | - |

A consumer becomes a member, leaves, and gives up queues by `messages.Admin`: see
`raftmq.machine.catalog.membership` for the commands. From then on the member sends heartbeats, one
after the other, to the leader of the system group: each is answered when the member's queues have
changed, or after a while. The owner of a queue claims its epoch with a `CommitOffsets` before it
reads the committed offset, and names the epoch in each commit.
"""

import msgspec

from .messages import _Wire
from .numbers import Bounded


class QueueOffset(_Wire, frozen=True):
    """An offset in a queue."""

    queue: int
    """The queue's number."""
    offset: int
    """The offset. With an epoch it may be -1: only claim the epoch."""
    epoch: int = 0
    """The owner epoch under which the sender owns the queue; 0: the sender owns no queue. Either
    all offsets of a message have an epoch, or none has."""


class CommitOffsets(_Wire, frozen=True):
    """Remember how far a consumer group has read. The queues must belong to one partition group."""

    consumer_group: str
    """The name of the consumer group."""
    offsets: Bounded[QueueOffset]
    """For each queue the offset of the next message to read."""
    sequence: int = 0
    """The owner's or sender's number of this commit, higher with each; a commit that a higher
    number overtook has no effect."""
    kept_ms: int = 0
    """Milliseconds after the group's last commit at which its offsets here are forgotten; 0:
    never."""
    is_reset: bool = False
    """True from an operator: the commit takes effect although the queues have owners."""
    sender: int = 0
    """Without epochs: the sender's random number, below 2^63, the same for all its commits. A
    repeat of a commit changes nothing and gets the same answer, as long as sender and queue are
    among the last 65,536 of the partition group. 0: a commit takes effect each time it arrives."""


class OffsetsCommitted(_Wire, frozen=True):
    """The offsets are on the disks of a majority."""

    fenced: list[int] = msgspec.field(default_factory=list)
    """Numbers of queues whose offset was not committed, as a higher epoch was claimed."""


class Heartbeat(_Wire, frozen=True):
    """A member is alive, and asks for its queues; goes to the leader of the system group."""

    member: int
    """The member's number."""
    version: int = 0
    """`Assigned.version` of the last answer: wait until there is a higher one."""
    wait_ms: int = 0
    """Milliseconds to wait for that, cut to the node's limit; 0 answers at once."""


class Assigned(_Wire, frozen=True):
    """The queues of a member. A process that is no member, or no longer, is refused: `fenced`."""

    version: int
    """The assignment's version, higher with each change; an answer with a lower one is old."""
    queues: list[int]
    """The queues that the member owns, by their numbers within the topic."""
    epochs: list[int]
    """The owner epoch of each queue."""
    giving_up: list[int]
    """The queues among them that the member is to give up, once it is done with their messages."""
    remaining_ms: int
    """Milliseconds from the making of the answer to the end of the member's lease, without another
    heartbeat."""
    old_queue_count: int | None = None
    """Number of queues that the topic had when the group began there: the group begins in these
    where its members say, and in all others at the first message. None, from older software: the
    queues that the topic had when the member was opened."""


class FindMembers(_Wire, frozen=True):
    """Ask the leader of the system group for members of consumer groups, linearizably."""

    consumer_group: str | None = None
    """The consumer group, `group@instance` for an instance of a broadcast group; None: all."""
    after_group: str = ""
    """For the next page: the consumer group of the last entry of the one before."""
    after_topic: int = 0
    """For the next page: the topic's number in that entry."""
    after_member: int = 0
    """For the next page: the member's number in that entry."""


class MemberView(_Wire, frozen=True):
    """One member of a consumer group for one topic."""

    consumer_group: str
    """Name of the consumer group."""
    topic: str
    """The topic's name."""
    topic_id: int
    """The topic's number."""
    member: int
    """The member's number."""
    instance: str
    """The name that outlives its process; empty: none."""
    host: str
    """The member's host, in the member's own words."""
    queues: list[int]
    """The queues that the member owns, by their numbers within the topic."""
    giving_up: list[int]
    """The queues among them that the member is to give up."""
    remaining_ms: int
    """Milliseconds to the end of the member's lease, by the log's time; 0: the lease ran out."""


class FoundMembers(_Wire, frozen=True):
    """The answer to `FindMembers`."""

    members: list[MemberView]
    """By consumer group, topic and member."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class Committed(_Wire, frozen=True):
    """Ask for committed offsets, linearizably, of the queues of one partition group."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    consumer_group: str | None
    """The consumer group; None: all of them."""
    after_group: str = ""
    """For the next page: the consumer group of the last entry of the one before."""
    after_queue: int = -1
    """For the next page: the queue of that entry."""


class CommittedOffset(_Wire, frozen=True):
    """How far one consumer group has read one queue."""

    consumer_group: str
    """Name of the consumer group."""
    queue: int
    """The queue's number."""
    offset: int
    """Offset of the next message to read."""
    timestamp: int
    """When the offset was committed, by the leader's stamp: milliseconds since 1970."""
    passed: int = 0
    """Number of messages that the group passed over when it read the queue here, as they do not
    match its filter, since the answering node started; one that was read twice counts twice."""


class CommittedOffsets(_Wire, frozen=True):
    """The answer to `Committed`."""

    offsets: list[CommittedOffset]
    """All that were ever committed and not dropped since, by consumer group and queue."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
