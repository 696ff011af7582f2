"""Members of consumer groups: their heartbeats, and the queues that the answers assign to them.

    HEARTBEAT ──> heard, and answered when the member's queues have changed, or its wait is over
    each second ──> one RenewMembers: members heard that have less than four fifths of their lease,
                    and members whose lease ran out
    applied ──> members whose queues changed are answered, in turns of the loop

A thousand members thus cost one entry a second, and a change reaches its members in one round.

A lease lapses if it ran out in the log and the member was silent for a whole session by this node's
steady clock, which counts from the start of this leadership. So no member loses its lease because
the group had no leader, or because a wall clock jumped.

Invariants:
- A heartbeat is answered once; a newer one of the same member ends the wait of the one before.
- Only the leader answers, and only once it has applied all that earlier leaders committed.

Left out: a linearizable answer. A leader that was deposed a moment ago may give an old state: a
member that acts on it is fenced by the queue's own log, and the version shows that it is old.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import trio
from msgspec.structs import replace

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.quotas import pace
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.broker.settings import Limits
from raftmq.broker.tickets import Callback
from raftmq.broker.timers import Timer, Timers
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.catalog.membership import Member, RenewMembers
from raftmq.machine.commands import encode_commands
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.results import Result
from raftmq.wire.assignment import Assigned, FindMembers, FoundMembers, Heartbeat, MemberView
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.numbers import NUMBER_MAX

from .answers import LATER, Answer, OpenRequest, elsewhere, taking_over, unread
from .connection import Connection
from .dispatcher import group_route, system_group
from .pages import NUMBER_BYTES, Sees, first_page

BEAT_SECONDS = 1.0
"""Time between two proposals of renewals."""


class _Waiting(NamedTuple):
    """A heartbeat that waits until the member's queues change."""

    asked: OpenRequest
    version: int
    timer: Timer


class GroupCoordinator(Service):
    """The heartbeats of all members, if this node leads the system group."""

    def __init__(self, node: Host, *, timers: Timers, limits: Limits) -> None:
        self._node = node
        self._timers = timers
        self._limits = limits
        self._waiting: dict[int, _Waiting] = {}
        # Member → time of its last heartbeat; and the members heard since the last beat.
        self._heard_at: dict[int, float] = {}
        self._heard: dict[int, None] = {}
        # Grows with each change of leadership, so that a late beat of an earlier one does nothing;
        # when this leadership began; whether a renewal is under way.
        self._office = 0
        self._since = 0.0
        self._is_under_way = False
        self.routes = {
            FrameKind.HEARTBEAT: group_route(Heartbeat, self._current_group, self._heartbeat),
            FrameKind.MEMBERS: group_route(FindMembers, system_group(node), self._members),
        }

    # Calls of groups

    def led(self, group: Group, is_leader: bool) -> None:
        """Begin an office, or end it: members must go to the next leader of the system group."""
        if group.number != SYSTEM_GROUP:
            return
        self._office += 1
        self._heard.clear()
        self._heard_at.clear()
        self._is_under_way = False
        if is_leader:
            self._since = trio.current_time()
            self._timers.call_after(BEAT_SECONDS, partial(self._beat, self._office))
            return
        for number in list(self._waiting):
            self._end_wait(number).asked.answer(self._not_here())

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Answer the members whose queues are others now, if the catalog changed."""
        if group.number != SYSTEM_GROUP:
            return
        members = self._node.catalog.memberships
        for number, each in list(self._waiting.items()):
            member = members.member(number)
            if member is None or member.version > each.version:
                # All members of a group may have to hear of a change.
                answer = partial(self._answer_changed, number, each)
                self._node.turns.make(each.asked.connection, answer)

    def closed(self, connection: Connection) -> None:
        """Drop the connection's heartbeats that wait."""
        for number, each in list(self._waiting.items()):
            if each.asked.connection is connection:
                self._end_wait(number)

    # Requests

    def _current_group(self, _: object) -> Group | ErrorReply:
        group = self._node.group(SYSTEM_GROUP)
        if group is None or not group.is_leader:
            return self._not_here()
        if not group.is_current:
            return taking_over(SYSTEM_GROUP)
        return group

    def _heartbeat(self, request: Heartbeat, group: Group, asked: OpenRequest) -> Answer:
        number = request.member
        if number in self._waiting:
            self._answer_waiting(number)
        member = self._node.catalog.memberships.member(number)
        if member is not None:
            self._heard[number] = None
            self._heard_at[number] = trio.current_time()
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        if member is None or member.version > request.version or wait_ms <= 0:
            return self._assigned(number)
        timer = self._timers.call_after(wait_ms / 1000, partial(self._wait_over, number))
        self._waiting[number] = _Waiting(asked, request.version, timer)
        return LATER

    def _wait_over(self, number: int) -> None:
        """The wait is over, as that of others may be at this moment."""
        each = self._waiting[number]
        answer = partial(self._answer_changed, number, each)
        self._node.turns.make(each.asked.connection, answer)

    def _answer_changed(self, number: int, each: _Waiting) -> None:
        if self._waiting.get(number) is each:
            self._answer_waiting(number)

    def _answer_waiting(self, number: int) -> None:
        asked = self._end_wait(number).asked
        # One connection may have a thousand that wait, each for some hundred KiB.
        asked.answer(unread(asked.connection) or self._assigned(number))

    def _end_wait(self, number: int) -> _Waiting:
        each = self._waiting.pop(number)
        each.timer.cancel()
        return each

    def _assigned(self, number: int) -> Assigned | ErrorReply:
        """The queues of a member."""
        members = self._node.catalog.memberships
        member, holding = members.member(number), members.holding(number)
        if member is None or holding is None:
            message = (
                f"there is no member {number} now: its lease ran out, or another process took its "
                "place; join again"
            )
            return ErrorReply(Reason.FENCED.value, message)
        group = self._node.group(SYSTEM_GROUP)
        remaining = 0 if group is None else _remaining_ms(member, group.now_ms())
        return Assigned(*holding, remaining, members.old_queue_count(number))

    def _not_here(self) -> ErrorReply:
        group = self._node.group(SYSTEM_GROUP)
        return elsewhere(SYSTEM_GROUP) if group is None else group.not_leader()

    # The beat

    def _beat(self, office: int) -> None:
        """Propose the renewals of members that were heard, and the lapses of silent ones."""
        group = self._node.group(SYSTEM_GROUP)
        if office != self._office or group is None:
            return
        self._timers.call_after(BEAT_SECONDS, partial(self._beat, office))
        if self._is_under_way or not group.is_current or group.stopping:
            return
        # Leases run by the log's time: it may be ahead of this node's clock for days.
        command = self._renewal(group.now_ms())
        self._heard.clear()
        if not command.heard and not command.lapsed:
            return
        self._is_under_way = True

        def done(_: object) -> None:
            if office == self._office:
                self._is_under_way = False

        group.propose(
            Kind.COMMANDS, encode_commands([command]), Callback(done, done), is_upkeep=True
        )

    def _renewal(self, now: int) -> RenewMembers:
        members = self._node.catalog.memberships
        heard: list[int] = []
        for number in self._heard:
            member = members.member(number)
            # A lease that is renewed too early costs an entry and changes nothing.
            if member is not None and 5 * (member.deadline - now) < 4 * member.session_ms:
                heard.append(number)
        self._heard_at = {n: at for n, at in self._heard_at.items() if n in members.of_member}
        lapsed: list[int] = []
        work = 0
        for assignment in members.assignments.values():
            for member in assignment.members.values():
                if work >= pace.WORK_MAX:
                    # Each deals out all queues of its topic again: the others lapse at later beats.
                    return RenewMembers(heard, lapsed)
                if member.deadline <= now and self._silent_ms(member.number) >= member.session_ms:
                    lapsed.append(member.number)
                    work += len(assignment.owners)
        return RenewMembers(heard, lapsed)

    def _silent_ms(self, number: int) -> float:
        """Milliseconds since a member was heard last, or since this leadership began."""
        return (trio.current_time() - self._heard_at.get(number, self._since)) * 1000

    # Lists

    def _members(self, request: FindMembers, group: Group, asked: OpenRequest) -> Answer:
        def page(request: FindMembers) -> FoundMembers | FindMembers:
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return members_page(self._node.catalog, request, now=group.now_ms(), sees=sees)

        return asked.read_page(group, request, page)


def members_page(
    catalog: Catalog, request: FindMembers, *, now: int, sees: Sees = lambda _: True
) -> FoundMembers | FindMembers:
    """Members by consumer group, topic and number, after the one that the request names, of the
    groups that `sees` shows."""
    views, last = first_page(_views(catalog, request, now, sees), _view_bytes)
    if last is None or views:
        return FoundMembers(views, is_cut=last is not None)
    group, topic, member = last
    return replace(request, after_group=group, after_topic=topic, after_member=member)


def _views(
    catalog: Catalog, request: FindMembers, now: int, sees: Sees
) -> Iterator[tuple[tuple[str, int, int], MemberView | None]]:
    after = (request.after_group, request.after_topic, request.after_member)
    for (name, topic_id), assignment in sorted(catalog.memberships.assignments.items()):
        topic = catalog.topic_of(topic_id << QUEUE_BITS)
        is_wanted = request.consumer_group in (None, name) and (name, topic_id) >= after[:2]
        if not is_wanted or topic is None:
            continue
        if not sees(name.partition("@")[0]):
            if (name, topic_id, NUMBER_MAX) > after:
                yield (name, topic_id, NUMBER_MAX), None
            continue
        for number, member in sorted(assignment.members.items()):
            if (name, topic_id, number) > after:
                holding = assignment.holding(number)
                view = MemberView(
                    consumer_group=name,
                    topic=topic.name,
                    topic_id=topic_id,
                    member=number,
                    instance=member.instance,
                    host=member.host,
                    queues=holding.queues,
                    giving_up=holding.giving_up,
                    remaining_ms=_remaining_ms(member, now),
                )
                yield (name, topic_id, number), view


def _view_bytes(view: MemberView) -> int:
    names = (view.consumer_group, view.topic, view.instance, view.host)
    size = sum(len(name.encode("utf-8", "surrogatepass")) for name in names)
    return size + NUMBER_BYTES * 4 + 5 * (len(view.queues) + len(view.giving_up))


def _remaining_ms(member: Member, now: int) -> int:
    """Milliseconds that a lease has left; at most a session, even if a wall clock went back."""
    return min(member.session_ms, max(0, member.deadline - now))
