"""Quotas of messages in flight: how many a consumer may ask for, and consumers that must wait.

    POP ──> the room that all quotas leave ──> an Ask for that, or for less if the POP wants less
                      │ none
                      └──> it waits until there is room, or the wait of the POP is over

Messages are in flight while they are in a consumer's hand, and when its credit lets it have them
without asking again: else consumers that wait for messages would get more together than the bound.
The messages in flight of a user are those of its consumers, including consumers whose connection is
gone. Those of a topic are the messages of all its consumer groups. A node counts the data groups
that it leads.

Credit that stands may become messages in hand before a new Ask is applied, so it counts in full
until it ends, and no POP renews it beyond the quota. While others wait for room, one that asks gets
an equal share of what is left.

A count looks at all consumers, so it is kept, and each Ask adds to it. What leaves the hands of
consumers is seen by the next count. If a count leaves a POP less than it wants, a new one is made,
so a consumer that settles all and asks at once has its room. Two cases go by the kept count: others
wait for room, who would come last if the one that asks always saw it first; and counts take more of
the loop's time than `RECOUNT_TIMES` allows.

A user's consumers are those that came on its connections, as no lease tells whose it is. When the
user asks first under a quota, or under a changed one, all consumers on its open connections count
from then on; a count forgets those without messages.

Invariants:
- No Ask makes the messages in flight of a user or topic more than its quota. A leader lets in none
  before it has applied all that earlier leaders let in.
- A count is at most `COUNT_SECONDS` old, or `RECOUNT_TIMES` times the time that it took, and never
  less than what is in flight.

Left out: messages in the hand of a user's consumer that this node does not know. Such a consumer
came to the leader before and not yet to this one, or was gone when the quota was set. And in the
two cases above, a POP that waits for less time than a count is used may be answered without
messages though others have just settled theirs.

Sources: RabbitMQ's prefetch count; Amazon SQS's bound on messages in flight.
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Iterator
from itertools import islice
from math import ceil, inf
from typing import NamedTuple, TypeVar

import trio

from raftmq.broker.host import Host
from raftmq.broker.serve.connection import Connection
from raftmq.broker.tickets import Callback, Ticket
from raftmq.machine.catalog.quotas import Subject, SubjectKind
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import PopGroups
from raftmq.results import Result
from raftmq.wire.messages import ErrorReply

from .consumers import Consumers, Key

COUNT_SECONDS = 0.05
"""The longest that a count is used, unless it took long, and the time from one look for room to the
next."""
RECOUNT_TIMES = 20
"""No count is made before its time within this many times the time that the last count took, and
none of the same user or topic at all: the consumers of a large user must not have the loop count
them all the time. A count of 16,000 consumers takes 62 ms."""
PLACE_SECONDS = 1.0
"""A consumer that was answered without messages keeps its place among those that wait for this
time: else one that waits for short times would always come last."""
USERS_MAX = 1000
"""Users above which those whose consumers have no messages are dropped."""
LOOK_MAX = 256
"""Consumers and quotas that one look for room goes through; the next look begins with the
others."""


K = TypeVar("K", str, int, Subject)


class FlightRoom(NamedTuple):
    """How many messages a consumer may have credit for."""

    messages: float
    """`inf`: without a bound."""
    subject: Subject | None = None
    """Whose quota leaves the least; None: no quota holds."""


class InFlight:
    """The messages in flight of those who have a quota of them."""

    def __init__(self, node: Host, consumers: Consumers) -> None:
        self._node = node
        self._consumers = consumers
        self.waiting = WaitingPops()
        """Those for whom there was no room."""
        # The messages of Asks on their way through the log.
        self._asked_by_user = Counter[str]()
        self._asked_by_topic = Counter[int]()
        # Users that have a quota of them → their consumers that may have messages.
        self._of_user: dict[str, dict[Key, None]] = {}
        self._users_max = USERS_MAX
        # Of these users all consumers on their connections are known, under this version of quotas.
        self._known: set[str] = set()
        self._known_version = 0
        self._counts: dict[Subject, int] = {}
        # Subjects whose count took long → until when it is used.
        self._kept_until: dict[Subject, float] = {}
        self._counted_at = -inf
        self._counted_version = 0
        self._recount_at = -inf

    def room(self, key: Key, connection: Connection, wanted: int) -> FlightRoom:
        """The room that all quotas leave to a consumer that wants `wanted` messages."""
        topic = self._topic(key)
        bounds = self._node.quotas.in_flight_bounds(connection, topic)
        if not bounds:
            return FlightRoom(inf)
        group = self._node.group(key.partition_group)
        if group is None or not group.is_current:
            # What earlier leaders let in may not be applied here yet.
            return FlightRoom(0, bounds[0][0])
        rooms = list[FlightRoom]()
        for subject, bound in bounds:
            if subject.kind is SubjectKind.USER:
                self._note_consumer(subject, key)
            others = self.waiting.count_others(subject, key)
            left = max(bound - self._count(subject, topic), 0)
            if left < wanted and not others:
                left = max(bound - self._count(subject, topic, recounts=True), 0)
            rooms.append(FlightRoom(ceil(left / (others + 1)), subject))
        return min(rooms, key=lambda room: room.messages)

    def forget_counts(self) -> None:
        """This node has become the leader of a group whose messages no count has."""
        self._counts.clear()

    def note_ask(self, key: Key, connection: Connection, count: int, ticket: Ticket) -> Ticket:
        """An Ask of a consumer is about to be proposed with a ticket; returns the ticket to propose
        it with."""
        topic, user = self._topic(key), connection.user
        bounds = self._node.quotas.in_flight_bounds(connection, topic)
        if not bounds:
            # Perhaps the user had a quota before.
            self._of_user.pop(user, None)
            return ticket
        for subject, _ in bounds:
            self._counts[subject] = self._count(subject, topic) + count
            if subject.kind is SubjectKind.USER:
                # A count before has forgotten it, if it had no messages.
                self._of_user.setdefault(subject.name, {})[key] = None
        self._asked_by_user[user] += count
        self._asked_by_topic[topic] += count

        def end() -> None:
            _subtract(self._asked_by_user, user, count)
            _subtract(self._asked_by_topic, topic, count)

        def done(results: list[Result]) -> None:
            end()
            ticket.done(results)

        def failed(error: ErrorReply) -> None:
            end()
            ticket.failed(error)

        return Callback(done, failed)

    def _note_consumer(self, user: Subject, key: Key) -> None:
        """A consumer of a user may have messages, perhaps since this node did not lead."""
        if self._known_version != self._node.catalog.quotas.version:
            self._known_version = self._node.catalog.quotas.version
            self._known.clear()
        keys = self._of_user.get(user.name)
        if user.name not in self._known:
            self._meet_user(user)
        elif keys is not None and key in keys:
            return
        if keys is None and len(self._of_user) >= self._users_max:
            for name in list(self._of_user):
                self._count_user(name)
            self._users_max = max(USERS_MAX, 2 * len(self._of_user))
        self._of_user.setdefault(user.name, {})[key] = None
        if user in self._counts:
            self._counts[user] += sum(self._in_flight_to(key))

    def _meet_user(self, user: Subject) -> None:
        """A user asks first under its quota: its consumers may have messages since before."""
        if len(self._known) >= self._users_max:
            self._known.clear()
        self._known.add(user.name)
        keys = self._of_user.setdefault(user.name, {})
        for connection in self._node.quotas.connections_of(user.name):
            keys.update(dict.fromkeys(self._consumers.of_connection(connection)))
        self._counts.pop(user, None)

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

    def _count(self, subject: Subject, topic: int, *, recounts: bool = False) -> int:
        """The messages in flight; `recounts`: count them now, if there is time."""
        now = trio.current_time()
        version = self._node.catalog.quotas.version
        if version != self._counted_version:
            # Without a quota, Asks are added to no count.
            self._counted_version = version
            self._counts.clear()
        if now >= self._counted_at + COUNT_SECONDS:
            self._counts = {
                subject: count
                for subject, count in self._counts.items()
                if self._kept_until.get(subject, -inf) > now
            }
            self._kept_until = {each: self._kept_until[each] for each in self._counts}
            self._counted_at = now
        count = self._counts.get(subject)
        if count is None or (recounts and now >= self._recount_at):
            is_user = subject.kind is SubjectKind.USER
            count = self._count_user(subject.name) if is_user else self._count_topic(topic)
            self._counts[subject] = count
            self._recount_at = now + RECOUNT_TIMES * (trio.current_time() - now)
            if self._recount_at > now + COUNT_SECONDS:
                self._kept_until[subject] = self._recount_at
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

    since: float
    """When it came."""
    subject: Subject
    """Whose quota is used up."""


class WaitingPops:
    """The consumers whose POP waits for room, for each quota in a line, longest first."""

    def __init__(self) -> None:
        # Subject → consumer → until when its place is kept.
        self._lines: OrderedDict[Subject, OrderedDict[Key, float]] = OrderedDict()
        self._line_of: dict[Key, Subject] = {}
        self._pops: dict[Key, WaitingPop] = {}
        self._counts = Counter[Subject]()

    def __len__(self) -> int:
        """How many have a place."""
        return len(self._line_of)

    def put(self, key: Key, pop: WaitingPop) -> None:
        """The POP of a consumer waits from now on, at the consumer's place if it has one in that
        line."""
        self._end(key)
        if self._line_of.get(key, pop.subject) != pop.subject:
            self._leave(key)
        self._line_of[key], self._pops[key] = pop.subject, pop
        self._lines.setdefault(pop.subject, OrderedDict())[key] = inf
        self._counts[pop.subject] += 1

    def take(self, key: Key, *, keeps_place: bool = False) -> WaitingPop | None:
        """The POP of a consumer waits no longer; None: it did not."""
        pop = self._end(key)
        if pop is not None and keeps_place:
            self._lines[pop.subject][key] = trio.current_time() + PLACE_SECONDS
        elif not keeps_place:
            self._leave(key)
        return pop

    def _end(self, key: Key) -> WaitingPop | None:
        pop = self._pops.pop(key, None)
        if pop is not None:
            _subtract(self._counts, pop.subject, 1)
        return pop

    def _leave(self, key: Key) -> None:
        subject = self._line_of.pop(key, None)
        if subject is not None:
            del self._lines[subject][key]
            if not self._lines[subject]:
                del self._lines[subject]

    def count_others(self, subject: Subject, key: Key) -> int:
        """How many consumers but this one wait for room in the quota of a subject."""
        pop = self._pops.get(key)
        return self._counts[subject] - (pop is not None and pop.subject == subject)

    def look(self, full: Container[Subject]) -> Iterator[tuple[Key, WaitingPop]]:
        """Those to look at now, of one line after the other. A line ends once its subject is in
        `full`: there is no room for those behind, and the first one stays the first."""
        left, now = LOOK_MAX, trio.current_time()
        for subject in list(islice(self._lines, LOOK_MAX)):
            if left <= 0:
                break
            line = self._lines.get(subject)
            if line is None:
                continue  # a refusal in this look has emptied it
            self._lines.move_to_end(subject)
            for key in list(islice(line, LOOK_MAX)):
                until = line.get(key)
                if until is None:
                    continue  # a refusal has closed its connection, and taken it out
                if until <= now:
                    self._leave(key)
                if key not in self._pops:
                    continue
                left -= 1
                yield key, self._pops[key]
                if subject in full or left <= 0:
                    break
                if key in line:
                    # It waits for something else than room: others have their turn.
                    line.move_to_end(key)

    def sweep(self) -> list[Key]:
        """The next ones of all that wait, in turn."""
        keys = list(islice(self._pops, LOOK_MAX))
        for key in keys:
            self._pops[key] = self._pops.pop(key)
        return keys


def _subtract(counts: Counter[K], key: K, count: int) -> None:
    counts[key] -= count
    assert counts[key] >= 0, "more is taken away than was counted"
    if not counts[key]:
        del counts[key]
