"""`raftmq group lag` and `raftmq top`: the backlogs of groups, once or repeatedly.

| column | groups that pop | groups that read by offset |
|---|---|---|
| LAG | not done with, dead letters apart | kept and not read; -: not known, see `GroupOffset` |
| IN HAND | handed out, neither settled nor run out | - |
| WAITING | failed, and wait for their time | - |
| READY | handed out next: their time has come, or they were given back | - |
| DEAD | in dead letters | - |
| DONE/s | acknowledged, between two looks | read and committed, between two looks |
"""

import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.output import (
    Note,
    Result,
    Table,
    drawn,
    note,
    output_option,
    print_line,
    print_result,
    print_shown,
)
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION
from raftmq.errors import Reason, Rejected
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.client import Client

TOPICS_MAX = 50
"""Topics that `top` asks about; a cluster may have 100,000."""


class GroupLine(NamedTuple):
    """A consumer group and a topic, at one time."""

    group: str
    topic: str
    mode: str
    lag: int | None
    """As in the heading's table; None: unknown."""
    in_hand: int | None
    """This and the next three as in the heading's table; None: this mode has no leases."""
    waiting: int | None
    ready: int | None
    dead: int | None
    done: int
    """Messages acknowledged, or read and committed, since the group began."""


class TopicLine(NamedTuple):
    """A topic, at one time."""

    topic: str
    queues: int
    end: int
    """Messages that were ever stored in it."""


class Look(NamedTuple):
    """All groups and topics that were asked for, at one time."""

    at: float
    """The time by the monotonic clock, in seconds."""
    groups: list[GroupLine]
    """By group and topic."""
    topics: list[TopicLine]
    """By name; empty if they were not asked for."""
    topics_untold: int = 0
    """Number of topics beyond `TOPICS_MAX`."""


@click.command()
@click.argument("name", required=False, type=GROUP)
@click.option("-t", "--topic", type=TOPIC, help="Only of this topic.")
@click.option("-w", "--watch", is_flag=True, help="Look repeatedly, until Ctrl-C.")
@click.option(
    "--every", type=DURATION, default="2s", metavar="DURATION", help="With -w.  [default: 2s]"
)
@output_option()
@with_session
def lag(
    session: Session, name: str | None, topic: str | None, watch: bool, every: float, output: str
) -> None:
    """Show the backlog of a consumer group, or of all.

    LAG counts messages that are not settled. A dash: the lag is unknown, as a group that reads by
    offset has committed no offset in a queue. READY counts messages that are due to be handed out
    again, or that wait for their turn with their key. LAG alone counts other messages that were
    never handed out.

    With -w and -o json each look is one line.
    """

    async def look(mq: "Client") -> Look:
        return await look_at_groups(mq, topic=topic, group=name)

    if watch:
        _watch(session, look, every, output)
        return
    found = session.run(look)
    text = "no group has anything to do: `raftmq group list` shows those there are"
    if name:
        text = f"{name} has nothing to do: `raftmq group describe {name}` shows its topics"
    none = Note(text)
    shown = _groups_table(found, None) if found.groups else none
    print_result(Result(_plain(found, None), [shown]), output)


@click.command()
@click.option("-t", "--topic", type=TOPIC, help="Only of this topic.")
@click.option("-g", "--group", type=GROUP, help="Only of this consumer group.")
@click.option(
    "--every", type=DURATION, default="2s", metavar="DURATION", help="Between looks.  [default: 2s]"
)
@click.option("--once", is_flag=True, help="Look twice, print the second, and end.")
@output_option()
@with_session
def top(
    session: Session, topic: str | None, group: str | None, every: float, once: bool, output: str
) -> None:
    """Show topics and consumer groups with their rates, repeatedly, until Ctrl-C.

    With -o json each look is one line.
    """

    async def look(mq: "Client") -> Look:
        found = await look_at_groups(mq, topic=topic, group=group)
        topics, untold = await _look_at_topics(mq, topic)
        return found._replace(topics=topics, topics_untold=untold)

    _watch(session, look, every, output, is_once=once)


# Looking


async def look_at_groups(mq: "Client", *, topic: str | None, group: str | None) -> Look:
    """The backlogs of one group or all, of one topic or all."""
    # Asked for all groups and topics: a group that broadcasts is attached to no topic, and its
    # instances have other names.
    modes = {settings.name: settings.mode for settings in await mq.admin.consumer_groups()}
    found_groups = await mq.admin.list_groups(topic=topic)
    known = await mq.admin.consumer_groups(name=group, topic=topic)
    if group is not None and not known and not any(_is_of(g.name, group) for g in found_groups):
        where = f" of topic {topic!r}" if topic else ""
        message = f"there is no consumer group {group!r}{where}"
        raise Rejected(Reason.UNKNOWN_GROUP, message)
    lines: dict[tuple[str, str], GroupLine] = {}
    for found in found_groups:
        # An instance of a group that broadcasts commits its offsets under its own name.
        mode = modes.get(found.name) or modes.get(found.name.partition("@")[0], "pull")
        for offset in found.offsets if group is None or _is_of(found.name, group) else ():
            _add(
                lines,
                GroupLine(
                    group=found.name,
                    topic=offset.topic,
                    mode=mode,
                    lag=offset.lag,
                    in_hand=None,
                    waiting=None,
                    ready=None,
                    dead=None,
                    done=offset.committed or 0,
                ),
            )
    for each in await mq.admin.backlogs(topic=topic, group=group):
        line = GroupLine(
            each.group,
            each.topic,
            modes.get(each.group, "pop"),
            each.lag,
            each.leased,
            each.waiting,
            each.ready,
            each.dead,
            each.acked,
        )
        _add(lines, line)
    return Look(time.monotonic(), [lines[key] for key in sorted(lines)], [])


def _is_of(name: str, group: str) -> bool:
    """True for the group itself, and for instances of a group that broadcasts."""
    return name == group or name.startswith(f"{group}@")


def _add(lines: dict[tuple[str, str], GroupLine], line: GroupLine) -> None:
    """Add the figures of a queue to those of the other queues of its group and topic."""
    key = (line.group, line.topic)
    before = lines.get(key)
    if before is None:
        lines[key] = line
        return
    sums = [
        b if a is None else a if b is None else a + b
        for a, b in zip(before[4:], line[4:], strict=True)
    ]
    lag = None if before.lag is None or line.lag is None else before.lag + line.lag
    lines[key] = GroupLine(line.group, line.topic, line.mode, lag, *sums)  # type: ignore[arg-type]


async def _look_at_topics(mq: "Client", only: str | None) -> tuple[list[TopicLine], int]:
    infos = [each for each in await mq.admin.list_topics() if only in (None, each.name)]
    lines = []
    for info in infos[:TOPICS_MAX]:
        ends = await mq.admin.find_offsets(info.name, "latest")
        lines.append(TopicLine(info.name, info.queues, sum(ends.values())))
    return lines, max(0, len(infos) - TOPICS_MAX)


# Showing


def _watch(
    session: Session,
    look: "Callable[[Client], Awaitable[Look]]",
    every: float,
    output: str,
    *,
    is_once: bool = False,
) -> None:
    """Look repeatedly, and show each look with the rates since the look before."""

    async def call(mq: "Client") -> None:
        import anyio

        before = await look(mq) if is_once else None
        with _Screen(output) as screen:
            while True:
                if before is not None:
                    await anyio.sleep(every)
                found = await look(mq)
                screen.show(found, before)
                before = found
                if is_once:
                    return

    try:
        session.run(call)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end of watching.
        return


class _Screen:
    """The output of looks, which have no end and so are no `Result`: on a terminal each replaces
    the one before; elsewhere they follow each other."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._live: Any = None

    def __enter__(self) -> "_Screen":
        if self._output != "json" and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Look, before: Look | None) -> None:
        """Show a look."""
        if self._output == "json":
            print_line(_plain(found, before))
            return
        tables = [_groups_table(found, before)]
        if found.topics:
            tables.insert(0, _topics_table(found, before))
        if self._live is not None:
            from rich.console import Group

            self._live.update(Group(*map(drawn, tables)), refresh=True)
            return
        print_shown(tables)
        if found.topics_untold:
            note(f"and {counted(found.topics_untold, 'topic')} more: --topic shows one")
        click.echo()


def _groups_table(found: Look, before: Look | None) -> Table:
    rates = _rates(found, before)
    rows = []
    for line in found.groups:
        known = ["" if each is None else f"{each:,}" for each in line[4:8]]
        lag = "-" if line.lag is None else f"{line.lag:,}"
        rate = [_rate(rates.get((line.group, line.topic)))] if before else []
        rows.append([line.group, line.mode, line.topic, lag, *known, *rate])
    columns = ["GROUP", "MODE", "TOPIC", ">LAG", ">IN HAND", ">WAITING", ">READY", ">DEAD"]
    return Table([*columns, ">DONE/s"] if before else columns, rows)


def _topics_table(found: Look, before: Look | None) -> Table:
    earlier = {line.topic: line.end for line in before.topics} if before else {}
    rows = []
    for line in found.topics:
        rate = None
        if before is not None and line.topic in earlier:
            rate = (line.end - earlier[line.topic]) / (found.at - before.at)
        shown = [_rate(rate)] if before else []
        rows.append([line.topic, line.queues, f"{line.end:,}", *shown])
    columns = ["TOPIC", ">QUEUES", ">STORED"]
    return Table([*columns, ">STORED/s"] if before else columns, rows)


def _rates(found: Look, before: Look | None) -> dict[tuple[str, str], float]:
    """(group, topic) → messages done per second since the look before."""
    if before is None:
        return {}
    earlier = {(line.group, line.topic): line.done for line in before.groups}
    seconds = found.at - before.at
    return {
        key: (line.done - earlier[key]) / seconds
        for line in found.groups
        if (key := (line.group, line.topic)) in earlier
    }


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def _plain(found: Look, before: Look | None) -> dict[str, Any]:
    """A look as plain values, for JSON."""
    rates = _rates(found, before)
    groups = []
    for line in found.groups:
        rate = rates.get((line.group, line.topic))
        groups.append({**line._asdict(), "done_rate": None if rate is None else round(rate, 1)})
    return {"groups": groups, "topics": found.topics}
