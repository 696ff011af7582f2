"""`raftmq group`: the settings, filters and progress of consumer groups."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.options import execute_option, queues_option
from raftmq.cli.output import Note, Result, Table, dash, note, time_text, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import START

from .lag import lag
from .members import changed, clone, members, require_group
from .settings import COMMANDS, attachments_table, backlogs_table, settings_lines

if TYPE_CHECKING:
    from raftmq.client import Backlog, Client, ConsumerGroup, OffsetChange
    from raftmq.client.consume.start import Start


@click.group(cls=HintedGroup)
def group() -> None:
    """Create and change consumer groups; show their filters and their progress."""


for command in (*COMMANDS, lag, members, clone):
    group.add_command(command)


@group.command("list")
@click.option("-t", "--topic", type=TOPIC, help="Only groups of this topic.")
@with_output
@with_session
def list_(session: Session, topic: str | None) -> Result:
    """List all consumer groups: created ones, and those that have committed offsets.

    LAG counts messages that the group has not read, or not settled; `raftmq group lag` shows more.
    A dash: the lag is unknown, as a group that reads by offset has committed no offset in a queue.
    """

    async def call(mq: "Client") -> "tuple[list[ConsumerGroup], dict[str, int | None]]":
        groups = await _all_groups(mq, topic)
        # Asked for all topics, as a group that broadcasts is attached to none.
        for settings in await mq.admin.consumer_groups():
            modes[settings.name] = settings.mode
        lags = {group.name: _lag(group, modes) for group in groups}
        for each in await mq.admin.backlogs(topic=topic):
            lags[each.group] = (lags.get(each.group) or 0) + each.lag
        return groups, lags

    modes: dict[str, str] = {}
    groups, lags = session.run(call)
    rows = [(g.name, _mode(g, modes), ", ".join(_topics(g)), dash(lags[g.name])) for g in groups]
    none = Note(f"{session.none_yet('groups')}: `raftmq group create NAME` makes one")
    return Result(
        [_plain(g, mode=_mode(g, modes), lag=lags[g.name]) for g in groups],
        [Table(["GROUP", "MODE", "TOPICS", ">LAG"], rows) if rows else none],
    )


async def _all_groups(mq: "Client", topic: str | None) -> "list[ConsumerGroup]":
    """Groups with settings, with committed offsets, or with both, by name."""
    from raftmq.client import ConsumerGroup

    found = {group.name: group for group in await mq.admin.list_groups(topic=topic)}
    for settings in await mq.admin.consumer_groups(topic=topic):
        group = found.get(settings.name) or ConsumerGroup(settings.name, [])
        found[settings.name] = group._replace(settings=settings)
    return [found[name] for name in sorted(found)]


def _mode(found: "ConsumerGroup", modes: dict[str, str]) -> str:
    """A group's mode; an instance has no settings, so its mode is its group's."""
    return modes.get(found.name) or modes.get(found.name.partition("@")[0], "pull")


def _lag(found: "ConsumerGroup", modes: dict[str, str]) -> int | None:
    """The lag of a group that reads by offset; None: unknown, as a pull group without committed
    offsets begins wherever a consumer says."""
    return None if not found.offsets and modes.get(found.name) == "pull" else found.lag


def _topics(found: "ConsumerGroup") -> list[str]:
    topics = {offset.topic for offset in found.offsets}
    if found.settings is not None:
        topics |= {each.topic for each in found.settings.attachments}
    return sorted(topics)


@group.command()
@click.argument("name", type=GROUP)
@with_output
@with_session
def describe(session: Session, name: str) -> Result:
    """Show a consumer group: settings, filters, and its progress in each queue.

    PASSED counts messages that the group skipped, as they do not match its filter.
    """

    async def call(mq: "Client") -> "tuple[ConsumerGroup, list[Backlog]]":
        found = await mq.admin.describe_group(name)
        for each in await mq.admin.consumer_groups(name=name.partition("@")[0]):
            modes[each.name] = each.mode
        if modes.get(name) == "broadcast":
            # Each instance commits its offsets under its own name, GROUP@INSTANCE.
            groups = [g for g in await mq.admin.list_groups() if g.name.startswith(f"{name}@")]
            instances.extend(groups)
        return found, await mq.admin.backlogs(group=name)

    instances: list[ConsumerGroup] = []
    modes: dict[str, str] = {}
    found, backlogs = session.run(call)
    # A group that pops has no committed offsets: its lag is that of its backlogs.
    own = _lag(found, modes)
    lag = own if not backlogs else (own or 0) + sum(each.lag for each in backlogs)
    document = _plain(found, mode=_mode(found, modes), lag=lag)
    document["backlogs"] = [{**each._asdict(), "lag": each.lag} for each in backlogs]
    if instances:
        heard = [_plain(each, mode="broadcast", lag=each.lag) for each in instances]
        document["instances"] = heard
    return Result(document, _shown(found, backlogs, instances))


def _shown(
    found: "ConsumerGroup", backlogs: "list[Backlog]", instances: "list[ConsumerGroup]"
) -> Iterator[Table | str]:
    """The tables and lines for people."""
    if found.settings is not None:
        yield from settings_lines(found.settings)
    for each in found.subscriptions:
        yield f"of {each.topic} it wants: {each.filter}"
    if instances:
        yield from map(_offsets_table, instances)
    elif found.settings is not None and not found.offsets:
        yield attachments_table(found.settings)
        if backlogs:
            yield backlogs_table(backlogs)
    else:
        yield _offsets_table(found)


def _offsets_table(found: "ConsumerGroup") -> Table:
    columns = ["TOPIC", ">QUEUE", ">COMMITTED", ">EARLIEST", ">END", ">LAG", ">PASSED"]
    rows = [
        (
            o.topic,
            o.queue,
            dash(o.committed),
            o.earliest,
            o.end,
            dash(o.lag),
            o.passed,
            time_text(o.timestamp) if o.timestamp else "-",
        )
        for o in found.offsets
    ]
    return Table([*columns, "COMMITTED AT"], rows, title=f"{found.name}, lag {dash(found.lag)}")


@group.command()
@click.argument("name", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.argument("expression")
@with_session
def subscribe(session: Session, name: str, topic: str, expression: str) -> None:
    """Subscribe a consumer group to a filter on a topic; its consumers follow at once.

    A first subscription holds for all messages that the group has not read yet, a changed one for
    messages that are stored after the change. `raftmq filter explain` explains an expression.

    \b
    raftmq group subscribe billing orders "paid || shipped"
    raftmq group subscribe audit orders "amount > 1000 AND country <> 'DE'"
    raftmq group subscribe audit orders 'amount > 1000 && country != "DE"'
    """
    from raftmq.filters import compile as compile_filter

    session.run(lambda mq: mq.admin.subscribe(topic, name, expression))
    note(f"{name} wants of {topic}: {compile_filter(expression).sql}")


@group.command()
@click.argument("name", type=GROUP)
@click.argument("topic", type=TOPIC)
@with_session
def unsubscribe(session: Session, name: str, topic: str) -> None:
    """Remove the filter of a consumer group on a topic: the group gets all messages."""
    session.run(lambda mq: mq.admin.unsubscribe(topic, name))
    note(f"{name} wants everything of {topic}")


@group.command()
@click.argument("name", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option(
    "--to",
    type=START,
    required=True,
    metavar="START",
    help="earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (that long ago).",
)
@queues_option
@click.option("--create", is_flag=True, help="Create the group if there is none.")
@execute_option
@with_output
@with_session
def reset(
    session: Session,
    name: str,
    topic: str,
    to: "Start",
    queues: tuple[int, ...],
    create: bool,
    execute: bool,
) -> Result:
    """Move a consumer group to another position in a topic. A dry run unless --execute is given.

    A group that pops goes on from the new position at once: messages in hand are fenced, dead
    letters before the position stay. Members of a group follow at once, too, and so do instances of
    a broadcast group, which are named NAME@INSTANCE. Other running consumers see the new position
    after their next start, and may overwrite it: stop them first. With --create a new group that
    reads by offset begins at the position.
    """

    async def call(mq: "Client") -> "list[OffsetChange]":
        if not create:
            await require_group(mq, name)
        return await mq.admin.reset_group(
            name, topic, to=to, queues=queues or None, dry_run=not execute
        )

    changes = session.run(call)
    is_new = all(change.before is None for change in changes)
    new = f"{name} had no place on {topic} before: `raftmq group list` shows those that have"
    return changed(changes, is_executed=execute, notes=[new] if is_new else [])


def _plain(found: "ConsumerGroup", *, mode: str, lag: int | None) -> dict[str, Any]:
    return {
        "name": found.name,
        "mode": mode,
        "lag": lag,
        "offsets": [{**offset._asdict(), "lag": offset.lag} for offset in found.offsets],
        "subscriptions": found.subscriptions,
        "settings": found.settings,
    }
