"""Moving a consumer group, also a running one, to another place of a topic.

A group that reads by offset has committed offsets. If its queues have owners, the reset draws an
epoch higher than theirs and commits the offsets under that epoch: this fences the owners, so that
they cannot undo the reset. Then the queues are granted to the owners again, and the owners go on
from there.

    draw epoch 90 ──> commit under 90, in each queue's log ──> regrant under 91 ──> read on

A member that joins during the reset may have a newer epoch, or was missed when the reset looked for
members: then the whole reset is repeated.

A group that pops has no committed offsets: the reset sets the group's place in each data group,
which fences the messages that its consumers have in hand.
"""

from collections.abc import Mapping
from typing import NamedTuple

from raftmq.client.consume.membership import find_members
from raftmq.client.consume.offsets import Stamp, by_partition, commit_offsets, committed_offsets
from raftmq.client.routing.requests import after, ask_leader, change_catalog, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.membership import RegrantQueues
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.wire.messages import Done, TopicView
from raftmq.wire.popping import RESET_QUEUES_MAX, ResetGroup

from .consumer_groups import attach, find_groups, policy_of, put_group
from .dead_letters import POPPED, find_backlogs


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
        timeout: seconds for the whole reset; None: the default.
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
                done |= {number & QUEUE_MASK for number in numbers}
            if is_running:
                await _regrant(router, topic, name, left())
            # A member that joined during the reset could commit old offsets: repeat the reset.
            if not fenced and (is_running or not await _is_running(router, topic, name, left())):
                return


async def _is_running(router: Router, topic: str, name: str, timeout: float) -> bool:
    """Whether a group has members that share out the queues of a topic."""
    return any(member.topic == topic for member in await find_members(router, name, timeout))


class Standing(NamedTuple):
    """The places of a consumer group in a topic."""

    number: int
    """The number of the attachment, if the group pops; 0: it reads by offset."""
    offsets: dict[int, int]
    """Queue number → the next message to read, or to hand out for the first time; queues without a
    place are left out."""


async def where_is(
    router: Router,
    topic: TopicView,
    name: str,
    groups: Mapping[int, int],
    timeout: float | None = None,
    *,
    must_take: bool = True,
) -> Standing:
    """The places of a consumer group in a topic; `groups` as for `set_offsets`.

    Raises:
        Rejected: `UNKNOWN_GROUP`, with `must_take` the group pops, but not this topic.
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
    """Move a consumer group from `standing` to `offsets`, whatever its mode."""
    left = seconds_left(router, timeout)
    if standing.number:
        await _set_popping(router, standing.number, groups, offsets, left())
    else:
        await set_offsets(router, topic, name, groups, offsets, left())


async def make_like(
    router: Router, topic: str, source: str, name: str, timeout: float | None = None
) -> None:
    """If `source` pops, let the group `name` pop a topic's messages, too. A missing group is made
    with the settings of `source`; a group that reads by offset stays as it is."""
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
            settings.run,
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
    """Let an attachment begin now, at its configured start: `groups` as for `set_offsets`.

    A partition group learns of an attachment from the first command that names it; this command
    moves no queue. `done` gets a line for each partition group that has learnt of it: the caller
    names the parts done if the rest fails.
    """
    left = seconds_left(router, timeout)
    for group in by_partition(groups):
        request = ResetGroup(group, number, [], [])
        await ask_leader(router, request, Done, timeout=left())
        done.append(f"beginning in partition group {group}")


async def _set_popping(
    router: Router,
    number: int,
    groups: Mapping[int, int],
    offsets: Mapping[int, int],
    timeout: float | None = None,
) -> None:
    """Move an attachment to `offsets`: `groups` and `offsets` as for `set_offsets`."""
    left = seconds_left(router, timeout)
    done: list[int] = []
    for group, queues in by_partition(groups).items():
        for start in range(0, len(queues), RESET_QUEUES_MAX):
            part = list(queues)[start : start + RESET_QUEUES_MAX]
            there = [offsets[each] for each in part]
            request = ResetGroup(group, number, part, there, router.draw_request())
            with after(done, "the reset of queues"):
                await ask_leader(router, request, Done, timeout=left())
            done += [number & QUEUE_MASK for number in part]


async def draw_epoch(router: Router, topic: str, name: str, timeout: float | None = None) -> int:
    """An owner epoch for a group on a topic, higher than any drawn before."""
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
