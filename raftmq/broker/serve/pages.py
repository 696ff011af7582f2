"""Long lists in pages: no answer is longer than a frame's header may be.

A cluster may have 100,000 topics, and a partition group offsets of as many consumer groups. Such a
list goes out in pages of about `PAGE_BYTES`; the client asks for the entries after the last one it
got. Each page is true when it is made. Entries may change between two pages, so a list is no
snapshot, but an entry that is there all the time comes exactly once.

Invariants:
- A page holds at least one entry if there is one, and goes on strictly after `after`.
- `PAGE_BYTES` and the largest entry together stay far below `wire.frame.HEADER_BYTES_MAX`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from raftmq.machine.catalog.catalog import Catalog, Topic
from raftmq.machine.catalog.consumer_groups import Attachment, ConsumerGroup
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.consumer_groups import (
    AttachmentView,
    ConsumerGroupView,
    FindConsumerGroups,
    FoundConsumerGroups,
)
from raftmq.wire.frame import HEADER_BYTES_MAX
from raftmq.wire.messages import (
    Committed,
    CommittedOffset,
    CommittedOffsets,
    FindSubscriptions,
    FoundSubscriptions,
    SubscriptionView,
    TopicView,
)

Sees = Callable[[str], bool]
"""Whether the one who asks may see the resource of this name: see `raftmq.broker.access`."""

PAGE_BYTES = 1024 * 1024
"""About the length of a page. A topic of 65,536 queues adds 330 kB at the most."""
STATUS_GROUPS = 500
"""Partition groups described in one answer to STATUS: about half a kilobyte each."""
LOOKS_MAX = 20_000
"""Topics that are looked at for one page, whether the one who asks may see them or not."""
QUESTIONS_MAX = 5_000
"""Queues in one request for offsets: each takes some microseconds of the event loop."""

_NUMBER_BYTES = 9
"""The longest integer in CBOR."""
assert QUESTIONS_MAX * (1 + 4 * _NUMBER_BYTES) < HEADER_BYTES_MAX


def _everything(_: str) -> bool:
    return True


def topics_page(
    catalog: Catalog, names: Sequence[str] | None, after: int, sees: Sees = _everything
) -> tuple[list[TopicView], int]:
    """The topics of these names (None: all) that `sees` shows, by number, after number `after`.

    Returns:
        The page, and the number after which the next page goes on; 0: this page is the last.
    """
    views: list[TopicView] = []
    size = 0
    looked, last = 0, after
    for topic in _topics(catalog, names):
        if topic.id <= after:
            continue
        if size >= PAGE_BYTES or looked >= LOOKS_MAX:
            return views, last
        looked, last = looked + 1, topic.id
        if not sees(topic.name):
            continue
        views.append(TopicView(topic.name, topic.id, topic.groups))
        size += 3 * _NUMBER_BYTES + len(topic.name) + 5 * len(topic.groups)
    return views, 0


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
) -> CommittedOffsets:
    """Committed offsets by consumer group and queue, after the entry that the request names.

    `passed` says how many messages of a queue a consumer group passed over, `sees` shows groups.
    """
    offsets: list[CommittedOffset] = []
    size = 0
    for offset in _committed(machine, request, passed, sees):
        if size >= PAGE_BYTES:
            return CommittedOffsets(offsets, is_cut=True)
        offsets.append(offset)
        size += 5 * _NUMBER_BYTES + len(offset.consumer_group.encode())
    return CommittedOffsets(offsets)


def _committed(
    machine: PartitionMachine,
    request: Committed,
    passed: Callable[[int, str], int],
    sees: Sees,
) -> Iterator[CommittedOffset]:
    name = request.consumer_group
    wanted = machine.committed if name is None else {name} & machine.committed.keys()
    after = (request.after_group, request.after_queue)
    for group in sorted(group for group in wanted if group >= request.after_group):
        # What an instance commits, `group@instance`, is the group's.
        if not sees(group.partition("@")[0]):
            continue
        for queue, (offset, timestamp) in sorted(machine.committed[group].items()):
            if (group, queue) > after:
                yield CommittedOffset(group, queue, offset, timestamp, passed(queue, group))


def subscriptions_page(
    catalog: Catalog, request: FindSubscriptions, sees: Sees = _everything
) -> FoundSubscriptions:
    """Subscriptions by topic and consumer group, after the entry that the request names; `sees`
    shows groups."""
    views: list[SubscriptionView] = []
    size = 0
    for view in _subscriptions(catalog, request):
        if not sees(view.consumer_group):
            continue
        if size >= PAGE_BYTES:
            return FoundSubscriptions(views, is_cut=True)
        views.append(view)
        size += 4 * _NUMBER_BYTES
        size += sum(len(text.encode()) for text in (view.topic, view.consumer_group))
        size += len(view.expression.encode("utf-8", "surrogatepass"))
    return FoundSubscriptions(views)


def _subscriptions(catalog: Catalog, request: FindSubscriptions) -> Iterator[SubscriptionView]:
    after = (request.after_topic, request.after_group)
    of_topic, only = catalog.subscribers.of_topic, request.consumer_group
    for topic in _topics(catalog, None if request.topic is None else [request.topic]):
        found = of_topic.get(topic.id, {})
        for name in sorted(found) if only is None else {only} & found.keys():
            if (topic.id, name) > after:
                each = found[name]
                yield SubscriptionView(topic.name, topic.id, name, each.expression, each.version)


def consumer_groups_page(
    catalog: Catalog, request: FindConsumerGroups, sees: Sees = _everything
) -> FoundConsumerGroups:
    """Consumer groups that `sees` shows by name, after the attachment that the request names.

    A group whose attachments do not fit into one page comes again in the next, with the others.
    """
    views: list[ConsumerGroupView] = []
    size = 0
    for group, attachment in _attachments(catalog, request):
        if not sees(group.name):
            continue
        if size >= PAGE_BYTES:
            return FoundConsumerGroups(views, is_cut=True)
        if not views or views[-1].name != group.name:
            views.append(_consumer_group_view(group))
            size += len(group.name.encode("utf-8", "surrogatepass"))
            size += _NUMBER_BYTES * (8 + len(group.policy.schedule_ms))
        if attachment is not None:
            topic = catalog.topic_of(attachment.topic_id << QUEUE_BITS)
            assert topic is not None, attachment
            views[-1].attachments.append(_attachment_view(attachment, topic))
            size += 4 * _NUMBER_BYTES + len(topic.name)
    return FoundConsumerGroups(views)


def _attachments(
    catalog: Catalog, request: FindConsumerGroups
) -> Iterator[tuple[ConsumerGroup, Attachment | None]]:
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
        attachments = here.get(name) or sorted(known.of_group(name), key=_topic_id)
        if not attachments and after < 0:
            yield known.groups[name], None
        for attachment in attachments:
            if attachment.topic_id > after:
                yield known.groups[name], attachment


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
