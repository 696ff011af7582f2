"""What administrative calls return: topics, queues, consumer groups."""

from typing import NamedTuple

from .consumer_groups import GroupSettings
from .subscriptions import Subscription


class TopicInfo(NamedTuple):
    """A topic."""

    name: str
    """Its name."""
    id: int
    """Its number; never used again."""
    queues: int
    """How many queues it has."""


class QueueDescription(NamedTuple):
    """One queue of a topic."""

    queue: int
    """The queue within the topic, from 0."""
    partition_group: int
    """The partition group that carries it."""
    leader: int
    """The node that leads the group; 0: none known."""
    earliest: int
    """The first kept offset."""
    end: int
    """The offset after the last message; `end - earliest` messages are kept."""


class TopicDescription(NamedTuple):
    """A topic and its queues."""

    name: str
    """Its name."""
    id: int
    """Its number."""
    queues: list[QueueDescription]
    """Its queues, in order."""


class GroupOffset(NamedTuple):
    """How far a consumer group has read one queue."""

    topic: str
    """The topic."""
    queue: int
    """The queue within the topic, from 0."""
    committed: int
    """The next message to read."""
    earliest: int
    """The first kept offset."""
    end: int
    """The offset after the last message."""
    timestamp: int
    """When it was committed, milliseconds since 1970."""
    passed: int = 0
    """Messages that do not match the group's filter and were passed over when it read the queue, as
    its leader counted since it was started; what was read twice counts twice."""

    @property
    def lag(self) -> int:
        """Messages that are kept and not read."""
        return max(0, self.end - max(self.committed, self.earliest))


class ConsumerGroup(NamedTuple):
    """A consumer group and its committed offsets."""

    name: str
    """Its name."""
    offsets: list[GroupOffset]
    """One entry for each queue with a committed offset, by topic and queue."""
    subscriptions: tuple[Subscription, ...] = ()
    """What it wants, by topic; of a topic without an entry everything."""
    settings: GroupSettings | None = None
    """How it is served; None: it only reads by offset, or was not asked for."""

    @property
    def lag(self) -> int:
        """The sum over its queues."""
        return sum(offset.lag for offset in self.offsets)


class OffsetChange(NamedTuple):
    """One line of a `reset_group`."""

    queue: int
    """The queue within the topic, from 0."""
    before: int | None
    """The committed offset; None: there was none."""
    after: int
    """What it becomes."""
