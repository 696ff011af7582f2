"""A look at the cluster: the records to read, and the facts that are in no event."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .minute_fold import Attachment
from .minute_ledger import Look, Standing

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient
    from raftmq.client import Backlog, GroupSettings

POPPED = ("pop", "ordered")
"""Modes of groups that leave events."""


def look_at(mq: "BlockingClient", *, has_standings: bool) -> Look:
    """Ask the cluster; about three requests, and one a partition group.

    Args:
        mq: a client.
        has_standings: ask for the lags of groups that read by offset, too.

    Raises:
        Unavailable: a leader was not found in time.
    """
    now = time.time_ns() // 1_000_000
    view = mq.admin.cluster()
    # Ranges come before groups are listed: a group with events in them is in the list, or is gone.
    ranges: dict[int, tuple[int, int]] = {}
    for each in view.groups:
        if each.id:
            found = mq.events(each.id, bytes_max=0)
            ranges[each.id] = (found.first, found.end)
    groups = mq.admin.consumer_groups()
    topics = tuple(sorted(topic.name for topic in mq.admin.list_topics()))
    starts = _starts(mq.admin.backlogs())
    attached = list(_attachments(groups, starts))
    modes = {
        (attachment.topic, each.name): each.mode
        for each in groups
        if each.mode in POPPED
        for attachment in each.attachments
        if attachment.topic in topics
    }
    by_offset = tuple(_standings(mq, groups)) if has_standings else ()
    return Look(now, ranges, topics, modes, tuple(attached), by_offset)


def _starts(backlogs: "list[Backlog]") -> dict[tuple[str, str], dict[int, int]]:
    """By group and topic: queues in which the group has touched nothing → where it begins."""
    starts: dict[tuple[str, str], dict[int, int]] = {}
    for each in backlogs:
        # A queue is untouched if the group has no message in any of these states.
        touched = (each.leased, each.waiting, each.ready, each.dead, each.acked, each.passed)
        if not any((*touched, each.lost, each.purged)):
            starts.setdefault((each.group, each.topic), {})[each.queue] = each.next
    return starts


def _attachments(
    groups: "list[GroupSettings]", starts: Mapping[tuple[str, str], dict[int, int]]
) -> Iterator[Attachment]:
    for each in groups:
        if each.mode in POPPED:
            for its in each.attachments:
                begins = starts.get((each.name, its.topic), {})
                yield Attachment(its.topic, each.name, its.number, its.is_latest, begins)


def _standings(mq: "BlockingClient", groups: "list[GroupSettings]") -> Iterator[Standing]:
    modes = {each.name: each.mode for each in groups}
    for each in mq.admin.list_groups():
        mode = modes.get(each.name.partition("@")[0], "pull")
        lags: dict[str, list[int | None]] = {}
        for offset in each.offsets:
            lags.setdefault(offset.topic, []).append(offset.lag)
        if mode not in POPPED:
            for topic, of_queues in sorted(lags.items()):
                yield Standing(topic, each.name, mode, _known(of_queues))


def _known(lags: list[int | None]) -> int | None:
    """The sum of the known lags; None: the sum is 0, and a lag is not known. A known sum above 0
    counts, so an alert does not end because one queue has no commit yet."""
    return sum(lag or 0 for lag in lags) or (None if None in lags else 0)
