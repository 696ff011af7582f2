"""The messages that list consumer groups with modes, policies and topics, and end deleted ones.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| GROUPS | `FindConsumerGroups`, `FoundConsumerGroups` | - | - |
| FORGET_GROUP | `ForgetGroup`, `messages.Done` | - | - |

Groups are changed with `messages.Admin`: see `raftmq.machine.catalog.consumer_groups` for the
commands. A group with attachments to many topics may be told in several pages, in each with some of
them.
"""

from .messages import _Wire


class ForgetGroup(_Wire, frozen=True):
    """Carry out a deletion in a partition group; answered when all that was committed there under
    the consumer group's name is forgotten. Safe to repeat: a group that was created since stays."""

    partition_group: int
    """The partition group; the request goes to its leader."""
    until: int
    """Index of the deletion, the result of `DeleteConsumerGroup`; all before it are carried out
    with it."""


class FindConsumerGroups(_Wire, frozen=True):
    """Ask the leader of the system group for consumer groups, linearizably."""

    consumer_group: str | None = None
    """The consumer group; None: all."""
    topic: str | None = None
    """Only groups that are attached to this topic, and of their attachments only this one; None:
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
    """Its number."""
    is_latest: bool
    """True: the group began at the end of the first `queues` queues, else with the first message
    that was kept."""
    queues: int
    """How many queues the topic had when the group began."""


class ConsumerGroupView(_Wire, frozen=True):
    """A consumer group."""

    name: str
    """Its name."""
    mode: str
    """A `raftmq.pop.policy.Mode`."""
    schedule_ms: list[int]
    """How long a message waits after its first failure, the second, …; the last one repeats."""
    attempts_max: int
    """A message that failed this many times is a dead letter."""
    invisible_ms: int
    """How long messages are a consumer's alone if it does not say."""
    order: str
    """A `raftmq.pop.policy.Order`."""
    is_blocking: bool
    """True: a message that failed for the last time blocks what comes after it."""
    version: int
    """Raft index of the catalog's record that gave it this policy."""
    attachments: list[AttachmentView]
    """By the topic's number."""


class FoundConsumerGroups(_Wire, frozen=True):
    """The answer to `FindConsumerGroups`."""

    groups: list[ConsumerGroupView]
    """By name."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
