"""The first cursors of a consumer that reads by offset, and the queues older than its place."""

from collections.abc import Sequence

from raftmq.client.admin.consumer_groups import find_groups
from raftmq.client.routing.router import Router
from raftmq.wire.messages import TopicView

from .offsets import committed_offsets, find_offsets, queues_of
from .positions import Cursor
from .start import Exactly


async def cursors_at(
    router: Router,
    view: TopicView,
    queues: Sequence[int],
    start: int | Exactly,
    *,
    name: str | None,
    is_owner: bool,
) -> list[Cursor]:
    """Cursors at the committed offsets, and at `start` for queues without one.

    Args:
        router: finds the leaders.
        view: the topic.
        queues: within the topic.
        start: `EARLIEST`, `LATEST`, a time in milliseconds, or one offset for all.
        name: the name under which offsets are committed; None: none are committed.
        is_owner: True for a member, whose cursors know the committed offsets.

    Raises:
        Unavailable: a leader was not found in time.
    """
    groups = queues_of(view, queues)
    found: dict[int, int] = {}
    if name is not None:
        found = await committed_offsets(router, groups, name)
    missing = {number: group for number, group in groups.items() if number not in found}
    if isinstance(start, Exactly):
        found |= dict.fromkeys(missing, start.offset)
    elif missing:
        replies = await find_offsets(router, missing, start)
        found |= {number: reply.offset for number, reply in replies.items()}
    cursors = [
        Cursor(queue_number=number, group=group, offset=found[number])
        for number, group in groups.items()
    ]
    for cursor in cursors if is_owner else ():
        if cursor.queue_number not in missing:
            cursor.committed = cursor.fetched
    return cursors


async def count_old(router: Router, view: TopicView, group: str | None, name: str | None) -> int:
    """Number of queues, from the first, that are older than a member's place in the topic.

    An instance with committed offsets had taken up every queue of its time: a queue without a
    committed offset was added since.

    Args:
        router: finds the leaders.
        view: the topic.
        group: the consumer group.
        name: the name under which an instance commits; None: all queues are old.

    Raises:
        Unavailable: a leader was not found in time.
    """
    groups = queues_of(view)
    # Offsets of a group deleted a moment ago may still exist.
    if name is None or not await find_groups(router, group):
        return len(groups)
    return 0 if await committed_offsets(router, groups, name) else len(groups)
