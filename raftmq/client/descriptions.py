"""What administrative calls return: topics, queues, consumer groups."""

from typing import NamedTuple

from raftmq.wire.messages import LATEST

from .consumer_groups import GroupSettings
from .message import QUEUE_BITS
from .offsets import by_partition, committed_of, find_offsets, seconds_left
from .router import Router
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


async def find_standings(
    router: Router,
    groups: dict[int, int],
    names: dict[int, str],
    only: str | None,
    timeout: float | None,
) -> list[ConsumerGroup]:
    """Consumer groups with what they committed on these queues (number → partition group), of the
    topics of these names, by number; `only` one group, None: all."""
    left = seconds_left(router, timeout)
    ends = await find_offsets(router, groups, LATEST, left()) if groups else {}
    by_name: dict[str, list[GroupOffset]] = {}
    for partition_group in by_partition(groups):
        for entry in await committed_of(router, partition_group, only, left()):
            end = ends.get(entry.queue)
            if end is not None:
                offset = GroupOffset(
                    names[entry.queue >> QUEUE_BITS],
                    entry.queue & ((1 << QUEUE_BITS) - 1),
                    entry.offset,
                    end.earliest,
                    end.end,
                    entry.timestamp,
                    entry.passed,
                )
                by_name.setdefault(entry.consumer_group, []).append(offset)
    return [ConsumerGroup(name, sorted(by_name[name])) for name in sorted(by_name)]
