"""Quotas of messages in flight: how many a consumer may ask for, and consumers that must wait.

    POP ──> the room that all quotas leave ──> an Ask for that, or for less if the POP wants less
                      │ none
                      └──> it waits until there is room, or the wait of the POP is over

Messages are in flight while they are in a consumer's hand, and when its credit lets it have them
without asking again: else consumers that wait for messages would get more together than the bound.
A user's are those of its consumers, also of connections that are gone; a topic's are those of all
its consumer groups. A node counts the data groups that it leads.

Credit that stands may become messages in hand before a new Ask is applied, so it counts in full
until it ends, and no POP renews it beyond the quota. While others wait for room, one that asks gets
an equal share of what is left.

Invariants:
- No Ask makes the messages in flight of a user or topic more than its quota.
- A count is at most `COUNT_SECONDS` old. Asks since then are added, settlements are not subtracted.

Left out: a user's consumer counts from its first POP on that this node gets under a quota. Before,
messages in its hand do not count, after a change of the leader or of the quota. And a POP that
waits for less than `COUNT_SECONDS` may be answered without messages though others have just settled
theirs.

Sources: RabbitMQ's prefetch count; Amazon SQS's bound on messages in flight.
"""

from collections import Counter, OrderedDict
from itertools import islice
from math import ceil, inf
from typing import NamedTuple, TypeVar

import trio

from raftmq.broker.host import Host
from raftmq.broker.serve.connection import Connection
from raftmq.machine.catalog.quotas import Subject, SubjectKind
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import PopGroups

from .consumers import Key

COUNT_SECONDS = 0.05
"""The longest that a count is used, and the time from one look for room to the next."""
PLACE_SECONDS = 1.0
"""A consumer that was answered without messages keeps its place among those that wait for this
time: else one that waits for short times would always come last."""
USERS_MAX = 1000
"""Users from which on those whose consumers have no messages are forgotten."""
LOOK_MAX = 256
"""Consumers that one look for room goes through; the next look begins with the others."""


K = TypeVar("K", str, int, Subject)


class FlightRoom(NamedTuple):
    """How many messages a consumer may have credit for."""

    messages: float
    """`inf`: without a bound."""
    subject: Subject | None = None
    """Whose quota leaves the least; None: no quota holds."""


class _Asked(NamedTuple):
    """An Ask that is on its way through the log."""

    topic: int
    user: str
    messages: int


class InFlight:
    """The messages in flight of those who have a quota of them."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self.waiting = WaitingPops()
        """Those for whom there was no room."""
        # By consumer and correlation of the POP; and the messages of these Asks together.
        self._asked: dict[tuple[Key, int], _Asked] = {}
        self._asked_by_user = Counter[str]()
        self._asked_by_topic = Counter[int]()
        # Users that have a quota of them → their consumers that may have messages.
        self._of_user: dict[str, dict[Key, None]] = {}
        self._users_max = USERS_MAX
        self._counts: dict[Subject, int] = {}
        self._counted_at = -inf

    def room(self, key: Key, connection: Connection) -> FlightRoom:
        """The room that all quotas leave to a consumer."""
        topic = self._topic(key)
        bounds = self._node.quotas.in_flight_bounds(connection, topic)
        if not bounds:
            return FlightRoom(inf)
        rooms = list[FlightRoom]()
        for subject, bound in bounds:
            if subject.kind is SubjectKind.USER:
                self._note_consumer(subject, key)
            left = max(bound - self._count(subject, topic), 0)
            others = self.waiting.count_others(subject, key)
            rooms.append(FlightRoom(ceil(left / (others + 1)), subject))
        return min(rooms, key=lambda room: room.messages)

    def note_ask(self, key: Key, connection: Connection, correlation: int, count: int) -> None:
        """An Ask of a consumer, for a POP of this correlation, is about to be proposed."""
        topic = self._topic(key)
        bounds = self._node.quotas.in_flight_bounds(connection, topic)
        if not bounds:
            # Perhaps the user had a quota before.
            self._of_user.pop(connection.user, None)
            return
        for subject, _ in bounds:
            self._counts[subject] = self._count(subject, topic) + count
            if subject.kind is SubjectKind.USER:
                # A count before has forgotten it, if it had no messages.
                self._of_user.setdefault(subject.name, {})[key] = None
        self.drop_ask(key, correlation)
        self._asked[key, correlation] = _Asked(topic, connection.user, count)
        self._asked_by_user[connection.user] += count
        self._asked_by_topic[topic] += count

    def drop_ask(self, key: Key, correlation: int) -> None:
        """An Ask of a consumer was applied, or its fate is not known."""
        asked = self._asked.pop((key, correlation), None)
        if asked is not None:
            _subtract(self._asked_by_user, asked.user, asked.messages)
            _subtract(self._asked_by_topic, asked.topic, asked.messages)

    def _note_consumer(self, user: Subject, key: Key) -> None:
        """A consumer of a user may have messages, perhaps since this node did not lead."""
        keys = self._of_user.get(user.name)
        if keys is not None and key in keys:
            return
        if keys is None and len(self._of_user) >= self._users_max:
            for name in list(self._of_user):
                self._count_user(name)
            self._users_max = max(USERS_MAX, 2 * len(self._of_user))
        self._of_user.setdefault(user.name, {})[key] = None
        if user in self._counts:
            self._counts[user] += sum(self._in_flight_to(key))

    def _topic(self, key: Key) -> int:
        attachment = self._node.catalog.consumer_groups.attachments.get(key.number)
        return -1 if attachment is None else attachment.topic_id

    def _in_flight_to(self, key: Key) -> tuple[int, int]:
        """The messages in the hand of a consumer, and its credit."""
        led = self._groups_led(key.partition_group)
        if led is None or (attached := led[0].attached.get(key.number)) is None:
            return 0, 0
        return attached.group.in_flight_to(key.consumer, led[1])

    def _groups_led(self, partition_group: int) -> tuple[PopGroups, int] | None:
        """The consumer groups of a data group that this node leads, and its time."""
        group = self._node.group(partition_group)
        if group is None or not group.is_leader or not isinstance(group.machine, PartitionMachine):
            return None
        return group.machine.pop_groups, group.now_ms()

    def _count(self, subject: Subject, topic: int) -> int:
        now = trio.current_time()
        if now >= self._counted_at + COUNT_SECONDS:
            self._counts.clear()
            self._counted_at = now
        count = self._counts.get(subject)
        if count is None:
            is_user = subject.kind is SubjectKind.USER
            count = self._count_user(subject.name) if is_user else self._count_topic(topic)
            self._counts[subject] = count
        return count

    def _count_user(self, user: str) -> int:
        """Count, and forget the consumers without messages, unless the user's Asks are under
        way."""
        total = asked = self._asked_by_user[user]
        keys = self._of_user.get(user, {})
        for key in list(keys):
            count = sum(self._in_flight_to(key))
            if not count and not asked:
                del keys[key]
            total += count
        if not keys:
            self._of_user.pop(user, None)
        return total

    def _count_topic(self, topic: int) -> int:
        total = self._asked_by_topic[topic]
        for number in self._node.groups:
            if (led := self._groups_led(number)) is not None:
                groups, now = led
                total += groups.in_flight(topic, now)
        return total


class WaitingPop(NamedTuple):
    """The POP of a consumer, which waits for room."""

    messages: int
    """How many it wants."""
    since: float
    """When it came."""
    subject: Subject
    """Whose quota is used up."""


class WaitingPops:
    """The consumers whose POP waits for room, longest first."""

    def __init__(self) -> None:
        # Consumer → until when its place is kept.
        self._places: OrderedDict[Key, float] = OrderedDict()
        self._pops: dict[Key, WaitingPop] = {}
        self._counts = Counter[Subject]()

    def __len__(self) -> int:
        """How many have a place."""
        return len(self._places)

    def put(self, key: Key, pop: WaitingPop) -> None:
        """The POP of a consumer waits from now on, at the consumer's place if it has one."""
        self._end(key)
        self._places[key], self._pops[key] = inf, pop
        self._counts[pop.subject] += 1

    def take(self, key: Key, *, keeps_place: bool = False) -> WaitingPop | None:
        """The POP of a consumer waits no longer; None: it did not."""
        pop = self._end(key)
        if pop is not None and keeps_place:
            self._places[key] = trio.current_time() + PLACE_SECONDS
        elif not keeps_place:
            self._places.pop(key, None)
        return pop

    def _end(self, key: Key) -> WaitingPop | None:
        pop = self._pops.pop(key, None)
        if pop is not None:
            _subtract(self._counts, pop.subject, 1)
        return pop

    def count_others(self, subject: Subject, key: Key) -> int:
        """How many consumers but this one wait for room in the quota of a subject."""
        pop = self._pops.get(key)
        return self._counts[subject] - (pop is not None and pop.subject == subject)

    def look(self) -> list[tuple[Key, WaitingPop]]:
        """Those to look at now. They have their next turn after all others."""
        looked: list[tuple[Key, WaitingPop]] = []
        now = trio.current_time()
        for key in list(islice(self._places, LOOK_MAX)):
            if self._places[key] <= now:
                del self._places[key]
            else:
                self._places.move_to_end(key)
                looked += [(key, self._pops[key])] if key in self._pops else []
        return looked


def _subtract(counts: Counter[K], key: K, count: int) -> None:
    counts[key] -= count
    assert counts[key] >= 0, "more is taken away than was counted"
    if not counts[key]:
        del counts[key]
