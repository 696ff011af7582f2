"""Results of administrative calls: topics, queues, consumer groups."""

from collections.abc import Iterable
from typing import NamedTuple

from raftmq.client.consume.offsets import by_partition, committed_of, find_offsets
from raftmq.client.routing.requests import seconds_left
from raftmq.client.routing.router import Router
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.wire.assignment import CommittedOffset
from raftmq.wire.messages import LATEST, FoundOffset

from .consumer_groups import GroupSettings
from .subscriptions import Subscription


class TopicInfo(NamedTuple):
    """A topic."""

    name: str
    """Unique among the topics that exist."""
    id: int
    """The topic's number; never used again."""
    queues: int
    """Number of queues."""


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
    """The topic's name."""
    id: int
    """The topic's number; never used again."""
    queues: list[QueueDescription]
    """Its queues, in order."""


class GroupOffset(NamedTuple):
    """A consumer group's place in one queue."""

    topic: str
    """Name of the topic."""
    queue: int
    """The queue within the topic, from 0."""
    committed: int | None
    """The next message to read; None: the group has committed nothing in this queue."""
    earliest: int
    """The first kept offset."""
    end: int
    """The offset after the last message."""
    timestamp: int
    """When the offset was committed, milliseconds since 1970; 0: never."""
    passed: int = 0
    """Messages that did not match the group's filter and were passed over, counted by the queue's
    leader since it started; messages read twice count twice."""

    @property
    def lag(self) -> int | None:
        """Messages that are kept and not read. None: some are kept and nothing was committed, so
        each consumer begins at its own `start`."""
        if self.committed is None:
            return 0 if self.end <= self.earliest else None
        return max(0, self.end - max(self.committed, self.earliest))


class ConsumerGroup(NamedTuple):
    """A consumer group and its committed offsets."""

    name: str
    """The name; `group@instance` for an instance of a broadcast group."""
    offsets: list[GroupOffset]
    """By topic and queue: all queues of the topics in which it has committed an offset."""
    subscriptions: tuple[Subscription, ...] = ()
    """The filters, by topic; a topic without an entry has none."""
    settings: GroupSettings | None = None
    """The group's settings; None: it only reads by offset, or the call does not ask for them."""

    @property
    def lag(self) -> int | None:
        """The sum over its queues; None: the lag of a queue is not known."""
        return sum_of(offset.lag for offset in self.offsets)


class OffsetChange(NamedTuple):
    """One line of a `reset_group`."""

    queue: int
    """The queue within the topic, from 0."""
    before: int | None
    """The committed offset; None: there was none."""
    after: int
    """The offset after the reset."""


def sum_of(lags: Iterable[int | None]) -> int | None:
    """The sum; None: one of the lags is not known.

    >>> sum_of([3, 4]), sum_of([]), sum_of([3, None])
    (7, 0, None)
    """
    total = 0
    for lag in lags:
        if lag is None:
            return None
        total += lag
    return total


async def find_standings(
    router: Router,
    groups: dict[int, int],
    names: dict[int, str],
    only: str | None,
    timeout: float | None,
) -> list[ConsumerGroup]:
    """Consumer groups with their committed offsets in these queues (`groups`: queue number →
    partition group; `names`: topic number → name). `only`: one group; None: all."""
    left = seconds_left(router, timeout)
    ends = await find_offsets(router, groups, LATEST, left()) if groups else {}
    by_name: dict[str, dict[int, CommittedOffset]] = {}
    for partition_group in by_partition(groups):
        for entry in await committed_of(router, partition_group, only, left()):
            if entry.queue in ends:
                by_name.setdefault(entry.consumer_group, {})[entry.queue] = entry
    of_topic: dict[int, list[int]] = {}
    for number in sorted(ends):
        of_topic.setdefault(number >> QUEUE_BITS, []).append(number)
    found = []
    for name, committed in sorted(by_name.items()):
        topics = {number >> QUEUE_BITS for number in committed}
        offsets = [
            _group_offset(names[topic], ends[number], committed.get(number))
            for topic in topics
            for number in of_topic[topic]
        ]
        found.append(ConsumerGroup(name, sorted(offsets, key=lambda each: each[:2])))
    return found


def _group_offset(topic: str, end: FoundOffset, entry: CommittedOffset | None) -> GroupOffset:
    """A group's place in a queue; `entry`: its committed offset there, None: nothing."""
    queue = end.queue & QUEUE_MASK
    if entry is None:
        return GroupOffset(topic, queue, None, end.earliest, end.end, 0)
    return GroupOffset(
        topic, queue, entry.offset, end.earliest, end.end, entry.timestamp, entry.passed
    )
