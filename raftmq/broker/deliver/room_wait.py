"""Consumers whose POP waits for room: the quotas of messages in flight leave it nothing now.

    POP ──> `within`: what the quotas leave of it ──> an Ask
                  │ nothing
                  └──> `begin` ──> a look every `COUNT_SECONDS` ──> an Ask, once there is room
                                        └──> `end`: the POP is answered

A consumer that waits has no credit, so messages that come meanwhile go to others. Those who wait
for room in one quota take turns, longest first. Once a look finds a quota used up, it goes on with
those who wait for another, so a thousand consumers of one user delay no others.

Invariants:
- One timer serves all consumers that wait; it runs only while one of them has a place.
- A consumer that is gone, or whose group is deleted, is found by a sweep, `LOOK_MAX` of all that
  wait at each look: it counts among those that wait no longer than that.
"""

from collections.abc import Callable
from math import ceil

import trio
from msgspec.structs import replace

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.timers import Timers
from raftmq.machine.catalog.quotas import Subject
from raftmq.wire.messages import ErrorReply
from raftmq.wire.popping import Pop

from .consumers import Consumer, Consumers, Key, OpenPop
from .credit import has_credit
from .in_flight import COUNT_SECONDS, InFlight, WaitingPop


class RoomWait:
    """The consumers that wait, and the looks for room."""

    def __init__(
        self,
        node: Host,
        timers: Timers,
        in_flight: InFlight,
        consumers: Consumers,
        *,
        find: Callable[[Pop], Group | ErrorReply],
        ask: Callable[[Group, Consumer], object],
        flush: Callable[[], None],
    ) -> None:
        """`find` gives the data group of a POP, or the refusal; `ask` asks the machine for what the
        POP of a consumer wants; `flush` proposes it."""
        self._node = node
        self._timers = timers
        self._in_flight = in_flight
        self._waiting = in_flight.waiting
        self._consumers = consumers
        self._find = find
        self._ask = ask
        self._flush = flush
        self._is_looking = False

    def within(self, consumer: Consumer, request: Pop) -> tuple[Pop, WaitingPop | None]:
        """The request as the quotas of messages in flight leave it; and its wait for room, if they
        leave nothing of it."""
        if request.count <= 0:
            return request, None
        room = self._in_flight.room(consumer.key, consumer.connection, request.count)
        count = int(min(request.count, room.messages))
        if count:
            return replace(request, count=count), None
        assert room.subject is not None
        return replace(request, count=0), WaitingPop(trio.current_time(), room.subject)

    def begin(self, consumer: Consumer, pop: WaitingPop) -> None:
        """The POP of a consumer waits from now on."""
        self._look_soon()
        self._waiting.put(consumer.key, pop)

    def end(self, consumer: Consumer, *, keeps_place: bool = False) -> None:
        """The POP of a consumer waits no longer, if it did."""
        pop = self._waiting.take(consumer.key, keeps_place=keeps_place)
        if pop is not None:
            seconds = trio.current_time() - pop.since
            self._node.quotas.note_throttled(pop.subject, seconds)
            consumer.throttle_ms += ceil(seconds * 1000)

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._timers.call_after(COUNT_SECONDS, self._look)

    def _look(self) -> None:
        """Ask for those consumers that wait for which there is room now."""
        self._is_looking = False
        for key in self._waiting.sweep():
            self._found(key)
        full = set[Subject]()
        for key, pop in self._waiting.look(full):
            if (found := self._found(key)) is None:
                continue
            consumer, group, open_pop = found
            request, waiting = self.within(consumer, _whole(open_pop))
            if waiting is not None:
                # A new leader has no room to give before it is current, whatever the quota says.
                if group.is_current:
                    full.add(waiting.subject)
                if waiting.subject != pop.subject:
                    self._waiting.put(key, pop._replace(subject=waiting.subject))
                continue
            if consumer.since is None:
                # Its first Ask, for no messages, is not applied: the leases in its hand are not
                # known.
                continue
            consumer.open_pop = open_pop._replace(request=request)
            self.end(consumer)
            self._ask(group, consumer)
        self._flush()
        if self._waiting:
            self._look_soon()

    def ask_again(self, consumer: Consumer) -> None:
        """The POP of a consumer waits for messages, or for room, from some time after it came."""
        if (found := self._found(consumer.key)) is None:
            return
        _, group, open_pop = found
        request, waiting = self.within(consumer, _whole(open_pop))
        consumer.open_pop = open_pop._replace(request=request)
        if waiting is not None:
            self.begin(consumer, waiting)
        elif not has_credit(group, request):
            self._ask(group, consumer)

    def _found(self, key: Key) -> tuple[Consumer, Group, OpenPop] | None:
        """A consumer whose POP waits, and its data group; None: it is gone, or was refused, as its
        consumer group or topic was deleted meanwhile."""
        consumer = self._consumers.get(key)
        if consumer is None or consumer.open_pop is None:
            self._waiting.take(key)
            return None
        group = self._find(consumer.open_pop.request)
        if isinstance(group, ErrorReply):
            self._waiting.take(key)
            consumer.connection.refuse(consumer.end_wait(), group)
            return None
        return consumer, group, consumer.open_pop


def _whole(open_pop: OpenPop) -> Pop:
    """The request as it was before quotas of messages in flight cut it."""
    return replace(open_pop.request, count=open_pop.wanted)
