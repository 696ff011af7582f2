"""Changes of members, topics and filters: a few at a time, and with a bound on members' queues.

A member that comes or goes has all queues of the topic dealt out again, by each node when the node
applies the record. A topic that gets more queues has that for each group with members, and a filter
is parsed.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from raftmq.broker.host import Host
from raftmq.broker.serve.answers import Answer, OpenRequest
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import Command, Once
from raftmq.machine.catalog.membership import (
    JoinGroup,
    LeaveGroup,
    RegrantQueues,
    ReleaseQueues,
)
from raftmq.machine.catalog.state import QUEUES_MAX
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.messages import ErrorReply

from . import pace

K = TypeVar("K", str, tuple[str, int])

PLACES_MAX = 4 * 1024 * 1024
"""Queues of all groups with members, each counted for each group, and for each instance of one that
broadcasts: 24 bytes in the catalog of each node."""
CREATED_QUEUES = 4
"""Queues that are created in the time in which one gets another owner."""
CHARACTER_WORK = 3
"""Queues that get another owner in the time in which a character of a filter is parsed."""
_PACED = (
    JoinGroup | LeaveGroup | ReleaseQueues | RegrantQueues | CreateTopic | AlterTopic | Subscribe
)


class WideChanges:
    """The changes of members, topics and filters that clients ask the catalog's leader for."""

    def __init__(self, node: Host, turns: pace.Pace) -> None:
        self._node = node
        self._pace = turns
        # Groups that get their first members by commands that are under way, by name and topic.
        self._new = Counter[tuple[str, int]]()
        # Queues that groups with members get by topics that grow, by commands under way.
        self._growth = 0
        # Names of topics that are created or grow by commands under way.
        self._changing = Counter[str]()

    def carry_out(
        self, command: Command, asked: OpenRequest, propose: Callable[[], Answer]
    ) -> Answer:
        """Propose a command now or in its turn; others than such changes at once."""
        change = command.change if isinstance(command, Once) else command
        if not isinstance(change, _PACED):
            return propose()
        begin = partial(self._begin, change, asked, propose)
        return self._pace.propose(asked, partial(self._work, change), begin)

    def _begin(self, command: Command, asked: OpenRequest, propose: Callable[[], Answer]) -> Answer:
        new, more = self._new_group(command), self._more_places(command)
        if (new is not None or more) and (refusal := self._why_no_place(new, more)) is not None:
            return refusal
        changed = command.name if isinstance(command, CreateTopic | AlterTopic) else None
        self._count(new, more, changed, 1)
        asked.when_answered(lambda _: self._count(new, more, changed, -1))
        return propose()

    def _count(self, new: tuple[str, int] | None, more: int, changed: str | None, by: int) -> None:
        """A command is under way (`by` is 1), or no longer (-1)."""
        self._growth += by * more
        if new is not None:
            _add(self._new, new, by)
        if changed is not None:
            _add(self._changing, changed, by)

    def _work(self, command: Command) -> int:
        """Queues and members that a command goes through."""
        catalog = self._node.catalog
        match command:
            case JoinGroup(topic=name) | AlterTopic(name=name) if name in self._changing:
                # How many queues the topic has is known once that is done: not before.
                return pace.WORK_MAX
            case Subscribe(expression=text):
                return CHARACTER_WORK * len(text)
            case CreateTopic(queues=queues):
                return max(1, queues // CREATED_QUEUES)
            case AlterTopic(name=name, queues=queues):
                topic = catalog.topics.get(name)
                of_topic = [number for _, number in catalog.memberships.assignments]
                groups = of_topic.count(topic.id) if topic is not None else 0
                return max(1, queues // CREATED_QUEUES) + max(queues, 0) * groups
            case JoinGroup():
                topic, name = catalog.topics.get(command.topic), command.offsets_name
                known = catalog.memberships.assignments.get((name, topic.id if topic else 0))
                members = len(known.members) if known is not None else 0
                return 1 + members + (len(topic.groups) if topic is not None else 0)
            case RegrantQueues():
                topic = catalog.topics.get(command.topic)
                return 1 + (len(topic.groups) if topic is not None else 0)
            case LeaveGroup(member=member) | ReleaseQueues(member=member):
                of = catalog.memberships.of_member.get(member)
                return 1 if of is None else 1 + len(of.owners) + len(of.members)
        return 0

    def _new_group(self, command: Command) -> tuple[str, int] | None:
        """The name and topic of a group that gets its first member; None: there is no such."""
        catalog = self._node.catalog
        topic = catalog.topics.get(command.topic) if isinstance(command, JoinGroup) else None
        if topic is None:
            return None
        assert isinstance(command, JoinGroup)
        key = command.offsets_name, topic.id
        return None if key in catalog.memberships.assignments else key

    def _more_places(self, command: Command) -> int:
        """Queues that groups with members get, as their topic gets more."""
        if not isinstance(command, AlterTopic):
            return 0
        catalog = self._node.catalog
        topic = catalog.topics.get(command.name)
        if topic is None or not len(topic.groups) < command.queues <= QUEUES_MAX:
            return 0
        of_topic = [number for _, number in (*catalog.memberships.assignments, *self._new)]
        return (command.queues - len(topic.groups)) * of_topic.count(topic.id)

    def _why_no_place(self, new: tuple[str, int] | None, more: int) -> ErrorReply | None:
        """The refusal of a group's first member, or of a topic's growth, if the catalog has no
        memory for the queues."""
        catalog = self._node.catalog
        places = sum([len(each.owners) for each in catalog.memberships.assignments.values()])
        places += self._growth + more
        for _, number in dict.fromkeys([*self._new, *([] if new is None else [new])]):
            found = catalog.topic_of(number << QUEUE_BITS)
            places += 0 if found is None else len(found.groups)
        if places <= PLACES_MAX:
            return None
        message = (
            f"groups with members have {PLACES_MAX} queues together at the most: let fewer groups, "
            "or instances, read topics of many queues"
        )
        return ErrorReply(Reason.TOO_LARGE.value, message)


def _add(counts: Counter[K], key: K, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]
