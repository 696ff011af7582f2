"""`raftmq pipeline trace`: the histories of all messages, from the entries of the log.

`run` and `quantiles` need Spark; `show` and `slowest` read only the files.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.cli.output import (
    Meter,
    Result,
    Table,
    duration_text,
    note,
    print_table,
    with_output,
)
from raftmq.cli.values import DURATION
from raftmq.words import counted

from .starter import Starter, explaining, with_spark

if TYPE_CHECKING:
    from raftmq.pipeline.trace.job import Plan
    from raftmq.pipeline.trace.query import Slow

FOLDER = click.Path(path_type=Path, file_okay=False)
_topic = click.option("--topic", metavar="TOPIC", help="Only of this topic.")
_group = click.option("--group", metavar="GROUP", help="Only of this consumer group.")


@click.group()
def trace() -> None:
    """Keep the histories of all messages in consumer groups that pop, and query them.

    \b
    raftmq pipeline trace run lives
    raftmq pipeline trace slowest lives --by wait
    raftmq pipeline trace quantiles lives --per hour
    raftmq pipeline trace show lives orders 0 17
    """


@trace.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--every",
    type=DURATION,
    metavar="DURATION",
    help="Run repeatedly, with this pause between two runs.  [default: once]",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Go on after records that retention took, and note the loss; else that is an error.",
)
@click.option("--dry-run", is_flag=True, help="Show what there is to read and build, and end.")
@with_spark
def run(
    starter: Starter, folder: Path, every: float | None, skip_lost: bool, dry_run: bool
) -> None:
    """Read the logs on from where the last run ended, into FOLDER, and build timelines."""
    if dry_run:
        from raftmq.pipeline.trace.job import plan

        with starter.explaining():
            _show_plan(plan(folder, starter.url, skips_lost=skip_lost))
        return
    with starter.session("trace") as spark:
        while True:
            _run_once(spark, starter.url, folder, skips_lost=skip_lost)
            if every is None:
                break
            time.sleep(every)


def _run_once(spark: Any, url: str, folder: Path, *, skips_lost: bool) -> None:
    from raftmq.pipeline.trace.job import run

    records = events = hours = 0
    with Meter("reading the logs", unit="records") as meter:
        for step in run(spark, folder, url=url, skips_lost=skips_lost):
            records, events = records + step.records, events + step.events
            hours += len(step.hours)
            what = "reading the logs" if step.records else f"built {counted(hours, 'hour')}"
            meter.advance(step.records, what)
    read = f"{counted(records, 'record')}, {counted(events, 'event')}"
    note(f"{read}; {counted(hours, 'hour')} built")


def _show_plan(found: "Plan") -> None:
    columns = ["partition group", ">first record", ">last record", ">records", ">gone unread"]
    lost = {span.partition_group: span.end - span.start for span in found.lost}
    rows = [
        (span.partition_group, span.start, span.end - 1, span.end - span.start,
         lost.get(span.partition_group, 0))
        for span in found.spans
    ]  # fmt: skip
    print_table(Table(columns, rows))
    for hour in found.stale:
        note(f"to be built in any case: {hour}")


@trace.command()
@click.argument("folder", type=FOLDER)
@click.argument("topic")
@click.argument("queue", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@with_output
def show(folder: Path, topic: str, queue: int, offset: int) -> Result:
    """Show the history of the message at OFFSET of QUEUE of TOPIC."""
    from raftmq.pipeline.trace.query import show

    with explaining():
        rows = show(folder, topic, queue, offset)
    if not rows:
        raise Failure(
            f"nothing is known of {topic}/{queue}/{offset}",
            fix=f"`raftmq topic describe {topic}` tells whether it was stored; "
            f"`raftmq pipeline trace run {folder}` reads what came since the last run",
        )
    table = Table(["time", ">after", "what", "group", ">attempt", "until"], _story(rows))
    return Result([_timed(row) for row in rows], [table])


def _story(rows: list[Any]) -> list[tuple[object, ...]]:
    return [
        (
            _time(row["timestamp"]),
            _after(rows[0], row),
            row["what"],
            row["group"] or "",
            row["attempt"] or "",
            _time(row["until"]),
        )
        for row in rows
    ]


def _after(first: Any, row: Any) -> str:
    return duration_text((row["timestamp"] - first["timestamp"]).total_seconds())


def _time(moment: Any) -> str:
    return "" if moment is None else str(moment.isoformat(timespec="milliseconds"))


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its times as text."""
    return {
        name: _time(value) if hasattr(value, "isoformat") else value for name, value in row.items()
    }


@trace.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--by",
    type=click.Choice(["wait", "service", "total"]),
    default="total",
    show_default=True,
    help="wait: until first handed out; service: from then on until acked; total: until over.",
)
@_topic
@_group
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, metavar="N")
@with_output
def slowest(folder: Path, by: str, topic: str | None, group: str | None, limit: int) -> Result:
    """List the runs of messages that took longest, with their story."""
    from raftmq.pipeline.trace.query import slowest

    with explaining():
        found = slowest(folder, by=by, topic=topic, group=group, limit=limit)
    columns = ["!place", ">messages", "group", ">wait", ">service", ">total", "outcome", "story"]
    return Result(
        [_timed(each.timeline) | {"story": [_timed(e) for e in each.story]} for each in found],
        [Table(columns, [_slow_row(each) for each in found])],
    )


def _slow_row(slow: "Slow") -> tuple[object, ...]:
    row = slow.timeline
    story = [f"{each['what']} +{_after(slow.story[0], each)}" for each in slow.story[1:]]
    return (
        f"{row['topic']}/{row['queue']}/{row['offset']}",
        row["count"],
        row["group"],
        *(_duration(row[name]) for name in ("wait_ms", "service_ms", "total_ms")),
        row["outcome"],
        ", ".join(story),
    )


def _duration(milliseconds: int | None) -> str:
    return "" if milliseconds is None else duration_text(milliseconds / 1000)


@trace.command()
@click.argument("folder", type=FOLDER)
@_topic
@_group
@click.option(
    "--per",
    type=click.Choice(["minute", "hour", "day"]),
    help="A row for each in which messages were stored.  [default: all in one]",
)
@with_output
@with_spark
def quantiles(
    starter: Starter,
    folder: Path,
    topic: str | None,
    group: str | None,
    per: str | None,
) -> Result:
    """Show how long messages waited, and how long consumers had them, in quantiles."""
    from raftmq.pipeline.trace.query import quantiles

    with starter.session("trace") as spark:
        rows = quantiles(spark, folder, topic=topic, group=group, unit=per)
    columns = ["time", "topic", "group", ">messages"]
    columns += [f">{name} {at}" for name in ("wait", "service") for at in ("50%", "90%", "99%")]
    table = Table(columns, [_quantile_row(row) for row in rows])
    return Result([_timed(row) for row in rows], [table])


def _quantile_row(row: dict[str, Any]) -> tuple[object, ...]:
    cells = [
        _duration(value) for name in ("waits", "services") for value in row[name] or [None] * 3
    ]
    return _time(row["time"]), row["topic"], row["group"], row["messages"], *cells
