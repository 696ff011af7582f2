"""Offsets: questions and commits to the leaders of partition groups."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from raftmq.client.routing.requests import after, ask_for_pages, ask_leader, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.assignment import (
    CommitOffsets,
    Committed,
    CommittedOffset,
    CommittedOffsets,
    OffsetsCommitted,
    QueueOffset,
)
from raftmq.wire.messages import FindOffset, FindOffsets, FoundOffset, FoundOffsets, TopicView
from raftmq.wire.numbers import LIST_MAX

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(time: datetime) -> int:
    """Milliseconds since 1970.

    Raises:
        Rejected: `BAD_ARGUMENT`, the time has no time zone.
    """
    if time.tzinfo is None:
        message = f"{time} has no time zone: add tzinfo=datetime.UTC, or use .astimezone()"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    # In whole numbers: a float would lose a millisecond at times.
    return max(0, (time - EPOCH) // timedelta(milliseconds=1))


def queues_of(view: TopicView, queues: Iterable[int] | None = None) -> dict[int, int]:
    """Queue number → partition group, of all queues of a topic or of the named ones.

    Raises:
        Rejected: `BAD_ARGUMENT`, the topic has no such queue.
    """
    wanted = list(range(len(view.groups)) if queues is None else queues)
    for queue in wanted:
        if not 0 <= queue < len(view.groups):
            message = f"topic {view.name!r} has queues 0 to {len(view.groups) - 1}, no {queue}"
            raise Rejected(Reason.BAD_ARGUMENT, message)
    return {view.id << QUEUE_BITS | queue: view.groups[queue] for queue in wanted}


def by_partition(groups: Mapping[int, int]) -> dict[int, list[int]]:
    """Partition group → its queues, from queue → partition group."""
    queues: dict[int, list[int]] = {}
    for queue_number, group in groups.items():
        queues.setdefault(group, []).append(queue_number)
    return queues


async def find_offsets(
    router: Router, groups: Mapping[int, int], at: int, timeout: float | None = None
) -> dict[int, FoundOffset]:
    """Queue number → the leader's answer about `at` (see `FindOffset.at`).

    Args:
        router: finds the leaders.
        groups: queue number → its partition group.
        at: a time in milliseconds, `EARLIEST` or `LATEST`.
        timeout: seconds for all partition groups; None: the default.
    """
    found: dict[int, FoundOffset] = {}
    left = seconds_left(router, timeout)
    for group, queues in by_partition(groups).items():
        for part in _parts(queues):
            question = FindOffsets([FindOffset(queue, at) for queue in part])
            reply = await ask_leader(
                router, question, FoundOffsets, timeout=left(), queue_number=max(part), group=group
            )
            found |= {each.queue: each for each in reply.queues}
    return found


def _parts(queues: Sequence[int]) -> Iterator[Sequence[int]]:
    return (queues[at : at + LIST_MAX] for at in range(0, len(queues), LIST_MAX))


async def committed_of(
    router: Router, partition_group: int, name: str | None, timeout: float | None = None
) -> list[CommittedOffset]:
    """The committed offsets of a consumer group (None: of all) in a partition group."""
    question = Committed(partition_group, name)
    pages = ask_for_pages(router, question, CommittedOffsets, timeout=timeout)
    return [offset async for page in pages for offset in page.offsets]


async def committed_offsets(
    router: Router, groups: Mapping[int, int], name: str, timeout: float | None = None
) -> dict[int, int]:
    """Queue number → a consumer group's committed offset; queues without one are left out."""
    found: dict[int, int] = {}
    left = seconds_left(router, timeout)
    for group in by_partition(groups):
        for offset in await committed_of(router, group, name, left()):
            if offset.queue in groups:
                found[offset.queue] = offset.offset
    return found


class Stamp(NamedTuple):
    """The fields of a commit beside the offsets."""

    epochs: Mapping[int, int] = MappingProxyType({})
    """Queue → the owner epoch under which it is owned; empty: no queue has an owner."""
    sequence: int = 0
    """The owner's or sender's number of this commit; it grows."""
    kept_ms: int = 0
    """Forget the offsets this long after the last commit; 0: never."""
    is_reset: bool = False
    """True for an operator's reset: it counts although the queues have owners."""
    sender: int = 0
    """Without epochs: a random number of the numbering consumer; 0: a repeat counts, too."""


async def commit_offsets(
    router: Router,
    partition_group: int,
    name: str,
    offsets: Mapping[int, int],
    timeout: float | None = None,
    *,
    stamp: Stamp = Stamp(),  # noqa: B008  # it cannot be changed
) -> list[int]:
    """Commit offsets of queues of one partition group; returns the fenced queues.

    Raises:
        Unavailable: the time ran out, and nothing is committed.
        OutcomeUnknown: the time ran out, and some offsets are or may be committed.
    """
    fenced: list[int] = []
    committed, done = 0, list[str]()
    left = seconds_left(router, timeout)
    for part in _parts(list(offsets)):
        items = [QueueOffset(queue, offsets[queue], stamp.epochs.get(queue, 0)) for queue in part]
        message = CommitOffsets(
            name, items, stamp.sequence, stamp.kept_ms, stamp.is_reset, stamp.sender
        )
        with after(done, "the commit of"):
            reply = await ask_leader(
                router,
                message,
                OffsetsCommitted,
                timeout=left(),
                queue_number=max(part),
                group=partition_group,
            )
        fenced += reply.fenced
        committed += len(part)
        done = [f"{committed} queues"]
    return fenced
