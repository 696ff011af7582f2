"""Look up in the log, by handle, whether messages were acknowledged before.

A node keeps the results of each consumer's last settlement only, so a second `ack` of a handle by
another process is fenced like a late one. The log tells the two apart: it holds the record that
acknowledged the message, with the lease.

    handle ─> the attachment's topic ─> its queues in that partition group ─> WHY ─> acked, lease?

Left out: other settlements. Another hand-out may follow a nack or a rejection, so an earlier nack
does not tell where the message is now.
"""

from collections.abc import Iterable, Iterator, Sequence

from raftmq.client.admin.consumer_groups import find_groups
from raftmq.client.admin.traces import events_of
from raftmq.client.routing.requests import find_topic, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.message_events import EventKind
from raftmq.wire.messages import TopicView

from .handles import Handle


async def find_acked(
    router: Router, handles: Sequence[Handle], timeout: float | None = None
) -> set[Handle]:
    """The handles whose messages were acknowledged under the leases that the handles name.

    Each message is looked up by itself. A record that retention dropped is not found.

    Raises:
        Unavailable: a leader was not found in time.
    """
    left = seconds_left(router, timeout)
    topics = await _topics(router, {handle.number for handle in handles}, left())
    lies_in: dict[tuple[int, int], int] = {}
    found: set[Handle] = set()
    for handle in dict.fromkeys(handles):
        lease = (handle.partition_group, handle.token)
        # All messages of a lease are of one queue.
        known = (lies_in[lease],) if lease in lies_in else _queues(topics, handle)
        for queue in known:
            if await _is_acked(router, handle, queue, left()):
                lies_in[lease] = queue
                found.add(handle)
                break
    return found


async def _topics(
    router: Router, numbers: Iterable[int], timeout: float | None
) -> dict[int, TopicView]:
    """The topics of attachments, without attachments that are gone."""
    left = seconds_left(router, timeout)
    found: dict[int, TopicView] = {}
    for settings in await find_groups(router, timeout=left()):
        for each in settings.attachments:
            if each.number in numbers:
                found[each.number] = await find_topic(router, each.topic, left())
    return found


def _queues(topics: dict[int, TopicView], handle: Handle) -> Iterator[int]:
    """The numbers of the queues that a handle's lease may be of."""
    topic = topics.get(handle.number)
    for queue, group in enumerate(() if topic is None else topic.groups):
        if group == handle.partition_group:
            assert topic is not None
            yield topic.id << QUEUE_BITS | queue


async def _is_acked(router: Router, handle: Handle, queue: int, timeout: float | None) -> bool:
    ack = (EventKind.ACKED, handle.number, handle.token)
    try:
        async for page in events_of(router, handle.partition_group, queue, handle.offset, timeout):
            if any((event.kind, event.number, event.token) == ack for event in page.events):
                return True
    except Rejected as error:
        if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
            raise
    return False
