"""`raftmq group`: what consumer groups want, and how far they have read."""

from typing import TYPE_CHECKING, Any

import click

from .output import note, output_option, print_json, print_table, time_text
from .session import Session, with_session
from .values import START

if TYPE_CHECKING:
    from raftmq.client import Client, ConsumerGroup, OffsetChange
    from raftmq.client.consumer import Start


@click.group()
def group() -> None:
    """Show and change what consumer groups want, and how far they have read."""


@group.command("list")
@click.option("-t", "--topic", help="Only groups that have read this topic.")
@output_option()
@with_session
def list_(session: Session, topic: str | None, output: str) -> None:
    """List all consumer groups that have committed something, with their lag."""

    async def call(mq: "Client") -> "list[ConsumerGroup]":
        return await mq.admin.list_groups(topic=topic)

    groups = session.run(call)
    if output == "json":
        print_json([_plain(found) for found in groups])
    elif groups:
        rows = [
            (g.name, ", ".join(sorted({o.topic for o in g.offsets})), len(g.offsets), g.lag)
            for g in groups
        ]
        print_table(["GROUP", "TOPICS", ">QUEUES", ">LAG"], rows)
    else:
        note("no group has committed anything yet: `raftmq consume TOPIC -g GROUP` does")


@group.command()
@click.argument("name")
@output_option()
@with_session
def describe(session: Session, name: str, output: str) -> None:
    """Show what a consumer group wants, and its committed offset and lag in each queue.

    PASSED counts messages that do not match its filter: it read on after them without them.
    """

    async def call(mq: "Client") -> "ConsumerGroup":
        return await mq.admin.describe_group(name)

    found = session.run(call)
    if output == "json":
        print_json(_plain(found))
        return
    for each in found.subscriptions:
        click.echo(f"of {each.topic} it wants: {each.filter}")
    print_table(
        ["TOPIC", ">QUEUE", ">COMMITTED", ">EARLIEST", ">END", ">LAG", ">PASSED", "COMMITTED AT"],
        [
            (
                o.topic,
                o.queue,
                o.committed,
                o.earliest,
                o.end,
                o.lag,
                o.passed,
                time_text(o.timestamp),
            )
            for o in found.offsets
        ],
        title=f"{found.name}, lag {found.lag}",
    )


@group.command()
@click.argument("name")
@click.argument("topic")
@click.argument("expression")
@with_session
def subscribe(session: Session, name: str, topic: str, expression: str) -> None:
    """Say what a consumer group wants of a topic; its consumers follow at once.

    A first subscription holds for all that the group has not read yet, a changed one for what is
    stored after it. `raftmq filter explain` shows what an expression means.

    \b
    raftmq group subscribe billing orders "paid || shipped"
    raftmq group subscribe audit orders "amount > 1000 AND country <> 'DE'"
    """

    async def call(mq: "Client") -> None:
        await mq.admin.subscribe(topic, name, expression)

    session.run(call)
    note(f"{name} wants of {topic}: {expression}")


@group.command()
@click.argument("name")
@click.argument("topic")
@with_session
def unsubscribe(session: Session, name: str, topic: str) -> None:
    """Let a consumer group have everything of a topic again."""

    async def call(mq: "Client") -> None:
        await mq.admin.unsubscribe(topic, name)

    session.run(call)
    note(f"{name} wants everything of {topic}")


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option(
    "--to",
    type=START,
    required=True,
    metavar="START",
    help="earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (so long ago).",
)
@click.option("-q", "--queue", "queues", type=int, multiple=True, help="Only this queue (repeat).")
@click.option("--execute", is_flag=True, help="Do it. Without this only what would be done.")
@output_option()
@with_session
def reset(
    session: Session,
    name: str,
    topic: str,
    to: "Start",
    queues: tuple[int, ...],
    execute: bool,
    output: str,
) -> None:
    """Move a consumer group to another place of a topic. A dry run unless --execute is given.

    Consumers of the group that run now do not see it until they start again: stop them first.
    """

    async def call(mq: "Client") -> "list[OffsetChange]":
        return await mq.admin.reset_group(
            name, topic, to=to, queues=queues or None, dry_run=not execute
        )

    changes = session.run(call)
    if output == "json":
        print_json({"executed": execute, "changes": [change._asdict() for change in changes]})
    else:
        rows = [(c.queue, "none" if c.before is None else c.before, c.after) for c in changes]
        print_table([">QUEUE", ">BEFORE", ">AFTER"], rows)
    if not execute:
        note("nothing was changed: add --execute to do it")


def _plain(found: "ConsumerGroup") -> dict[str, Any]:
    offsets = [{**offset._asdict(), "lag": offset.lag} for offset in found.offsets]
    wanted = [each._asdict() for each in found.subscriptions]
    return {"name": found.name, "lag": found.lag, "offsets": offsets, "subscriptions": wanted}
