"""Moving a consumer group to another place of a topic, also one that runs.

A group that reads by offset has committed some. If its queues have owners, an epoch is drawn that
is higher than theirs, and the offsets are committed under it: that fences the owners, who cannot
undo it any more. Then the queues are granted to them once more, and they go on from there.

    draw epoch 90 ──> commit under 90, in each queue's log ──> regrant under 91 ──> read on

A member that comes while that goes on has a newer epoch, or was not there when it was looked for:
then all of it is done again.

A group that pops has no committed offsets: each data group is told where it goes on, and what its
consumers have in hand is fenced by that.
"""

from collections.abc import Mapping
from typing import NamedTuple

from raftmq.client.consume.membership import find_members
from raftmq.client.consume.offsets import (
    Stamp,
    after,
    by_partition,
    commit_offsets,
    committed_offsets,
    seconds_left,
)
from raftmq.client.message import QUEUE_BITS
from raftmq.client.routing.catalog import change_catalog
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.membership import RegrantQueues
from raftmq.wire.messages import FrameKind, TopicView
from raftmq.wire.popping import RESET_QUEUES_MAX, ResetGroup

from .consumer_groups import attach, find_groups, policy_of, put_group
from .dead_letters import POPPED, find_backlogs

_MASK = (1 << QUEUE_BITS) - 1


async def set_offsets(
    router: Router,
    topic: str,
    name: str,
    groups: Mapping[int, int],
    offsets: Mapping[int, int],
    timeout: float | None = None,
) -> None:
    """Set the committed offsets of a group. Safe to repeat; cancelling leaves some of them set.

    Args:
        router: finds the leaders.
        topic: the topic's name.
        name: the consumer group, `group@instance` for an instance of a broadcast group.
        groups: queue number → its partition group.
        offsets: queue number → the next message to read.
        timeout: seconds for all of it; None: the default.
    """
    left = seconds_left(router, timeout)
    done: set[int] = set()
    with after(done, "the reset of queues"):
        while True:
            is_running = await _is_running(router, topic, name, left())
            epoch = await draw_epoch(router, topic, name, left()) if is_running else 0
            fenced: list[int] = []
            sender = router.draw_request()
            for group, numbers in by_partition(groups).items():
                epochs = dict.fromkeys(numbers, epoch) if epoch else {}
                stamp = Stamp(epochs, 1, is_reset=True, sender=sender)
                part = {number: offsets[number] for number in numbers}
                fenced += await commit_offsets(router, group, name, part, left(), stamp=stamp)
                done |= {number & _MASK for number in numbers}
            if is_running:
                await _regrant(router, topic, name, left())
            if not fenced and (is_running or not await _is_running(router, topic, name, left())):
                return


async def _is_running(router: Router, topic: str, name: str, timeout: float) -> bool:
    """Whether a group has members that share out the queues of a topic."""
    return any(member.topic == topic for member in await find_members(router, name, timeout))


class Standing(NamedTuple):
    """Where a consumer group stands on a topic."""

    number: int
    """Its attachment, if it pops; 0: it reads by offset."""
    offsets: dict[int, int]
    """Queue number → the next message to read, or to hand out for the first time; only of queues
    where it stands somewhere."""


async def where_is(
    router: Router,
    topic: TopicView,
    name: str,
    groups: Mapping[int, int],
    timeout: float | None = None,
    *,
    must_take: bool = True,
) -> Standing:
    """Where a consumer group stands on a topic; `groups` as for `set_offsets`.

    Raises:
        Rejected: `UNKNOWN_GROUP`, it pops but takes no messages of this topic, and `must_take`.
    """
    left = seconds_left(router, timeout)
    found = await find_groups(router, name, None, left())
    if not found or found[0].mode not in POPPED:
        return Standing(0, await committed_offsets(router, groups, name, left()))
    numbers = [each.number for each in found[0].attachments if each.topic == topic.name]
    if not numbers and must_take:
        message = f"consumer group {name!r} takes no messages of {topic.name!r}: attach it first"
        raise Rejected(Reason.UNKNOWN_GROUP, message)
    backlogs = await find_backlogs(router, [topic], found, left())
    at = {topic.id << QUEUE_BITS | each.queue: each.next for each in backlogs}
    offsets = {number: at[number] for number in groups if number in at}
    return Standing(numbers[0] if numbers else 0, offsets)


async def go_on(
    router: Router,
    topic: str,
    name: str,
    standing: Standing,
    groups: Mapping[int, int],
    offsets: Mapping[int, int],
    timeout: float | None = None,
) -> None:
    """Let a consumer group that stands there go on elsewhere, however it is served."""
    left = seconds_left(router, timeout)
    if standing.number:
        await _set_popping(router, standing.number, groups, offsets, left())
    else:
        await set_offsets(router, topic, name, groups, offsets, left())


async def make_like(
    router: Router, topic: str, source: str, name: str, timeout: float | None = None
) -> None:
    """If a group pops, let another one pop messages of a topic, too; it is made with the same
    settings if there is none of its name. One that reads by offset stays so."""
    left = seconds_left(router, timeout)
    found = await find_groups(router, source, None, left())
    others = await find_groups(router, name, None, left())
    if not found or found[0].mode not in POPPED:
        return
    settings = found[0]
    if not others:
        policy = policy_of(
            settings.schedule,
            settings.attempts_max,
            settings.invisible,
            settings.order,
            settings.is_blocking,
        )
        await put_group(router, name, settings.mode, policy, left())
    mode = others[0].mode if others else settings.mode
    if mode in POPPED:
        with after(() if others else [name], "consumer group"):
            await attach(router, topic, name, mode, timeout=left())


async def begin(
    router: Router,
    number: int,
    groups: Mapping[int, int],
    done: list[str],
    timeout: float | None = None,
) -> None:
    """Let an attachment begin now, at the place it was given: `groups` as for `set_offsets`.

    A partition group hears of it by the first command that names it; this one moves no queue.
    `done` gets a line for each that has heard: the caller says what is done if the rest fails.
    """
    left = seconds_left(router, timeout)
    for group in by_partition(groups):
        message = ResetGroup(group, number, [], [])
        await router.call_leader(group, FrameKind.RESET, message, timeout=left(), is_change=True)
        done.append(f"beginning in partition group {group}")


async def _set_popping(
    router: Router,
    number: int,
    groups: Mapping[int, int],
    offsets: Mapping[int, int],
    timeout: float | None = None,
) -> None:
    """Let an attachment go on elsewhere: `groups` and `offsets` as for `set_offsets`."""
    left = seconds_left(router, timeout)
    done: list[int] = []
    for group, queues in by_partition(groups).items():
        for start in range(0, len(queues), RESET_QUEUES_MAX):
            part = list(queues)[start : start + RESET_QUEUES_MAX]
            there = [offsets[each] for each in part]
            message = ResetGroup(group, number, part, there, router.draw_request())
            with after(done, "the reset of queues"):
                await router.call_leader(
                    group, FrameKind.RESET, message, timeout=left(), is_change=True
                )
            done += [number & _MASK for number in part]


async def draw_epoch(router: Router, topic: str, name: str, timeout: float | None = None) -> int:
    """An owner epoch for a group on a topic, higher than any that was drawn before."""
    return await _regrant(router, topic, name, timeout, is_epoch_only=True)


async def _regrant(
    router: Router,
    topic: str,
    name: str,
    timeout: float | None,
    *,
    is_epoch_only: bool = False,
) -> int:
    command = RegrantQueues(topic, name, is_epoch_only)
    return int(await change_catalog(router, command, timeout))
