"""The administrative calls: topics, consumer groups, nodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.filters import compile as compile_filter
from raftmq.pop.catalog import AlterTopic, Command, CreateTopic, DeleteTopic
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    AdminDone,
    ChangeMember,
    ClusterView,
    FrameKind,
    NodeStatus,
    Status,
    TopicView,
    Transfer,
)
from raftmq.wire.messages import (
    Admin as AdminMessage,
)

from .connection import Connection, Lost
from .consumer import Exactly, Start, start_of
from .message import QUEUE_BITS
from .offsets import by_partition, commit_offsets, committed_of, committed_offsets, find_offsets
from .refusals import exception_of, refusal_of
from .router import SYSTEM_GROUP, Router
from .subscriptions import Subscription, find_subscriptions, subscribe, unsubscribe

_MASK = (1 << QUEUE_BITS) - 1


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

    def __init__(self, router: Router) -> None:
        self._router = router

    async def create_topic(
        self, name: str, queues: int = 8, *, timeout: float | None = None
    ) -> TopicInfo:
        """Create a topic; done already if it exists with as many queues.

        Raises:
            Rejected: `TOPIC_EXISTS` with another number of queues, `BAD_NAME`, `BAD_ARGUMENT`.
        """
        await self._change(CreateTopic(name, queues), timeout)
        return _info(await self._topic(name, timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """All topics by name."""
        view = await self.cluster(timeout=timeout)
        return sorted(_info(topic) for topic in view.topics)

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """A topic's queues: who leads them, and what they hold.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        view = await self._topic(name, timeout)
        groups = _queues_of(view)
        first = await find_offsets(self._router, groups, EARLIEST, timeout)
        queues = []
        for number, group in groups.items():
            known = self._router.groups.get(group)
            leader = known.leader if known is not None else 0
            found = first[number]
            queues.append(
                QueueDescription(number & _MASK, group, leader, found.earliest, found.end)
            )
        return TopicDescription(view.name, view.id, queues)

    async def alter_topic(
        self, name: str, queues: int, *, timeout: float | None = None
    ) -> TopicInfo:
        """Give a topic more queues. Keys may go to other queues from then on.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, or `BAD_ARGUMENT` for fewer queues than it has.
        """
        await self._change(AlterTopic(name, queues), timeout)
        return _info(await self._topic(name, timeout))

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic; nobody can reach its messages any more.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        await self._change(DeleteTopic(name), timeout)
        self._router.topics.pop(name, None)

    async def list_groups(
        self, *, topic: str | None = None, timeout: float | None = None
    ) -> list[ConsumerGroup]:
        """All consumer groups with committed offsets and lag, by name; of one topic, or of all."""
        view = await self.cluster(timeout=timeout)
        groups: dict[int, int] = {}
        names: dict[int, str] = {}
        for found in view.topics:
            if topic is None or found.name == topic:
                groups |= _queues_of(found)
                names[found.id] = found.name
        if topic is not None and not groups:
            raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic {topic!r}")
        return await self._groups_on(groups, names, None, timeout)

    async def describe_group(self, name: str, *, timeout: float | None = None) -> ConsumerGroup:
        """One consumer group.

        Raises:
            Rejected: `UNKNOWN_GROUP`, it has committed nothing and subscribed to nothing.
        """
        view = await self.cluster(timeout=timeout)
        groups = {number: g for topic in view.topics for number, g in _queues_of(topic).items()}
        names = {topic.id: topic.name for topic in view.topics}
        found = await self._groups_on(groups, names, name, timeout)
        subscriptions = tuple(await find_subscriptions(self._router, None, name, timeout))
        if not found and not subscriptions:
            message = f"consumer group {name!r} has committed nothing and subscribed to nothing"
            raise Rejected(Reason.UNKNOWN_GROUP, message)
        offsets = found[0].offsets if found else []
        return ConsumerGroup(name, offsets, subscriptions)

    async def subscribe(
        self,
        topic: str,
        group: str,
        filter: str,  # noqa: A002  # what users call it
        *,
        timeout: float | None = None,
    ) -> None:
        """Say what a consumer group wants of a topic; consumers that run follow at once.

        A first subscription holds for all that the group has not read yet, a changed one for
        messages that are stored after it: see the page on filters.

        Args:
            topic: the topic.
            group: the consumer group; it need not have read anything.
            filter: tags (`paid || shipped`) or SQL (`amount > 5`).
            timeout: seconds; None: the client's default.

        Raises:
            FilterSyntaxError: the filter cannot be read; it is a `Rejected`.
            Rejected: `UNKNOWN_TOPIC`, `BAD_NAME`, or `TOO_LARGE`: there are too many.
        """
        compile_filter(filter)
        await subscribe(self._router, topic, group, filter, timeout)

    async def unsubscribe(self, topic: str, group: str, *, timeout: float | None = None) -> None:
        """A consumer group wants everything of a topic that it has not read yet.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        await unsubscribe(self._router, topic, group, timeout)

    async def list_subscriptions(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> list[Subscription]:
        """What consumer groups want: of one topic or of all, one of them or all."""
        return await find_subscriptions(self._router, topic, group, timeout)

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
        view = await self._topic(topic, timeout)
        groups = _queues_of(view, queues)
        before = await committed_offsets(self._router, groups, name, timeout)
        after = await self._offsets_at(groups, to, timeout)
        if not dry_run:
            for group, numbers in by_partition(groups).items():
                offsets = {number: after[number] for number in numbers}
                await commit_offsets(self._router, group, name, offsets, timeout)
        return [OffsetChange(n & _MASK, before.get(n), after[n]) for n in groups]

    async def find_offsets(
        self,
        topic: str,
        at: Start,
        *,
        queues: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Queue → offset for a time or an end; an offset is cut to what the queue holds."""
        groups = _queues_of(await self._topic(topic, timeout), queues)
        found = await self._offsets_at(groups, at, timeout)
        return {number & _MASK: offset for number, offset in found.items()}

    async def cluster(self, *, timeout: float | None = None) -> ClusterView:
        """Nodes, partition groups with their leaders, and all topics."""
        asking = self._router.ask_system_leader(None)
        return await self._router.within(timeout, asking, "reading the routing table")

    async def status(self, node: int, *, timeout: float | None = None) -> dict[str, Any]:
        """A node's picture of itself; see `raftmq.broker.status`.

        Raises:
            Rejected: `UNKNOWN_NODE`.
            Unavailable: the node does not answer.
        """
        asking = self._status(node)
        return await self._router.within(timeout, asking, f"the status of node {node}")

    async def transfer(
        self, partition_group: int, *, to: int = 0, timeout: float | None = None
    ) -> None:
        """Hand the leadership of a partition group to node `to`; 0: to any that is caught up."""
        message = Transfer(partition_group, to)
        await self._router.call_leader(
            partition_group, FrameKind.TRANSFER, message, timeout=timeout, is_change=True
        )

    async def add_node(
        self, node: int, host: str, port: int, *, timeout: float | None = None
    ) -> None:
        """Make a node, running or to be started with `join`, a member of the cluster."""
        await self._member(ChangeMember("add", node, host, port), timeout)

    async def remove_node(self, node: int, *, timeout: float | None = None) -> None:
        """Take a node out of the cluster."""
        await self._member(ChangeMember("remove", node), timeout)

    async def replace_node(
        self, node: int, new: int, host: str, port: int, *, timeout: float | None = None
    ) -> None:
        """Let a new node, with a number that was never used, take over all that a node carries.

        The old one may be dead. On return the groups begin to move; the old node is forgotten when
        none counts on it any more.
        """
        await self._member(ChangeMember("replace", node, host, port, new), timeout)

    # -- inside ----------------------------------------------------------------------------------

    async def _change(self, command: Command, timeout: float | None) -> None:
        message = AdminMessage(msgspec.to_builtins(command))
        frame = await self._router.call_leader(
            SYSTEM_GROUP, FrameKind.ADMIN, message, timeout=timeout, is_change=True
        )
        unpack(AdminDone, frame.header)

    async def _member(self, change: ChangeMember, timeout: float | None) -> None:
        await self._router.call_leader(
            SYSTEM_GROUP, FrameKind.MEMBER, change, timeout=timeout, is_change=True
        )

    async def _topic(self, name: str, timeout: float | None) -> TopicView:
        looking = self._router.topic(name, is_fresh=True)
        return await self._router.within(timeout, looking, f"looking up topic {name!r}")

    async def _status(self, node: int) -> dict[str, Any]:
        connection = await self._router.node(node)
        status = await _status_page(connection, Status())
        while "next" in status:
            page = await _status_page(connection, Status(status.pop("next")))
            status |= page | {"groups": status["groups"] + page["groups"]}
        return status

    async def _offsets_at(
        self, groups: dict[int, int], at: Start, timeout: float | None
    ) -> dict[int, int]:
        where = start_of(at)
        if not isinstance(where, Exactly):
            found = await find_offsets(self._router, groups, where, timeout)
            return {number: reply.offset for number, reply in found.items()}
        found = await find_offsets(self._router, groups, LATEST, timeout)
        return {n: min(max(where.offset, found[n].earliest), found[n].end) for n in groups}

    async def _groups_on(
        self, groups: dict[int, int], names: dict[int, str], only: str | None, timeout: float | None
    ) -> list[ConsumerGroup]:
        """Consumer groups with what they committed on these queues."""
        ends = await find_offsets(self._router, groups, LATEST, timeout) if groups else {}
        by_name: dict[str, list[GroupOffset]] = {}
        for partition_group in by_partition(groups):
            for entry in await committed_of(self._router, partition_group, only, timeout):
                end = ends.get(entry.queue)
                if end is not None:
                    offset = GroupOffset(
                        names[entry.queue >> QUEUE_BITS],
                        entry.queue & _MASK,
                        entry.offset,
                        end.earliest,
                        end.end,
                        entry.timestamp,
                        entry.passed,
                    )
                    by_name.setdefault(entry.consumer_group, []).append(offset)
        return [ConsumerGroup(name, sorted(by_name[name])) for name in sorted(by_name)]


async def _status_page(connection: Connection, question: Status) -> dict[str, Any]:
    answer = await connection.call(FrameKind.STATUS, pack(question))
    if isinstance(answer, Lost):
        raise Unavailable(answer.why)
    refusal = refusal_of(answer)
    if refusal is not None:
        raise exception_of(refusal)
    return unpack(NodeStatus, answer.header).status


def _info(view: TopicView) -> TopicInfo:
    return TopicInfo(view.name, view.id, len(view.groups))


def _queues_of(view: TopicView, queues: Sequence[int] | None = None) -> dict[int, int]:
    """Queue number → partition group, of all queues or of those named."""
    for queue in queues or ():
        if not 0 <= queue < len(view.groups):
            message = f"topic {view.name!r} has queues 0 to {len(view.groups) - 1}, no {queue}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
    wanted = range(len(view.groups)) if queues is None else queues
    return {view.id << QUEUE_BITS | queue: view.groups[queue] for queue in wanted}
