"""The messages that list consumer groups with modes, policies and topics, and end deleted ones.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| GROUPS | `FindConsumerGroups`, `FoundConsumerGroups` | - | - |
| FORGET_GROUP | `ForgetGroup`, `messages.Done` | - | - |

Groups are changed with `messages.Admin`: see `raftmq.machine.catalog.consumer_groups` for the
commands. A group with attachments to many topics may come in several pages, each with some of the
attachments.
"""

from .messages import _Wire


class ForgetGroup(_Wire, frozen=True):
    """Carry out a deletion in a partition group; answered when all that was committed there under
    the consumer group's name is forgotten. Safe to repeat: a group that was created since stays."""

    partition_group: int
    """The partition group; the request goes to its leader."""
    until: int
    """Index of the deletion, the result of `DeleteConsumerGroup`; all deletions before it are
    carried out, too."""


class FindConsumerGroups(_Wire, frozen=True):
    """Ask the leader of the system group for consumer groups, linearizably."""

    consumer_group: str | None = None
    """The consumer group; None: all."""
    topic: str | None = None
    """Only groups that are attached to this topic, and of their attachments only those to it; None:
    all."""
    after_group: str = ""
    """For the next page: the name of the last entry of the one before."""
    after_topic: int = 0
    """For the next page: the topic's number in that entry's last attachment; 0: it has none."""


class AttachmentView(_Wire, frozen=True):
    """A consumer group takes messages of a topic."""

    number: int
    """The attachment's number."""
    topic: str
    """The topic's name."""
    topic_id: int
    """The topic's number."""
    is_latest: bool
    """True: the group began at the end of the first `queues` queues, else with the first message
    that was kept."""
    queues: int
    """How many queues the topic had when the group began."""


class ConsumerGroupView(_Wire, frozen=True):
    """A consumer group."""

    name: str
    """The group's name."""
    mode: str
    """A `raftmq.pop.policy.Mode`."""
    schedule_ms: list[int]
    """Milliseconds that a message waits after its first failure, its second, …; the last entry
    holds for all later failures."""
    attempts_max: int
    """A message that failed this number of times is a dead letter."""
    invisible_ms: int
    """Milliseconds for which messages are a consumer's alone if the consumer names no time."""
    order: str
    """A `raftmq.pop.policy.Order`."""
    is_blocking: bool
    """True: in an ordered group a dead letter holds up the messages that follow it in order."""
    version: int
    """Raft index of the catalog's record that gave it this policy."""
    attachments: list[AttachmentView]
    """By the topic's number."""
    run: int = 1
    """In a group ordered by key: the number of messages of one key that a lease may hold."""


class FoundConsumerGroups(_Wire, frozen=True):
    """The answer to `FindConsumerGroups`."""

    groups: list[ConsumerGroupView]
    """By name."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
