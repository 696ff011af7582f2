"""The administrative calls: topics, consumer groups; those about nodes are in `nodes`."""

from collections.abc import Sequence

from raftmq.client.arguments import typed
from raftmq.client.consume.membership import find_members
from raftmq.client.consume.offsets import find_offsets, queues_of
from raftmq.client.consume.start import Exactly, Start, start_of
from raftmq.client.routing.requests import (
    after,
    change_catalog,
    find_topic,
    read_table,
    seconds_left,
)
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.queue_numbers import QUEUE_MASK
from raftmq.wire.assignment import MemberView
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    ClusterView,
    TopicView,
)

from .consumer_groups import (
    GroupSettings,
    attach,
    delete_group,
    detach,
    find_groups,
    policy_of,
    put_group,
)
from .dead_letters import POPPED, Backlog, DeadLetter, change_dead, find_backlogs, find_dead
from .descriptions import (
    ConsumerGroup,
    OffsetChange,
    QueueDescription,
    TopicDescription,
    TopicInfo,
    find_standings,
)
from .logs import LogCalls
from .nodes import NodeCalls
from .resets import begin, go_on, make_like, where_is
from .subscriptions import Subscription, find_subscriptions, subscribe, unsubscribe


@typed()
class Admin(NodeCalls, LogCalls):
    """Administrative calls. Made by `Client.admin`.

    Every call may be repeated safely. Each takes `timeout`, seconds for the whole call (None: the
    client's default), and raises `Unavailable` if no leader was found in time (nothing happened),
    `OutcomeUnknown` if a change was sent and not answered, `Rejected` with the reason. Cancelling a
    change leaves it done or not done.
    """

    async def create_topic(
        self, name: str, queues: int = 8, *, beside: str = "", timeout: float | None = None
    ) -> TopicInfo:
        """Create a topic. Nothing changes if it exists with this number of queues.

        Args:
            name: 1 to 127 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
            queues: the number of queues, 1 to 65,536.
            beside: a topic; queue n of both is in one partition group. With equal numbers of
                queues, messages of one key are, too: messages popped there can be handed off to
                this topic.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `TOPIC_EXISTS` with another number of queues, or not beside that topic;
                `UNKNOWN_TOPIC` of that name, or it was deleted meanwhile; `BAD_NAME`,
                `BAD_ARGUMENT`.
        """
        left = seconds_left(self._router, timeout)
        await change_catalog(self._router, CreateTopic(name, queues, beside), left())
        return await self._changed(name, left())

    async def list_topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """All topics by name."""
        view = await self.cluster(timeout=timeout)
        return sorted(_info(topic) for topic in view.topics)

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """A topic's queues: their leaders, and the offsets that they hold.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        left = seconds_left(self._router, timeout)
        view = await self._topic(name, left())
        groups = queues_of(view)
        first = await find_offsets(self._router, groups, EARLIEST, left())
        queues = []
        for number, group in groups.items():
            known = self._router.groups.get(group)
            leader = known.leader if known is not None else 0
            found = first[number]
            queues.append(
                QueueDescription(number & QUEUE_MASK, group, leader, found.earliest, found.end)
            )
        return TopicDescription(view.name, view.id, queues)

    async def alter_topic(
        self, name: str, queues: int, *, timeout: float | None = None
    ) -> TopicInfo:
        """Give a topic more queues. Keys may go to other queues from then on.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, or `BAD_ARGUMENT` for fewer queues than it has.
        """
        left = seconds_left(self._router, timeout)
        number = (await self._topic(name, left())).id
        await change_catalog(self._router, AlterTopic(name, queues, number), left())
        return await self._changed(name, left())

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic; its messages can no longer be reached.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        left = seconds_left(self._router, timeout)
        number = (await self._topic(name, left())).id
        await change_catalog(self._router, DeleteTopic(name, number), left())
        self._router.topics.pop(name, None)

    async def list_groups(
        self, *, topic: str | None = None, timeout: float | None = None
    ) -> list[ConsumerGroup]:
        """All consumer groups with committed offsets and lag, by name; of one topic, or of all."""
        left = seconds_left(self._router, timeout)
        view = await self.cluster(timeout=left())
        groups: dict[int, int] = {}
        names: dict[int, str] = {}
        for found in view.topics:
            if topic is None or found.name == topic:
                groups |= queues_of(found)
                names[found.id] = found.name
        if topic is not None and not groups:
            raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic {topic!r}")
        return await find_standings(self._router, groups, names, None, left())

    async def describe_group(self, name: str, *, timeout: float | None = None) -> ConsumerGroup:
        """One consumer group.

        Raises:
            Rejected: `UNKNOWN_GROUP`, the group was not created, has committed nothing and
                subscribed to nothing.
        """
        left = seconds_left(self._router, timeout)
        view = await self.cluster(timeout=left())
        groups = {number: g for topic in view.topics for number, g in queues_of(topic).items()}
        names = {topic.id: topic.name for topic in view.topics}
        found = await find_standings(self._router, groups, names, name, left())
        subscriptions = tuple(await find_subscriptions(self._router, None, name, left()))
        settings = next(iter(await find_groups(self._router, name, None, left())), None)
        if not found and not subscriptions and settings is None:
            message = (
                f"consumer group {name!r} was not created, has committed nothing and subscribed "
                "to nothing"
            )
            raise Rejected(Reason.UNKNOWN_GROUP, message)
        offsets = found[0].offsets if found else []
        return ConsumerGroup(name, offsets, subscriptions, settings)

    async def create_consumer_group(
        self,
        name: str,
        mode: str = "pop",
        *,
        schedule: Sequence[float] | None = None,
        attempts_max: int | None = None,
        invisible: float | None = None,
        order: str = "key",
        is_blocking: bool = False,
        run: int | None = None,
        timeout: float | None = None,
    ) -> GroupSettings:
        """Create a consumer group, or change the settings of an existing one, but not its mode,
        order and run.

        A group need not be created: its first consumer creates it with the usual settings. Messages
        in hand or waiting keep their times.

        Args:
            name: the consumer group: 1 to 127 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
            mode: `pop`, `ordered`, `broadcast` or `pull`; it never changes.
            schedule: seconds that a message waits after its first failure, the second, …; the last
                one repeats. 1 to 64 of them, up to 7 days each, as `exponential` makes them; None:
                10 s up to 2 h, 16 steps.
            attempts_max: a message that failed this many times is a dead letter; None: 17.
            invisible: seconds for which messages are one consumer's alone unless it asks for
                another time, 1 s to 12 h; None: 30 s.
            order: for an ordered group: `key`s or the whole `queue`. It never changes.
            is_blocking: for an ordered group: a message that failed for the last time blocks the
                messages after it until it is redriven or purged.
            run: for a group ordered by key: how many messages of a key one lease may hold, 1 to
                65,536; None: 65,536 for a new group. It never changes.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `GROUP_MODE`, the group has another mode, order or run; `BAD_NAME`,
                `BAD_ARGUMENT`, or `TOO_LARGE`: there are too many groups.
        """
        left = seconds_left(self._router, timeout)
        policy = policy_of(schedule, attempts_max, invisible, order, is_blocking, run)
        await put_group(self._router, name, mode, policy, left())
        with after([name], "consumer group"):
            found = await find_groups(self._router, name, None, left())
        if not found:
            raise Rejected(Reason.UNKNOWN_GROUP, f"consumer group {name!r} was deleted meanwhile")
        return found[0]

    async def consumer_groups(
        self, *, name: str | None = None, topic: str | None = None, timeout: float | None = None
    ) -> list[GroupSettings]:
        """Settings of consumer groups, by name: of one group or all, of a topic or all.

        A group that only reads by offset may be missing: `list_groups` has those groups.
        """
        return await find_groups(self._router, name, topic, timeout)

    async def delete_consumer_group(
        self, name: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Forget a consumer group: its leases, committed offsets, dead letters and filters.

        Messages stay. A broadcast group takes its instances along; `group@instance` is one of them.
        Members must have left; with `force` they end by an error. The cluster does not know
        consumers that read by offset without being members: stop them first, as a commit begins the
        group again.

        Raises:
            Rejected: `UNKNOWN_GROUP`; `BAD_ARGUMENT`: the group has members.
            OutcomeUnknown: the group is deleted, but a partition group without a leader has yet to
                forget committed offsets, which happens by itself. A repeat is safe.
        """
        await delete_group(self._router, name, is_forced=force, timeout=timeout)

    async def attach(
        self,
        topic: str,
        group: str,
        *,
        mode: str = "pop",
        start: str = "earliest",
        timeout: float | None = None,
    ) -> int:
        """Let a consumer group take messages of a topic, as its first consumer does.

        Nothing changes if the group does so already. A group attached before the first messages
        come misses none of them, also if its consumers start later.

        Args:
            topic: the topic.
            group: the consumer group; it is created if it does not exist.
            mode: `pop`, `ordered`, `broadcast` or `pull`.
            start: where the group begins: `earliest` or `latest`.
            timeout: seconds; None: the client's default.

        Returns:
            The attachment's number.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `GROUP_MODE`, the group exists in another mode; `BAD_NAME`,
                `BAD_ARGUMENT`, or `TOO_LARGE`: there are too many groups or attachments.
        """
        left = seconds_left(self._router, timeout)
        if start not in ("earliest", "latest"):
            message = f"start is 'earliest' or 'latest', not {start!r}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        number = await attach(
            self._router, topic, group, mode, is_latest=start == "latest", timeout=left()
        )
        if mode in POPPED:
            with after([number], "attachment"):
                queues = queues_of(await self._topic(topic, left()))
                await begin(self._router, number, queues, [], left())
        return number

    async def detach(self, topic: str, group: str, *, timeout: float | None = None) -> bool:
        """Let a consumer group take no more messages of a topic; False: it took none before.

        Its leases and its dead letters of the topic are forgotten. Its filter stays.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        return await detach(self._router, topic, group, timeout) != 0

    async def backlogs(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> list[Backlog]:
        """The backlogs of groups that pop, by group, topic and queue: of one group or all.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        left = seconds_left(self._router, timeout)
        view = await self.cluster(timeout=left())
        if topic is not None and all(known.name != topic for known in view.topics):
            raise Rejected(Reason.UNKNOWN_TOPIC, f"there is no topic {topic!r}")
        groups = await find_groups(self._router, group, topic, left())
        return await find_backlogs(self._router, view.topics, groups, left())

    async def dead_letters(
        self, topic: str, group: str, *, limit: int | None = None, timeout: float | None = None
    ) -> list[DeadLetter]:
        """The dead letters of a consumer group that pops, by partition group and number; `limit`:
        about as many messages, None: all.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `UNKNOWN_GROUP`: there is no such group that pops, or it
                takes no messages of the topic.
        """
        left = seconds_left(self._router, timeout)
        view = await self._topic(topic, left())
        return await find_dead(self._router, view, group, limit, left())

    async def redrive(self, letters: Sequence[DeadLetter], *, timeout: float | None = None) -> int:
        """Hand the messages of dead letters out again as if for the first time; returns their
        number. For some messages of a letter give `letter.part(ids)`.

        Messages that left their letter meanwhile are passed over, so a repeat is safe.

        Raises:
            Rejected: `UNKNOWN_GROUP`: the group was detached or deleted.
            OutcomeUnknown: the time ran out after a part; the text names the partition groups that
                are done.
        """
        return await change_dead(self._router, letters, is_purge=False, timeout=timeout)

    async def purge(self, letters: Sequence[DeadLetter], *, timeout: float | None = None) -> int:
        """Discard the messages of dead letters: no consumer gets them. Returns their number.

        As with `redrive`, a part of a letter is possible, and a repeat is safe.

        Raises:
            As `redrive`.
        """
        return await change_dead(self._router, letters, is_purge=True, timeout=timeout)

    async def subscribe(
        self,
        topic: str,
        group: str,
        filter: str,  # noqa: A002  # what users call it
        *,
        timeout: float | None = None,
    ) -> None:
        """Set a consumer group's filter on a topic; running consumers follow at once.

        A first subscription holds for all messages that the group has not read yet, a changed one
        for messages stored after the change: see the page on filters.

        Args:
            topic: the topic.
            group: the consumer group; it need not exist before.
            filter: tags (`paid || shipped`) or SQL (`amount > 5`). Signs as in
                `amount == 5 && !vip` are written as SQL first: the cluster keeps tags and SQL.
            timeout: seconds; None: the client's default.

        Raises:
            FilterSyntaxError: the filter cannot be read; it is a `Rejected`.
            Rejected: `UNKNOWN_TOPIC`, `BAD_NAME`, or `TOO_LARGE`: there are too many subscriptions.
        """
        await subscribe(self._router, topic, group, filter, timeout)

    async def unsubscribe(self, topic: str, group: str, *, timeout: float | None = None) -> None:
        """Remove a consumer group's filter on a topic, for all messages that it has not read yet.

        Raises:
            Rejected: `UNKNOWN_TOPIC`.
        """
        await unsubscribe(self._router, topic, group, timeout)

    async def list_subscriptions(
        self, *, topic: str | None = None, group: str | None = None, timeout: float | None = None
    ) -> list[Subscription]:
        """Subscriptions of consumer groups: to one topic or all, of one group or all."""
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
        """Let a consumer group go on elsewhere in a topic.

        A group that pops, members of a group and instances of a broadcast group go on from the new
        place at once. Other running consumers do not see the reset until they start again. Messages
        of these queues in the hands of consumers that pop are fenced; dead letters before the new
        place stay, and those after it come again with all other messages there.

        Args:
            name: the consumer group; a group that does not pop need not exist. `group@instance` is
                an instance of a broadcast group.
            topic: the topic.
            to: the new place; an offset is limited to the offsets that the queue holds.
            queues: the queues to move; None: all.
            dry_run: change nothing and return the changes that the call would make.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `UNKNOWN_GROUP`: the group pops, but not this topic.
        """
        left = seconds_left(self._router, timeout)
        view = await self._topic(topic, left())
        groups = queues_of(view, queues)
        standing = await where_is(self._router, view, name, groups, left())
        places = await self._offsets_at(groups, to, left())
        if not dry_run:
            await go_on(self._router, topic, name, standing, groups, places, left())
        return [OffsetChange(n & QUEUE_MASK, standing.offsets.get(n), places[n]) for n in groups]

    async def clone_group(
        self,
        source: str,
        name: str,
        topic: str,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[OffsetChange]:
        """Let a consumer group go on at the place of another group on a topic.

        The place of a group that pops is the first message that was never handed out: its messages
        in hand, failed and dead stay its own.

        Args:
            source: the group whose place is copied, for queues where it has one.
            name: the group that gets the place. A missing group is created with the settings of
                `source`, if `source` pops. For a running group see `reset_group`.
            topic: the topic.
            dry_run: change nothing and return the changes that the call would make.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `UNKNOWN_TOPIC`; `UNKNOWN_GROUP`: `source` pops, but not this topic.
        """
        left = seconds_left(self._router, timeout)
        view = await self._topic(topic, left())
        groups, router = queues_of(view), self._router
        places = (await where_is(router, view, source, groups, left())).offsets
        groups = {number: groups[number] for number in sorted(places)}
        before = await where_is(router, view, name, groups, left(), must_take=False)
        if not dry_run and groups:
            await make_like(router, topic, source, name, left())
            with after([name], "consumer group"):
                now = await where_is(router, view, name, groups, left())
                await go_on(router, topic, name, now, groups, places, left())
        return [OffsetChange(n & QUEUE_MASK, before.offsets.get(n), places[n]) for n in groups]

    async def members(
        self, group: str | None = None, *, timeout: float | None = None
    ) -> list[MemberView]:
        """Members of a consumer group (`group@instance`: an instance), or of all groups, with their
        queues."""
        return await find_members(self._router, group, timeout)

    async def find_offsets(
        self,
        topic: str,
        at: Start,
        *,
        queues: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Queue → offset for a time or an end; an offset is limited to those the queue holds."""
        left = seconds_left(self._router, timeout)
        groups = queues_of(await self._topic(topic, left()), queues)
        found = await self._offsets_at(groups, at, left())
        return {number & QUEUE_MASK: offset for number, offset in found.items()}

    async def cluster(self, *, is_latest: bool = True, timeout: float | None = None) -> ClusterView:
        """Nodes, groups with leaders, topics; without `is_latest` as any one node knows them."""
        if is_latest:
            return await read_table(self._router, timeout=timeout)
        asking = self._router.ask_any_node()
        return await self._router.within(timeout, asking, "reading the routing table")

    # -- inside ----------------------------------------------------------------------------------

    async def _changed(self, name: str, timeout: float | None) -> TopicInfo:
        """The topic after its creation or change."""
        with after([name], "topic"):
            return _info(await self._topic(name, timeout))

    async def _topic(self, name: str, timeout: float | None) -> TopicView:
        return await find_topic(self._router, name, timeout)

    async def _offsets_at(
        self, groups: dict[int, int], at: Start, timeout: float | None
    ) -> dict[int, int]:
        where = start_of(at)
        if not isinstance(where, Exactly):
            found = await find_offsets(self._router, groups, where, timeout)
            return {number: reply.offset for number, reply in found.items()}
        found = await find_offsets(self._router, groups, LATEST, timeout)
        return {n: min(max(where.offset, found[n].earliest), found[n].end) for n in groups}


def _info(view: TopicView) -> TopicInfo:
    return TopicInfo(view.name, view.id, len(view.groups))
