"""The administrative calls: topics, consumer groups, nodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from raftmq.wire.messages import ClusterView

from .consumer import Start


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


class Admin:
    """Administrative calls. Made by `Client.admin`.

    Every call may be repeated safely; each takes `timeout` in seconds (None: the client's default)
    and raises `Unavailable` if no leader was found in time (nothing happened), `OutcomeUnknown` if
    a change was sent and not answered, `Rejected` with the reason. Cancelling a change leaves it
    done or not done.
    """

    async def create_topic(
        self, name: str, queues: int = 8, *, timeout: float | None = None
    ) -> TopicInfo:
        """Create a topic; done already if it exists with as many queues.

        Raises:
            Rejected: `TOPIC_EXISTS` with another number of queues, `BAD_NAME`, `BAD_ARGUMENT`.
        """
        raise NotImplementedError

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """All topics by name."""
        raise NotImplementedError

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """A topic's queues: who leads them, and what they hold.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        raise NotImplementedError

    async def alter_topic(
        self, name: str, queues: int, *, timeout: float | None = None
    ) -> TopicInfo:
        """Give a topic more queues. Keys may go to other queues from then on.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, or `BAD_ARGUMENT` for fewer queues than it has.
        """
        raise NotImplementedError

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic; nobody can reach its messages any more.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        raise NotImplementedError

    async def list_groups(
        self, *, topic: str | None = None, timeout: float | None = None
    ) -> list[ConsumerGroup]:
        """All consumer groups with committed offsets and lag, by name; of one topic, or of all."""
        raise NotImplementedError

    async def describe_group(self, name: str, *, timeout: float | None = None) -> ConsumerGroup:
        """One consumer group.

        Raises:
            Rejected: `UNKNOWN_GROUP`, it has committed nothing.
        """
        raise NotImplementedError

    async def reset_group(
        self,
        name: str,
        topic: str,
        *,
        to: Start,
        queues: Sequence[int] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[OffsetChange]:
        """Set the committed offsets of a consumer group on a topic; consumers that run do not see
        it until they start again.

        Args:
            name: the consumer group; it need not exist.
            topic: the topic.
            to: where it shall go on; an offset is cut to what the queue holds.
            queues: the queues to move; None: all.
            dry_run: change nothing and return what would be done.
            timeout: seconds; None: the client's default.
        """
        raise NotImplementedError

    async def find_offsets(
        self,
        topic: str,
        at: Start,
        *,
        queues: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Queue → offset for a time or an end; an offset is cut to what the queue holds."""
        raise NotImplementedError

    async def cluster(self, *, timeout: float | None = None) -> ClusterView:
        """Nodes, partition groups with their leaders, and all topics."""
        raise NotImplementedError

    async def status(self, node: int, *, timeout: float | None = None) -> dict[str, Any]:
        """A node's picture of itself; see `raftmq.broker.status`.

        Raises:
            Rejected: `UNKNOWN_NODE`.
            Unavailable: the node does not answer.
        """
        raise NotImplementedError

    async def transfer(
        self, partition_group: int, *, to: int = 0, timeout: float | None = None
    ) -> None:
        """Hand the leadership of a partition group to node `to`; 0: to any that is caught up."""
        raise NotImplementedError

    async def add_node(
        self, node: int, host: str, port: int, *, timeout: float | None = None
    ) -> None:
        """Make a node, running or to be started with `join`, a member of the cluster."""
        raise NotImplementedError

    async def remove_node(self, node: int, *, timeout: float | None = None) -> None:
        """Take a node out of the cluster."""
        raise NotImplementedError

    async def replace_node(
        self, node: int, host: str = "", port: int = 0, *, timeout: float | None = None
    ) -> None:
        """Let an empty data folder take the place of a node that lost its own."""
        raise NotImplementedError
