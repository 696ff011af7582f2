"""`raftmq pipeline replay`: send messages of an archive into a topic again.

`raftmq topic replay` does the same with messages that the cluster still keeps, without Spark.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.output import Meter, Result, Table, note, with_output
from raftmq.words import counted

from .starter import Starter, with_spark

if TYPE_CHECKING:
    from datetime import datetime

    from raftmq.pipeline.replay.plan import Plan, Planned


def _read_speed(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """The speed: 0 for `max`, else a number above 0."""
    if value == "max":
        return 0.0
    try:
        speed = float(value)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise click.BadParameter(f"{value!r} is not max or a number above 0", ctx, param)
    return speed


def _read_time(ctx: click.Context, param: click.Parameter, value: str | None) -> "datetime | None":
    """A time; without a zone it is in this machine's zone. `15m` ago is not accepted: a command
    that is started again must mean the same messages."""
    from datetime import datetime

    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError:
        what = f"{value!r} is not a time, as 2026-11-20T10:00 or 2026-11-20T10:00:00Z"
        raise click.BadParameter(what, ctx, param) from None


def _read_offsets(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[int, tuple[int, int]] | None:
    """`0:120-479` as {0: (120, 480)}: written with the last offset, kept with the one after."""
    found = {}
    for value in values:
        match = re.fullmatch(r"(\d+):(\d+)-(\d+)", value)
        if match is None:
            what = f"{value!r} is not QUEUE:FIRST-LAST, as 0:120-479"
            raise click.BadParameter(what, ctx, param)
        found[int(match[1])] = (int(match[2]), int(match[3]) + 1)
    return found or None


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", required=True, help="The topic in the archive.")
@click.option("--into", required=True, help="The topic that gets the messages; it has to exist.")
@click.option(
    "--since",
    callback=_read_time,
    metavar="TIME",
    help="Only what was stored then or later: 2026-11-20T10:00.",
)
@click.option("--until", callback=_read_time, metavar="TIME", help="Only what was stored before.")
@click.option(
    "--offsets",
    multiple=True,
    callback=_read_offsets,
    metavar="QUEUE:FIRST-LAST",
    help="Only these, and no other queue (repeat): 0:120-479.",
)
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows for which this holds, in Spark's SQL: \"tag = 'paid' AND props['n'] > 7\".",
)
@click.option(
    "--speed",
    callback=_read_speed,
    default="max",
    metavar="X",
    help="1 as they were recorded, 10 ten times as fast, max.  [default: max]",
)
@click.option(
    "--max-per-trigger",
    "rows_max",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    metavar="N",
    help="The most messages of a batch.",
)
@click.option("--id", "name", default="", help="Its name.  [default: made of the other options]")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and end.")
@with_output
@with_spark
def replay(
    starter: Starter,
    folder: Path,
    topic: str,
    into: str,
    since: "datetime | None",
    until: "datetime | None",
    offsets: dict[int, tuple[int, int]] | None,
    where: str | None,
    speed: float,
    rows_max: int,
    name: str,
    dry_run: bool,
) -> Result | None:
    """Send messages of the archive in FOLDER into a topic, each once.

    Keys, tags and bodies are the original ones; each queue keeps its order. Killed and started
    again with the same options, it adds what is missing and nothing twice. Once it is done, the
    same command sends nothing: another --id sends all again.

    \b
    raftmq pipeline replay lake --topic orders --into orders-again --since 2026-11-20T10:00
    """
    from raftmq.pipeline.replay.plan import ReplayRequest, find

    if offsets is not None and (since is not None or until is not None):
        raise click.UsageError("--offsets and --since or --until both say what to send: use one")
    request = ReplayRequest(topic, into, since, until, offsets, where, name)
    with starter.explaining():
        planned = find(folder, request, starter.url)
    if dry_run or planned.is_done or not planned.plan.rows:
        return _plan(planned)
    _replay(starter, folder, planned, speed=speed, rows_max=rows_max)
    return None


def _plan(planned: "Planned") -> Result:
    plan = planned.plan
    rows = [(each.queue, each.start, each.end, each.end - each.start, each.queue % plan.queues)
            for each in plan.ranges]  # fmt: skip
    names = ("queue", "start", "end", "rows", "to_queue")
    queues = [dict(zip(names, row, strict=True)) for row in rows]
    which = counted(plan.rows, "message") + (", less what --where leaves out" if plan.where else "")
    if not plan.rows:
        told = (
            "the archive holds nothing of that: `raftmq pipeline archive ls DIR` shows what it has"
        )
    elif planned.is_done:
        told = f"replay {plan.id} is done: {which}; another --id sends them again"
    else:
        told = f"replay {plan.id}: {which}; nothing was sent: leave out --dry-run to do it"
    return Result(
        {"id": plan.id, "is_done": planned.is_done, "queues": queues},
        [Table([">QUEUE", ">FROM", ">UNTIL", ">ROWS", ">TO QUEUE"], rows)],
        notes=[told],
    )


def _replay(
    starter: Starter, folder: Path, planned: "Planned", *, speed: float, rows_max: int
) -> None:
    from raftmq.pipeline.replay.job import run

    plan: Plan = planned.plan
    note(f"replay {plan.id}: {'' if planned.is_new else 'goes on with '}"
         f"{counted(plan.rows, 'message')}")  # fmt: skip
    done = 0
    with starter.session("replay") as spark, Meter("replaying", total=plan.rows) as meter:
        going = run(spark, folder, planned, url=starter.url, speed=speed, rows_max=rows_max)
        for progress in going:
            meter.advance(plan.rows - progress.left - done)
            done = plan.rows - progress.left
    note(f"replay {plan.id} is done")
