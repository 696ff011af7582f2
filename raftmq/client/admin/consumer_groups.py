"""Consumer groups with a mode and a policy: reads and changes at the system group's leader."""

from collections.abc import Sequence
from typing import NamedTuple

import anyio

from raftmq.client.arguments import member_of
from raftmq.client.consume.offsets import committed_of
from raftmq.client.routing.requests import (
    ask_for_pages,
    ask_leader,
    change_catalog,
    find_topic,
    read_table,
    seconds_left,
)
from raftmq.client.routing.router import Router
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.pop.policy import RUN_MAX, Mode, Order, Policy
from raftmq.wire.consumer_groups import (
    ConsumerGroupView,
    FindConsumerGroups,
    ForgetGroup,
    FoundConsumerGroups,
)
from raftmq.wire.messages import Done

SECONDS_MAX = 1_000_000
"""Upper bound of a policy's times here; the catalog checks the allowed range."""
USUAL = Policy()
"""The policy of a group without a policy of its own."""
AS_IT_IS = 0
"""The `run` of a policy in a command: see `Policy`."""


class GroupAttachment(NamedTuple):
    """An attachment: a consumer group takes messages of a topic. The wire's `AttachmentView`,
    without the topic's number."""

    topic: str
    """Name of the topic."""
    number: int
    """The attachment's number; a group that is detached and attached again gets another one."""
    is_latest: bool
    """True: the group began at the end of the queues that the topic had then, else with the first
    message that was kept."""
    queues: int
    """Number of the topic's queues then; later queues are read from their first message."""


class GroupSettings(NamedTuple):
    """Settings of a consumer group.

    Times are in seconds, as the calls take them; milliseconds in the wire's `ConsumerGroupView`.
    The attachments are those of all pages of the answer.
    """

    name: str
    """The group's name."""
    mode: str
    """`pop`, `ordered`, `broadcast` or `pull`."""
    schedule: tuple[float, ...]
    """Seconds that a message waits after its first failure, the second, …; the last repeats."""
    attempts_max: int
    """A message that failed this many times is a dead letter."""
    invisible: float
    """Seconds for which messages are one consumer's alone unless it asks for another time."""
    order: str
    """For an ordered group: the unit kept in order, `key` or `queue`."""
    is_blocking: bool
    """For an ordered group: True if a message that failed for the last time blocks the messages
    after it."""
    attachments: tuple[GroupAttachment, ...]
    """The attachments to topics, in the order of the topics' numbers."""
    run: int = 1
    """For a group ordered by key: how many messages of one key a consumer may have in hand."""


def policy_of(
    schedule: Sequence[float] | None,
    attempts_max: int | None,
    invisible: float | None,
    order: str,
    is_blocking: bool,
    run: int | None = None,
) -> Policy:
    """A policy with times in seconds; None: as usual.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such order or run.
    """
    if run is not None and not 1 <= run <= RUN_MAX:
        message = f"a consumer has 1 to {RUN_MAX} messages of a key in hand, not {run}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return Policy(
        USUAL.schedule_ms if schedule is None else tuple(_ms(delay) for delay in schedule),
        USUAL.attempts_max if attempts_max is None else attempts_max,
        USUAL.invisible_ms if invisible is None else _ms(invisible),
        member_of(Order, order, "order"),
        is_blocking,
        AS_IT_IS if run is None else run,
    )


def mode_of(name: str) -> Mode:
    """The mode of this name.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such mode.
    """
    return member_of(Mode, name, "mode")


def _ms(seconds: float) -> int:
    if not 0 <= seconds <= SECONDS_MAX:
        message = f"{seconds} is no number of seconds that a group can wait: 0 to {SECONDS_MAX}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return round(seconds * 1000)


def require_no_instance(name: str) -> None:
    """Refuse the name of an instance: its offsets would be deleted with the broadcast group.

    Raises:
        Rejected: `BAD_NAME`.
    """
    if "@" in name:
        message = f"{name[:140]!r} names an instance of a broadcast group: take a name without '@'"
        raise Rejected(Reason.BAD_NAME, message)


async def put_group(
    router: Router, name: str, mode: str, policy: Policy, timeout: float | None = None
) -> None:
    """Create a consumer group, or give it another policy."""
    require_no_instance(name)
    await change_catalog(router, PutConsumerGroup(name, mode_of(mode), policy), timeout)


async def delete_group(
    router: Router, name: str, *, is_forced: bool = False, timeout: float | None = None
) -> None:
    """Delete a consumer group: see `Admin.delete_consumer_group`. The timeout is for all requests.

    Cancelling leaves the group deleted or not; a deletion that has begun goes on by itself.
    """
    left = seconds_left(router, timeout)
    has_offsets = False
    view = await read_table(router, [], left())
    groups = [group.id for group in view.groups if group.id != SYSTEM_GROUP]
    # The catalog has no group that only commits offsets: its offsets prove that it exists.
    if not await find_groups(router, name, None, left()):
        for group in groups:
            has_offsets = has_offsets or bool(await committed_of(router, group, name, left()))
    command = DeleteConsumerGroup(
        name, is_whole=True, is_forced=is_forced, has_offsets=has_offsets, seen=view.version
    )
    index = int(await change_catalog(router, command, left()))
    silent: dict[int, RaftmqError] = {}

    async def forget(group: int) -> None:
        request = ForgetGroup(group, index)
        try:
            await ask_leader(router, request, Done, timeout=left())
        except RaftmqError as error:
            silent[group] = error

    async with anyio.create_task_group() as tasks:
        for group in groups:
            tasks.start_soon(forget, group)
    if silent:
        numbers = ", ".join(map(str, sorted(silent)))
        message = (
            f"consumer group {name!r} is deleted, but its offsets in partition groups {numbers} "
            "are not removed yet: they go by themselves as soon as these groups have a leader; "
            f"{next(iter(silent.values()))}"
        )
        raise OutcomeUnknown(message)


async def attach(
    router: Router,
    topic: str,
    group: str,
    mode: str,
    *,
    is_latest: bool = False,
    timeout: float | None = None,
) -> int:
    """Attach a consumer group to a topic; returns the number of the attachment, also of an existing
    one: it names the group in requests to partition groups."""
    require_no_instance(group)
    command = Attach(topic, group, mode_of(mode), is_latest, AS_IT_IS)
    number: int
    number, _policy_version = await change_catalog(router, command, timeout)
    return number


async def detach(router: Router, topic: str, group: str, timeout: float | None = None) -> int:
    """Detach a consumer group from a topic; returns the attachment's number, 0: there was none."""
    left = seconds_left(router, timeout)
    found = await find_groups(router, group, topic, left())
    if not found or not found[0].attachments:
        await find_topic(router, topic, left())
        return 0
    number = found[0].attachments[0].number
    return int(await change_catalog(router, Detach(topic, group, number), left()))


async def find_groups(
    router: Router,
    name: str | None = None,
    topic: str | None = None,
    timeout: float | None = None,
) -> list[GroupSettings]:
    """Consumer groups by name: one group or all, attached to one topic or all."""
    found: dict[str, GroupSettings] = {}
    question = FindConsumerGroups(name, topic)
    pages = ask_for_pages(router, question, FoundConsumerGroups, timeout=timeout)
    async for page in pages:
        for view in page.groups:
            settings = _settings(view)
            before = found.get(view.name)
            if before is not None:
                settings = settings._replace(attachments=before.attachments + settings.attachments)
            found[view.name] = settings
    return list(found.values())


async def require_mode(router: Router, name: str, mode: Mode, timeout: float) -> None:
    """Raise `Rejected` with `GROUP_MODE` if a group exists in another mode."""
    for settings in await find_groups(router, name, timeout=timeout):
        if settings.mode != mode:
            message = (
                f"consumer group {name!r} has mode {settings.mode}, not {mode.value}: use it as "
                f"{settings.mode}, or take another name"
            )
            raise Rejected(Reason.GROUP_MODE, message)


def _settings(view: ConsumerGroupView) -> GroupSettings:
    return GroupSettings(
        name=view.name,
        mode=view.mode,
        schedule=tuple(delay / 1000 for delay in view.schedule_ms),
        attempts_max=view.attempts_max,
        invisible=view.invisible_ms / 1000,
        order=view.order,
        is_blocking=view.is_blocking,
        attachments=tuple(
            GroupAttachment(each.topic, each.number, each.is_latest, each.queues)
            for each in view.attachments
        ),
        run=view.run,
    )
