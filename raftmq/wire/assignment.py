"""The messages of consumers that read by offset: who reads which queue, and how far they came.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| COMMIT | `CommitOffsets`, `OffsetsCommitted` | - | - |
| HEARTBEAT | `Heartbeat`, `Assigned` | - | - |
| MEMBERS | `FindMembers`, `FoundMembers` | - | - |

A consumer becomes a member, leaves, and gives up queues by `messages.Admin`: see
`raftmq.machine.catalog.membership` for the commands. From then on it sends heartbeats, one after
the other, to the leader of the system group: each is answered when the member's queues have
changed, or after a while. The owner of a queue claims its epoch with a `CommitOffsets` before it
reads what was committed, and names it in each commit.
"""

import msgspec

from .messages import _Wire


class QueueOffset(_Wire, frozen=True):
    """An offset in a queue."""

    queue: int
    """The queue's number."""
    offset: int
    """The offset. With an epoch it may be -1: only claim the epoch."""
    epoch: int = 0
    """The owner epoch under which the sender owns the queue; 0: it owns nothing. All of a message
    have one, or none."""


class CommitOffsets(_Wire, frozen=True):
    """Remember how far a consumer group has read. The queues must belong to one partition group."""

    consumer_group: str
    """The name of the consumer group."""
    offsets: list[QueueOffset]
    """For each queue the offset of the next message to read."""
    sequence: int = 0
    """The owner's or sender's number of this commit, growing; one that was overtaken has no
    effect."""
    kept_ms: int = 0
    """Forget the group's offsets here this long after its last commit; 0: keep them."""
    is_reset: bool = False
    """True from an operator: it counts although the queues have owners."""
    sender: int = 0
    """Without epochs: the sender's random number, below 2^63, the same for all its commits. A
    repeat of a commit changes nothing and gets the same answer, as long as sender and queue are
    among the last 65,536 of the partition group. 0: it has an effect each time it arrives."""


class OffsetsCommitted(_Wire, frozen=True):
    """The offsets are on the disks of a majority."""

    fenced: list[int] = msgspec.field(default_factory=list)
    """Queues of which nothing was committed, as a higher epoch was claimed."""


class Heartbeat(_Wire, frozen=True):
    """A member is alive, and wants to know what it has; goes to the leader of the system group."""

    member: int
    """The member's number."""
    version: int = 0
    """`Assigned.version` of the last answer: wait until there is a higher one."""
    wait_ms: int = 0
    """How long to wait for that; 0 answers at once."""


class Assigned(_Wire, frozen=True):
    """The queues of a member. A process that is no member (any longer) is refused: `fenced`."""

    version: int
    """It grows with each change; an answer with a lower one than known is old."""
    queues: list[int]
    """The queues that it owns, by their numbers within the topic."""
    epochs: list[int]
    """The owner epoch of each."""
    giving_up: list[int]
    """Those of them that it is to give up, when it is done with what it has of them."""
    remaining_ms: int
    """How long its lease runs from when the answer was made, if nothing more is heard of it."""
    old_queue_count: int | None = None
    """How many queues the topic had when the group began there: it begins in these where its
    members say, and in all others at the first message. None, which older software tells: those
    that the topic had when the member was opened."""


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
    """The consumer group."""
    topic: str
    """The topic's name."""
    topic_id: int
    """Its number."""
    member: int
    """The member's number."""
    instance: str
    """The name that outlives its process; empty: none."""
    host: str
    """Where it runs, in its own words."""
    queues: list[int]
    """The queues that it owns, by their numbers within the topic."""
    giving_up: list[int]
    """Those of them that it is to give up."""
    remaining_ms: int
    """How long its lease runs, as the log has it."""


class FoundMembers(_Wire, frozen=True):
    """The answer to `FindMembers`."""

    members: list[MemberView]
    """By consumer group, topic and member."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
