"""Offsets: questions and commits to the leaders of partition groups."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

import anyio

from raftmq.client.routing.router import Router
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.wire.assignment import CommitOffsets, OffsetsCommitted, QueueOffset
from raftmq.wire.codec import unpack
from raftmq.wire.messages import (
    Committed,
    CommittedOffset,
    CommittedOffsets,
    FindOffset,
    FindOffsets,
    FoundOffset,
    FoundOffsets,
    FrameKind,
)

QUEUES_AT_ONCE = 10_000
"""Queues in one request: a broker refuses headers over 1 MiB and answers at most 20,000."""


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


def seconds_left(router: Router, timeout: float | None) -> Callable[[], float]:
    """The seconds left of a timeout that begins now, for calls that ask several leaders."""
    deadline = anyio.current_time() + (router.seconds_max if timeout is None else timeout)
    return lambda: max(deadline - anyio.current_time(), 0.0)


@contextmanager
def after(done: Collection[int | str], what: str) -> Iterator[None]:
    """For a call in several parts: turn `Unavailable` into `OutcomeUnknown` once a part is done.

    Raises:
        OutcomeUnknown: the body raised `Unavailable`, or the client was closed under it, and a part
            was done; the text names the parts done.
    """
    try:
        yield
    except RaftmqError as error:
        # The bare class: the client was closed.
        if not done or type(error) not in {RaftmqError, Unavailable}:
            raise
        raise OutcomeUnknown(f"{error}; done before: {what} {sorted(done)}") from error


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
            frame = await router.call_leader(
                group, FrameKind.OFFSETS, question, timeout=left(), queue_number=max(part)
            )
            found |= {reply.queue: reply for reply in unpack(FoundOffsets, frame.header).queues}
    return found


def _parts(queues: Sequence[int]) -> Iterator[Sequence[int]]:
    return (queues[at : at + QUEUES_AT_ONCE] for at in range(0, len(queues), QUEUES_AT_ONCE))


async def committed_of(
    router: Router, partition_group: int, name: str | None, timeout: float | None = None
) -> list[CommittedOffset]:
    """The committed offsets of a consumer group (None: of all) in a partition group.

    Long answers come in pages, all within the timeout.
    """
    offsets: list[CommittedOffset] = []
    left = seconds_left(router, timeout)
    question = Committed(partition_group, name)
    while True:
        frame = await router.call_leader(
            partition_group, FrameKind.COMMITTED, question, timeout=left()
        )
        page = unpack(CommittedOffsets, frame.header)
        offsets += page.offsets
        if not page.is_cut:
            return offsets
        last = page.offsets[-1]
        question = Committed(partition_group, name, last.consumer_group, last.queue)


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
            frame = await router.call_leader(
                partition_group,
                FrameKind.COMMIT,
                message,
                timeout=left(),
                is_change=True,
                queue_number=max(part),
            )
        fenced += unpack(OffsetsCommitted, frame.header).fenced
        committed += len(part)
        done = [f"{committed} queues"]
    return fenced
