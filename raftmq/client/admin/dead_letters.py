"""Backlogs and dead letters of groups that pop, read from the partition groups."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from raftmq.client.consume.offsets import find_offsets
from raftmq.client.message import format_id, parse_id
from raftmq.client.routing.requests import after, ask_for_pages, ask_leader, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.pop.pieces import bits_of
from raftmq.pop.spans import offsets_of, to_bytes
from raftmq.wire.messages import LATEST, TopicView
from raftmq.wire.popping import (
    SETTLE_ITEMS_MAX,
    BacklogView,
    ChangeDead,
    DeadChanged,
    DeadView,
    FindBacklogs,
    FindDead,
    FoundBacklogs,
    FoundDead,
)

from .consumer_groups import GroupAttachment, GroupSettings, find_groups

PAGE_LETTERS = 1000
"""Dead letters in one page."""
CHANGED_BYTES = 64 * 1024
"""Bytes of message bits, one bit a message, after which a request of changes is full."""
ASKED_ONE_BY_ONE = 8
"""Above this number of groups, one question asks a partition group for all of its backlogs."""

POPPED = ("pop", "ordered")
"""Modes of groups that pop."""


class Backlog(NamedTuple):
    """The unfinished messages of one queue, for a consumer group that pops.

    The counts are those of the wire's `BacklogView`; the numbers of attachment and queue there are
    group, topic and queue here. A queue without a view has a row, too: see `has_begun`.
    """

    group: str
    """Name of the consumer group."""
    topic: str
    """Name of the topic."""
    queue: int
    """The queue within the topic, from 0."""
    end: int
    """The offset after the queue's last message."""
    next: int
    """The first offset that was never handed out."""
    leased: int = 0
    """Messages in hand."""
    waiting: int = 0
    """Messages that failed and wait for their time."""
    ready: int = 0
    """Messages ready to be handed out again, or waiting for their turn with their key."""
    dead: int = 0
    """Messages in dead letters."""
    acked: int = 0
    """Acknowledged messages."""
    passed: int = 0
    """Messages that a filter passed over."""
    lost: int = 0
    """Messages that retention took before they were settled."""
    purged: int = 0
    """Messages of purged dead letters."""
    has_begun: bool = True
    """False: the group has no place in this queue yet. `next` is where the group would begin now;
    with `latest` that place moves on with each message that comes."""

    @property
    def fresh(self) -> int:
        """Messages that were never handed out; a filter may pass over some."""
        return max(0, self.end - self.next)

    @property
    def lag(self) -> int:
        """Messages that are not done, without the dead ones."""
        return self.fresh + self.ready + self.waiting + self.leased


class DeadLetter(NamedTuple):
    """Neighbouring messages of one queue that failed together.

    The wire's `DeadView` has the messages as bits from an offset on; here they are ids, and the
    letter has all that `redrive` and `purge` need to find it again.
    """

    group: str
    """Name of the consumer group."""
    topic: str
    """Name of the topic."""
    number: int
    """The number of the group's attachment to the topic."""
    partition_group: int
    """The partition group that keeps the letter."""
    letter: int
    """The letter's number in the partition group."""
    queue: int
    """The queue within the topic, from 0."""
    attempt: int
    """Number of attempts at its messages."""
    reason: str
    """The words of the consumer that rejected it, or `failed` or `expired`."""
    timestamp: int
    """When the messages became a dead letter, milliseconds since 1970."""
    ids: tuple[str, ...]
    """The ids of the letter's messages, or of those to redrive or purge."""

    def part(self, ids: Collection[str]) -> "DeadLetter":
        """The letter with only the messages of these ids, to redrive or purge them and leave the
        others."""
        return self._replace(ids=tuple(each for each in self.ids if each in ids))


async def find_backlogs(
    router: Router,
    topics: Iterable[TopicView],
    groups: Sequence[GroupSettings],
    timeout: float | None = None,
) -> list[Backlog]:
    """The backlogs of these groups, by group, topic and queue.

    The entry of an attached group without a place has the place where the group would begin now,
    and `has_begun` False.
    """
    left = seconds_left(router, timeout)
    by_name = {topic.name: topic for topic in topics}
    wanted = {
        attachment.number: _Attached(settings.name, attachment, by_name[attachment.topic])
        for settings in groups
        if settings.mode in POPPED
        for attachment in settings.attachments
        if attachment.topic in by_name
    }
    views = await _views(router, wanted, left())
    untold: dict[int, int] = {}
    for number, attached in wanted.items():
        queues = attached.queues.items()
        untold |= {queue: carrier for queue, carrier in queues if (number, queue) not in views}
    ends = await find_offsets(router, untold, LATEST, left()) if untold else {}
    found = []
    for number, attached in wanted.items():
        for queue in attached.queues:
            view = views.get((number, queue))
            if view is None:
                end, earliest = ends[queue].end, ends[queue].earliest
                start = end if attached.is_latest(queue) else earliest
                counts: dict[str, int] = {"end": end, "next": start}
            else:
                counts = msgspec.structs.asdict(view)
                del counts["number"], counts["queue"]
            found.append(
                Backlog(
                    attached.group,
                    attached.topic.name,
                    queue & QUEUE_MASK,
                    **counts,
                    has_begun=view is not None,
                )
            )
    return sorted(found)


class _Attached(NamedTuple):
    """A consumer group and a topic that it is attached to."""

    group: str
    attachment: GroupAttachment
    topic: TopicView

    def is_latest(self, queue: int) -> bool:
        """True if the group begins at the end of this queue, given by its number."""
        is_old = queue & QUEUE_MASK < self.attachment.queues
        return self.attachment.is_latest and is_old

    @property
    def queues(self) -> dict[int, int]:
        """Queue number → its partition group."""
        first = self.topic.id << QUEUE_BITS
        return {first | n: group for n, group in enumerate(self.topic.groups)}


async def _views(
    router: Router, wanted: Mapping[int, _Attached], timeout: float | None
) -> dict[tuple[int, int], BacklogView]:
    """The backlogs of these attachments: (number, queue) → backlog, without queues not begun."""
    left = seconds_left(router, timeout)
    carried: dict[int, list[int]] = {}
    for number, attached in wanted.items():
        for partition_group in sorted(set(attached.topic.groups)):
            carried.setdefault(partition_group, []).append(number)
    views: dict[tuple[int, int], BacklogView] = {}
    for partition_group, numbers in carried.items():
        # A few attachments are asked for one by one; of many, one question asks for all.
        for number in numbers if len(numbers) <= ASKED_ONE_BY_ONE else [0]:
            question = FindBacklogs(partition_group, number)
            async for page in ask_for_pages(router, question, FoundBacklogs, timeout=left()):
                views |= {
                    (view.number, view.queue): view
                    for view in page.backlogs
                    if view.number in wanted
                }
    return views


async def _attachment(router: Router, group: str, topic: str, timeout: float | None) -> int:
    """The number of a popping group's attachment to a topic.

    Raises:
        Rejected: `UNKNOWN_GROUP`, the group is not attached, or there is no such group that pops.
    """
    found = await find_groups(router, group, None, timeout)
    known = [settings for settings in found if settings.mode in POPPED]
    if not known:
        message = f"there is no consumer group {group!r} that pops, and no other has dead letters"
        raise Rejected(Reason.UNKNOWN_GROUP, message)
    numbers = [each.number for each in known[0].attachments if each.topic == topic]
    if not numbers:
        message = f"consumer group {group!r} takes no messages of {topic!r}: attach it first"
        raise Rejected(Reason.UNKNOWN_GROUP, message)
    return numbers[0]


async def find_dead(
    router: Router,
    topic: TopicView,
    group: str,
    limit: int | None = None,
    timeout: float | None = None,
) -> list[DeadLetter]:
    """The dead letters of a group on a topic, by partition group and number.

    Raises:
        Rejected: `UNKNOWN_GROUP`, see `_attachment`.
    """
    left = seconds_left(router, timeout)
    number = await _attachment(router, group, topic.name, left())
    found: list[DeadLetter] = []
    messages = 0
    for partition_group in sorted(set(topic.groups)):
        question = FindDead(partition_group, number, limit=PAGE_LETTERS)
        pages = ask_for_pages(router, question, FoundDead, timeout=left())
        while (limit is None or messages < limit) and (page := await anext(pages, None)):
            for view in page.letters:
                found.append(_letter(view, group, topic.name, number, partition_group))
                messages += len(found[-1].ids)
    return found


def _letter(
    view: DeadView, group: str, topic: str, number: int, partition_group: int
) -> DeadLetter:
    offsets = offsets_of(view.base, int.from_bytes(view.bits, "little"))
    return DeadLetter(
        group=group,
        topic=topic,
        number=number,
        partition_group=partition_group,
        letter=view.letter,
        queue=view.queue & QUEUE_MASK,
        attempt=view.attempt,
        reason=view.reason,
        timestamp=view.at_ms,
        ids=tuple(format_id(view.queue, offset) for offset in offsets),
    )


async def change_dead(
    router: Router,
    letters: Sequence[DeadLetter],
    *,
    is_purge: bool,
    timeout: float | None = None,
) -> int:
    """Hand messages of dead letters out again, or discard them; returns their number."""
    left = seconds_left(router, timeout)
    where: dict[tuple[int, int], list[DeadLetter]] = {}
    for each in letters:
        if each.ids:
            where.setdefault((each.partition_group, each.number), []).append(each)
    messages = 0
    done: set[int] = set()
    for (partition_group, number), some in where.items():
        for change in _changes(partition_group, number, some, is_purge=is_purge):
            request = msgspec.structs.replace(change, request=router.draw_request())
            with after(done, "dead letters of partition groups"):
                changed = await ask_leader(router, request, DeadChanged, timeout=left())
            messages += changed.messages
            done.add(partition_group)
    return messages


def _changes(
    partition_group: int, number: int, letters: Sequence[DeadLetter], *, is_purge: bool
) -> Iterator[ChangeDead]:
    """The requests, each within its bounds."""
    numbers: list[int] = []
    bases: list[int] = []
    bits: list[bytes] = []
    size = 0
    for each in letters:
        offsets = sorted(parse_id(one)[1] for one in each.ids)
        meant = bits_of(offsets)
        numbers.append(each.letter)
        bases.append(offsets[0])
        bits.append(to_bytes(meant))
        size += len(bits[-1])
        if len(numbers) == SETTLE_ITEMS_MAX or size >= CHANGED_BYTES:
            yield ChangeDead(partition_group, number, numbers, is_purge, bases, bits)
            numbers, bases, bits, size = [], [], [], 0
    if numbers:
        yield ChangeDead(partition_group, number, numbers, is_purge, bases, bits)
