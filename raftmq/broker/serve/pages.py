"""Long lists in pages: no answer is longer than a frame's header may be, nor takes long to make.

A cluster may have 100,000 topics, and a partition group offsets of as many consumer groups. Such a
list goes out in pages of about `PAGE_BYTES`; the client asks for the entries after the last one it
got. Each page is true when it is made. Entries may change between two pages, so a list is no
snapshot, but an entry that is there all the time comes exactly once.

A page looks at `LOOKS_MAX` entries, as whoever asks may see none of many. Where all of them are
hidden a page function returns the request that goes on after them, and the node makes the page in
another turn (`OpenRequest.read_page`): the client could not name an entry that it may not see.

Invariants:
- A page holds at least one entry if there is one, and goes on strictly after `after`.
- `PAGE_BYTES` and the largest entry together stay far below `wire.frame.HEADER_BYTES_MAX`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from raftmq.machine.catalog.catalog import Catalog, Topic
from raftmq.machine.catalog.consumer_groups import Attachment, ConsumerGroup
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.assignment import Committed, CommittedOffset, CommittedOffsets
from raftmq.wire.consumer_groups import (
    AttachmentView,
    ConsumerGroupView,
    FindConsumerGroups,
    FoundConsumerGroups,
)
from raftmq.wire.frame import HEADER_BYTES_MAX
from raftmq.wire.messages import FindSubscriptions, FoundSubscriptions, SubscriptionView, TopicView
from raftmq.wire.numbers import LIST_MAX, NUMBER_MAX

Sees = Callable[[str], bool]
"""Whether the one who asks may see the resource of this name: see `raftmq.broker.access`."""

PAGE_BYTES = 256 * 1024
"""About the length of a page: one of small entries, 6,000 of them, takes about 30 ms of the event
loop. A topic of 65,536 queues adds 330 kB at the most."""
STATUS_GROUPS = 500
"""Partition groups described in one answer to STATUS: about half a kilobyte each."""
LOOKS_MAX = 5_000
"""Entries that are looked at for one page, whether the one who asks may see them or not."""

NUMBER_BYTES = 9
"""The longest integer in CBOR."""
assert LIST_MAX * (1 + 4 * NUMBER_BYTES) < HEADER_BYTES_MAX, "the answer to `FindOffsets`"


def _everything(_: str) -> bool:
    return True


C = TypeVar("C")
V = TypeVar("V")


def first_page(
    entries: Iterable[tuple[C, V | None]],
    size_of: Callable[[V], int],
    *,
    looks_max: int | None = None,
) -> tuple[list[V], C | None]:
    """The first page of a list.

    Args:
        entries: each entry's place in the list, and its view; None: it is hidden.
        size_of: the length of a view in bytes, about.
        looks_max: entries that are looked at; None: `LOOKS_MAX`.

    Returns:
        The views, and the place after which the next page goes on; None: this page is the last.
    """
    views: list[V] = []
    size, last = 0, None
    for looks, (place, shown) in enumerate(entries):
        if size >= PAGE_BYTES or looks >= (looks_max or LOOKS_MAX):
            return views, last
        last = place
        if shown is not None:
            views.append(shown)
            size += size_of(shown)
    return views, None


def topics_page(
    catalog: Catalog, names: Sequence[str] | None, after: int, sees: Sees = _everything
) -> tuple[list[TopicView], int]:
    """The topics of these names (None: all) that `sees` shows, by number, after number `after`.

    Returns:
        The page, and the number after which the next page goes on; 0: this page is the last.
    """
    entries = (
        (each.id, TopicView(each.name, each.id, each.groups) if sees(each.name) else None)
        for each in _topics(catalog, names)
        if each.id > after
    )
    views, last = first_page(entries, _topic_bytes)
    return views, last or 0


def _topic_bytes(view: TopicView) -> int:
    return 3 * NUMBER_BYTES + len(view.name) + 5 * len(view.groups)


def _topics(catalog: Catalog, names: Sequence[str] | None) -> Iterable[Topic]:
    if names is None:
        # The catalog holds them in the order of their numbers, but for a snapshot of an old one.
        return sorted(catalog.topics.values(), key=_number)
    found = {name: catalog.topics[name] for name in names if name in catalog.topics}
    return sorted(found.values(), key=_number)


def _number(topic: Topic) -> int:
    return topic.id


def committed_page(
    machine: PartitionMachine,
    request: Committed,
    *,
    passed: Callable[[int, str], int] = lambda _queue, _name: 0,
    sees: Sees = _everything,
) -> CommittedOffsets | Committed:
    """Committed offsets by consumer group and queue, after the entry that the request names.

    `passed` says how many messages of a queue a consumer group passed over, `sees` shows groups.
    """
    offsets, last = first_page(_committed(machine, request, passed, sees), _committed_bytes)
    if last is None or offsets:
        return CommittedOffsets(offsets, is_cut=last is not None)
    return replace(request, after_group=last[0], after_queue=last[1])


def _committed(
    machine: PartitionMachine,
    request: Committed,
    passed: Callable[[int, str], int],
    sees: Sees,
) -> Iterator[tuple[tuple[str, int], CommittedOffset | None]]:
    name = request.consumer_group
    wanted = machine.committed if name is None else {name} & machine.committed.keys()
    after = (request.after_group, request.after_queue)
    for group in sorted(group for group in wanted if group >= request.after_group):
        # What an instance commits, `group@instance`, is the group's.
        if not sees(group.partition("@")[0]):
            if (group, NUMBER_MAX) > after:
                yield (group, NUMBER_MAX), None
            continue
        for queue, (offset, timestamp) in sorted(machine.committed[group].items()):
            if (group, queue) > after:
                view = CommittedOffset(group, queue, offset, timestamp, passed(queue, group))
                yield (group, queue), view


def _committed_bytes(view: CommittedOffset) -> int:
    return 5 * NUMBER_BYTES + len(view.consumer_group.encode())


def subscriptions_page(
    catalog: Catalog, request: FindSubscriptions, sees: Sees = _everything
) -> FoundSubscriptions | FindSubscriptions:
    """Subscriptions by topic and consumer group, after the entry that the request names; `sees`
    shows groups."""
    views, last = first_page(_subscriptions(catalog, request, sees), _subscription_bytes)
    if last is None or views:
        return FoundSubscriptions(views, is_cut=last is not None)
    return replace(request, after_topic=last[0], after_group=last[1])


def _subscriptions(
    catalog: Catalog, request: FindSubscriptions, sees: Sees
) -> Iterator[tuple[tuple[int, str], SubscriptionView | None]]:
    after = (request.after_topic, request.after_group)
    of_topic, only = catalog.subscribers.of_topic, request.consumer_group
    for topic in _topics(catalog, None if request.topic is None else [request.topic]):
        found = of_topic.get(topic.id, {})
        for name in sorted(found) if only is None else {only} & found.keys():
            place = (topic.id, name)
            if place > after:
                each = found[name]
                shown = (topic.name, topic.id, name, each.expression, each.version)
                yield place, SubscriptionView(*shown) if sees(name) else None


def _subscription_bytes(view: SubscriptionView) -> int:
    names = len(view.topic.encode()) + len(view.consumer_group.encode())
    return 4 * NUMBER_BYTES + names + len(view.expression.encode("utf-8", "surrogatepass"))


class _Attached(NamedTuple):
    """A consumer group, and one of its attachments."""

    group: ConsumerGroup
    view: AttachmentView | None
    """None: the group has none."""
    is_first: bool
    """True: the group's first one of the page."""


def consumer_groups_page(
    catalog: Catalog, request: FindConsumerGroups, sees: Sees = _everything
) -> FoundConsumerGroups | FindConsumerGroups:
    """Consumer groups that `sees` shows by name, after the attachment that the request names.

    A group whose attachments do not fit into one page comes again in the next, with the others.
    """
    found, last = first_page(_attachments(catalog, request, sees), _attached_bytes)
    if last is not None and not found:
        return replace(request, after_group=last[0], after_topic=last[1])
    views: list[ConsumerGroupView] = []
    for group, view, is_first in found:
        if is_first:
            views.append(_consumer_group_view(group))
        if view is not None:
            views[-1].attachments.append(view)
    return FoundConsumerGroups(views, is_cut=last is not None)


def _attached_bytes(attached: _Attached) -> int:
    size = 0
    if attached.is_first:
        group = attached.group
        size += len(group.name.encode("utf-8", "surrogatepass"))
        size += NUMBER_BYTES * (8 + len(group.policy.schedule_ms))
    if attached.view is not None:
        size += 4 * NUMBER_BYTES + len(attached.view.topic)
    return size


def _attachments(
    catalog: Catalog, request: FindConsumerGroups, sees: Sees
) -> Iterator[tuple[tuple[str, int], _Attached | None]]:
    """Each attachment with its group; a group without any comes alone."""
    known = catalog.consumer_groups
    wanted: Iterable[str] = known.groups
    here: dict[str, list[Attachment]] = {}
    if request.topic is not None:
        topic = catalog.topics.get(request.topic)
        to_it = known.of_topic(topic.id) if topic is not None else ()
        wanted = here = {attachment.consumer_group: [attachment] for attachment in to_it}
    if request.consumer_group is not None:
        wanted = {request.consumer_group}.intersection(wanted)
    for name in sorted(name for name in wanted if name >= request.after_group):
        after = request.after_topic if name == request.after_group else -1
        if not sees(name):
            if after < NUMBER_MAX:
                yield (name, NUMBER_MAX), None
            continue
        attachments = here.get(name) or sorted(known.of_group(name), key=_topic_id)
        if not attachments and after < 0:
            yield (name, 0), _Attached(known.groups[name], None, is_first=True)
        is_first = True
        for attachment in attachments:
            if attachment.topic_id > after:
                topic = catalog.topic_of(attachment.topic_id << QUEUE_BITS)
                assert topic is not None, attachment
                view = _attachment_view(attachment, topic)
                yield (name, topic.id), _Attached(known.groups[name], view, is_first)
                is_first = False


def _topic_id(attachment: Attachment) -> int:
    return attachment.topic_id


def _consumer_group_view(group: ConsumerGroup) -> ConsumerGroupView:
    policy = group.policy
    return ConsumerGroupView(
        name=group.name,
        mode=group.mode.value,
        schedule_ms=list(policy.schedule_ms),
        attempts_max=policy.attempts_max,
        invisible_ms=policy.invisible_ms,
        order=policy.order.value,
        is_blocking=policy.is_blocking,
        version=group.version,
        attachments=[],
        run=policy.run,
    )


def _attachment_view(attachment: Attachment, topic: Topic) -> AttachmentView:
    return AttachmentView(
        attachment.number, topic.name, topic.id, attachment.is_latest, attachment.queues
    )
