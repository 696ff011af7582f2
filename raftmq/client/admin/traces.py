"""The trace of a message: each record that touched it, and its way through each consumer group.

    stored 12:00:00.000 ── billing: handed out +3 ms, nacked +1 s, ready +10 s, handed out, acked
                        └─ audit:   handed out +2 ms, acked +5 ms

Brokers list the effects of each record. This module adds the tokens of leases that ran out
together, which brokers leave out, and drops events of a whole stretch that did not change the
message, such as retention after its settlement.

Left out: the time at which the producer sent a message, as its batch does not hold it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from raftmq.client.routing.pages import Pages
from raftmq.client.routing.requests import ask_for_pages, seconds_left
from raftmq.client.routing.router import Router
from raftmq.pop.message_events import FRESH, SWEEPING, EventKind, follow
from raftmq.wire.messages import TopicView
from raftmq.wire.traces import FindTrace, FoundTrace, MessageEventView

from .consumer_groups import find_groups
from .lookup import place_of

_WORDS = {
    EventKind.HANDED: "handed out",
    EventKind.NACKED: "nacked",
    EventKind.GIVEN_BACK: "given back",
    EventKind.DEAD: "dead letter",
    EventKind.PASSED: "passed over",
    EventKind.UNFILTERED: "filter gone",
    EventKind.TRIMMED: "lost",
}
_KNOWN = frozenset(EventKind)
WITH_UNTIL = (EventKind.HANDED, EventKind.EXTENDED, EventKind.NACKED, EventKind.EXPIRED)
"""Kinds whose detail is a time."""
_OF_ITS_LEASE = (EventKind.EXPIRED, EventKind.DEAD, EventKind.GIVEN_BACK)
"""Kinds that may come without the lease that they end."""


class MessageEvent(NamedTuple):
    """The effect of one record of the log on a message: the wire's `MessageEventView`, with a word
    for the kind and the name of the group."""

    what: str
    """`stored`, `handed out`, `acked`, `nacked`, `expired`, `ready`, `given back`, `extended`,
    `dead letter`, `redriven`, `purged`, `passed over`, `filter gone`, `lost`, `skipped`, `reset`;
    a word like `kind 99` if the broker knows more kinds than this client."""
    timestamp: int
    """The record's time, milliseconds since 1970."""
    index: int  # type: ignore[assignment]  # hides tuple.index, which has no use here
    """The record's position in the log of its partition group."""
    term: int
    """The record's term."""
    node: int
    """The node that led that term, if the present leader has seen it; 0: unknown."""
    group: str
    """The consumer group; `#7` if it is gone, by the number of its attachment; empty: none."""
    consumer: int
    """The consumer that acted or had the message; 0: none."""
    token: int
    """The lease; 0: none."""
    attempt: int
    """Number of hand-outs of the message by then."""
    until: int
    """When the lease ends, or the message is due again, milliseconds since 1970; 0: neither."""
    reason: str
    """The reason of a dead letter, while the letter exists."""


class Journey(NamedTuple):
    """The way of a message through one consumer group."""

    group: str
    """The consumer group, as in `MessageEvent`."""
    state: str
    """The message's state now: `leased`, `waiting`, `ready`, `dead`, `acked`, `passed`, `purged`,
    `lost`, `skipped`, or `fresh`: to be handed out for the first time, or after a reset."""
    events: tuple[MessageEvent, ...]
    """The events, in the order of the log."""


class Trace(NamedTuple):
    """The way of a message through all consumer groups that pop."""

    id: str
    """The message's id."""
    topic: str
    """Name of the topic."""
    queue: int
    """The queue within the topic."""
    offset: int
    """The offset in the queue."""
    stored: MessageEvent | None
    """The message's placing in its queue; None: the log does not reach back to it."""
    journeys: tuple[Journey, ...]
    """By consumer group, without groups that have not reached the message."""
    is_whole: bool
    """False: earlier events may be missing, as retention has dropped that part of the log."""

    @property
    def events(self) -> list[MessageEvent]:
        """All events in the order of the log."""
        found = [event for journey in self.journeys for event in journey.events]
        found.sort(key=lambda event: event.index)
        return found if self.stored is None else [self.stored, *found]


async def trace(router: Router, message_id: str, timeout: float | None = None) -> Trace:
    """See `Client.trace`."""
    left = seconds_left(router, timeout)
    place = await place_of(router, message_id, left())
    views: list[MessageEventView] = []
    is_whole = True
    async for page in events_of(router, place.partition_group, place.number, place.offset, left()):
        views += page.events
        is_whole = is_whole and page.is_whole
    names = await _names(router, place.topic, left())
    stored = [_event(view, "") for view in views if view.kind == EventKind.STORED]
    return Trace(
        message_id,
        place.topic.name,
        place.queue,
        place.offset,
        stored[0] if stored else None,
        tuple(_journeys(views, names)),
        is_whole,
    )


def events_of(
    router: Router, partition_group: int, queue_number: int, offset: int, timeout: float | None
) -> Pages[FindTrace, FoundTrace]:
    """The effects of records on a message, in the order of the log."""
    question = FindTrace(partition_group, queue_number, offset)
    return ask_for_pages(router, question, FoundTrace, timeout=timeout, queue_number=queue_number)


async def _names(router: Router, topic: TopicView, timeout: float | None) -> dict[int, str]:
    """The consumer groups of a topic by the numbers of their attachments."""
    left = seconds_left(router, timeout)
    return {
        attachment.number: settings.name
        for settings in await find_groups(router, topic=topic.name, timeout=left())
        for attachment in settings.attachments
        if attachment.topic == topic.name
    }


def _journeys(views: Iterable[MessageEventView], names: Mapping[int, str]) -> Iterator[Journey]:
    by_number: dict[int, list[MessageEventView]] = {}
    for view in views:
        if view.kind != EventKind.STORED:
            by_number.setdefault(view.number, []).append(view)
    for number, of_group in sorted(by_number.items()):
        group = names.get(number, f"#{number}")
        state, consumer, token = FRESH, 0, 0
        events: list[MessageEvent] = []
        for view in of_group:
            before = state
            if view.kind in _KNOWN:
                state = follow(state, view.kind, detail=view.detail, at=view.at_ms)
            # The event is about a whole stretch, and had no effect on this message.
            if view.kind in SWEEPING and state == before:
                continue
            event = _event(view, group)
            if view.kind in _OF_ITS_LEASE and not view.token:
                event = event._replace(consumer=consumer, token=token)
            consumer, token = event.consumer, event.token
            events.append(event)
        if events:
            yield Journey(group, state, tuple(events))


def word_of(kind: int) -> str:
    """The name of a kind of event."""
    if kind not in _KNOWN:
        return f"kind {kind}"
    known = EventKind(kind)
    return _WORDS.get(known, known.name.lower())


def _event(view: MessageEventView, group: str) -> MessageEvent:
    has_end = view.kind in WITH_UNTIL
    return MessageEvent(
        what=word_of(view.kind),
        timestamp=view.at_ms,
        index=view.index,
        term=view.term,
        node=view.node,
        group=group,
        consumer=view.consumer,
        token=view.token,
        attempt=view.attempt,
        until=view.detail if has_end else 0,
        reason=view.reason,
    )
