"""`raftmq group members` and `raftmq group clone`: list members' queues; copy a group's place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.cli.names import GROUP, TOPIC, group_names
from raftmq.cli.options import execute_option
from raftmq.cli.output import NOT_EXECUTED, Note, Result, Table, dash, with_output
from raftmq.cli.session import Session, with_session
from raftmq.errors import Reason, Rejected

if TYPE_CHECKING:
    from raftmq.client import Client, OffsetChange
    from raftmq.wire.assignment import MemberView

GROUPS_LISTED_MAX = 10
"""Names in one error; `raftmq group list` has all."""


@click.command()
@click.argument("name", required=False, type=GROUP)
@with_output
@with_session
def members(session: Session, name: str | None) -> Result:
    """List the members of a consumer group, or of all, and the queues of each.

    Members are the consumers of a group that share a topic's queues, and the instances of a
    broadcast group, as members of NAME@INSTANCE.
    """

    async def call(mq: "Client") -> "list[MemberView]":
        found = await mq.admin.members()
        found = [each for each in found if name in (None, *_names(each))]
        if name is not None and not found:
            # An existing group may have no members; an unknown name raises here, as it is misspelt.
            await mq.admin.describe_group(name)
        return found

    found = session.run(call)
    none = Note(
        "no members: a consumer is one if it shares queues (`raftmq consume --assigned`), "
        "or if its group broadcasts"
    )
    return Result([_plain(each) for each in found], [_table(found) if found else none])


def _table(found: "Sequence[MemberView]") -> Table:
    rows = [
        (
            each.consumer_group,
            each.topic,
            f"{each.member:016x}",
            each.instance,
            ranges(each.queues),
            ranges(each.giving_up),
            f"{each.remaining_ms / 1000:.1f} s",
        )
        for each in found
    ]
    return Table(["GROUP", "TOPIC", "MEMBER", "INSTANCE", "QUEUES", "GIVES UP", ">LEASE"], rows)


def _names(member: "MemberView") -> tuple[str, str]:
    """The names of a member's group: with its instance, and without."""
    return member.consumer_group, member.consumer_group.removesuffix(f"@{member.instance}")


async def require_group(mq: "Client", name: str) -> None:
    """Refuse a name that no consumer group has, and no member's group.

    Raises:
        Failure: there is no such group; the text names the existing ones.
    """
    if await mq.admin.members(name):
        return
    try:
        await mq.admin.describe_group(name)
    except Rejected as error:
        if error.reason is not Reason.UNKNOWN_GROUP:
            raise
        raise Failure(
            f"there is no consumer group {name!r}: {listed_groups(await group_names(mq))}",
            fix="correct the name, or add --create to let a group of this name begin there",
        ) from error


def listed_groups(names: list[str]) -> str:
    """The names of the consumer groups, as an error lists them.

    >>> listed_groups(["audit", "billing"])
    'there are audit, billing'
    """
    if not names:
        return "there are none yet"
    left = len(names) - GROUPS_LISTED_MAX
    more = f" and {left:,} more" if left > 0 else ""
    return f"there are {', '.join(names[:GROUPS_LISTED_MAX])}{more}"


def _plain(member: "MemberView") -> dict[str, Any]:
    return {
        "group": member.consumer_group,
        "topic": member.topic,
        "member": f"{member.member:016x}",
        "instance": member.instance or None,
        "queues": member.queues,
        "giving_up": member.giving_up,
        "remaining_ms": member.remaining_ms,
    }


def ranges(numbers: list[int]) -> str:
    """Numbers in rising order, neighbours joined.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2 5 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


@click.command()
@click.argument("source", type=GROUP)
@click.argument("name")
@click.argument("topic", type=TOPIC)
@execute_option
@with_output
@with_session
def clone(session: Session, source: str, name: str, topic: str, execute: bool) -> Result:
    """Copy the position of SOURCE on a topic to consumer group NAME. A dry run without --execute.

    The position of a group that pops is the first message that was never handed out: messages in
    hand, failed ones and dead letters stay with SOURCE. A new group gets the settings of SOURCE.
    """
    changes = session.run(lambda mq: mq.admin.clone_group(source, name, topic, dry_run=not execute))
    if not changes:
        raise Failure(
            f"consumer group {source!r} has no place on {topic!r} to go on from",
            fix="`raftmq group list` shows the consumer groups, and the topics they read",
        )
    return changed(changes, is_executed=execute)


def changed(
    changes: "Sequence[OffsetChange]", *, is_executed: bool, notes: Sequence[str] = ()
) -> Result:
    """The places of a group in a topic's queues, before and after."""
    rows = [(c.queue, dash(c.before, "none"), c.after) for c in changes]
    return Result(
        {"executed": is_executed, "changes": changes},
        [Table([">QUEUE", ">BEFORE", ">AFTER"], rows)],
        notes=[*notes, *([] if is_executed else [NOT_EXECUTED])],
    )
