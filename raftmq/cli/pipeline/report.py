"""`raftmq pipeline report`: messages stored and their handling by groups, minute by minute."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from raftmq.cli.exits import Failure
from raftmq.cli.lazy import LazyGroup
from raftmq.cli.output import (
    Lines,
    Meter,
    Note,
    Result,
    Table,
    duration_text,
    note,
    time_text,
    with_output,
)
from raftmq.cli.values import DURATION
from raftmq.words import counted

from .starter import Starter, make_folder, with_spark

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient
    from raftmq.pipeline.report import Step

F = TypeVar("F", bound=Callable[..., Any])

ROUND_SECONDS = 1.0
"""Seconds between the starts of two rounds with --follow."""
WAIT_SECONDS_MAX = 30.0
"""Most seconds between two tries while the cluster does not answer."""
MINUTE_SECONDS = 60


class _Report(LazyGroup):
    """The commands of a report."""

    TABLE: ClassVar = {
        "run": ("pipeline.report:run", "Read the logs, publish minutes and alerts."),
        "show": ("pipeline.report:show", "Print minutes, or alerts, as a table."),
        "page": ("pipeline.report:page", "Draw the report: an HTML page, a PNG."),
        "rules": ("pipeline.report:rules", "Print the built-in rules, as TOML."),
    }


@click.group(cls=_Report)
def report() -> None:
    """Per minute, topic and consumer group: in, out, lag, retries, dead letters, times; alerts.

    \b
    raftmq pipeline report run --out report --follow --alerts alerts
    raftmq pipeline report show --in report --since 1h
    raftmq pipeline report page --in report --out report.html
    """


def _folder_option(flag: str) -> Callable[[F], F]:
    return click.option(
        flag,
        "folder",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The folder of the report.",
    )


_since_option = click.option(
    "--since", type=DURATION, metavar="DURATION", help="Only minutes of this last stretch: 1h."
)


@click.command()
@_folder_option("--out")
@click.option("--once/--follow", "is_once", default=True, help="End at the logs' ends, or go on.")
@click.option("--alerts", "topic", metavar="TOPIC", help="Send alerts to this topic, too.")
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Rules of alerts, as TOML.  [default: `raftmq pipeline report rules`]",
)
@click.option("--dry-run", is_flag=True, help="Say what there is to read, and change nothing.")
@with_output
@with_spark
def run(
    starter: Starter,
    folder: Path,
    is_once: bool,
    topic: str | None,
    rules_file: Path | None,
    dry_run: bool,
) -> Result:
    """Read what is new in the logs, and publish each minute that is over, with its alerts.

    Kill it when you like: the next run goes on where this one was. With --follow a minute is
    published a few seconds after its end.
    """
    with starter.explaining():
        from raftmq.pipeline.report import rules as reading_rules

        found = reading_rules.read(rules_file)
        if dry_run:
            with _connected(starter) as mq:
                return _plan(mq, folder)
    from raftmq.pipeline.report import opened
    from raftmq.pipeline.report.event_reader import on_spark

    make_folder(folder)
    if topic is not None:
        # Asked before Spark starts, which takes seconds: the topic may not exist.
        with starter.explaining(), _connected(starter) as mq:
            mq.admin.describe_topic(topic)
    with starter.session("report") as spark, _connected(starter) as mq:
        reader = on_spark(spark, starter.url)
        with opened(folder, mq, reader=reader, rules=found, topic=topic) as each:
            total = _Total()
            for step in _steps(each, is_once):
                total.add(step)
    return total.result()


@contextmanager
def _connected(starter: Starter) -> "Iterator[BlockingClient]":
    import raftmq

    with raftmq.blocking.connect(starter.url) as mq:
        yield mq


def _steps(report: Any, is_once: bool) -> "Iterator[Step]":
    """Rounds: with `is_once` until all is read, else for ever; waits while the cluster is away."""
    from raftmq.errors import OutcomeUnknown, Unavailable

    wait = ROUND_SECONDS
    away_since: float | None = None
    with Meter("reading events", unit="records") as meter:
        while True:
            started = time.monotonic()
            try:
                step = report.round()
            except (Unavailable, OutcomeUnknown) as error:
                if is_once:
                    raise
                if away_since is None:
                    away_since = started
                    note(f"waiting for the cluster: {error}")
                time.sleep(wait)
                wait = min(2 * wait, WAIT_SECONDS_MAX)
                continue
            if away_since is not None:
                away = duration_text(round(time.monotonic() - away_since, 1))
                note(f"the cluster answers again, after {away}")
                away_since = None
            wait = ROUND_SECONDS
            meter.advance(step.records)
            yield step
            if is_once and not step.is_behind:
                return
            if not step.is_behind:
                time.sleep(max(0.0, started + ROUND_SECONDS - time.monotonic()))


class _Total:
    """The sums over all rounds; prints a note when minutes are published."""

    def __init__(self) -> None:
        self._records = self._minutes = self._alerts = 0

    def add(self, step: "Step") -> None:
        """Add a round's figures, and note its minutes."""
        self._records += step.records
        self._minutes += len(step.minutes)
        self._alerts += step.alerts
        if step.minutes:
            behind = time.time() - step.minutes[-1] / 1000 - MINUTE_SECONDS
            note(
                f"published {counted(len(step.minutes), 'minute')}, the last "
                f"{time_text(step.minutes[-1])}, {duration_text(round(behind, 1))} after its end"
            )

    def result(self) -> Result:
        """The sums, at the end."""
        sums = {"records": self._records, "minutes": self._minutes, "alerts": self._alerts}
        parts = [counted(self._minutes, "minute"), counted(self._records, "record")]
        told = f"published {parts[0]} from {parts[1]}; {counted(self._alerts, 'alert')}"
        return Result(Lines([sums]), [Note(told)])


def _plan(mq: "BlockingClient", folder: Path) -> Result:
    """The records that the next run would read."""
    from raftmq.pipeline.report.cluster_poll import look_at
    from raftmq.pipeline.report.state import load

    look = look_at(mq, has_standings=False)
    state = load(folder)
    offsets = {} if state is None else state.offsets
    rows = []
    for number, (first, end) in sorted(look.ranges.items()):
        start = offsets.get(number, first)
        rows.append((number, max(start, first), end, end - max(start, first), first > start))
    names = ("partition_group", "start", "end", "records", "is_trimmed")
    cells = [(*row[:4], "trimmed before it was read" if row[4] else "") for row in rows]
    return Result(
        [dict(zip(names, row, strict=True)) for row in rows],
        [Table([">GROUP", ">FROM", ">TO", ">RECORDS", ""], cells)],
    )


_SHOWN = {
    "stored": ">IN",
    "handed_out": ">OUT",
    "acked": ">ACKED",
    "retries": ">RETRIES",
    "dead": ">DEAD",
    "lag": ">LAG",
    "oldest_ms": ">OLDEST",
    "wait_p50_ms": ">WAIT P50",
    "wait_p99_ms": ">P99",
    "service_p50_ms": ">SERVICE P50",
    "service_p99_ms": ">P99",
    "producers": ">PRODUCERS",
    "consumers": ">CONSUMERS",
}
"""Column of the report → heading."""


@click.command()
@_folder_option("--in")
@_since_option
@click.option("--topic", help="Only of this topic.")
@click.option("--group", help="Only of this consumer group.")
@click.option("--alerts", "has_alerts", is_flag=True, help="Alerts in place of minutes.")
@with_output
def show(
    folder: Path, since: float | None, topic: str | None, group: str | None, has_alerts: bool
) -> Result:
    """Print minutes, or alerts, from the tables; neither Spark nor the cluster is needed."""
    rows = _rows(folder, "alert" if has_alerts else "report_minute", since)
    rows = [row for row in rows if topic in (None, row["topic"]) and group in (None, row["group"])]
    if has_alerts:
        columns = ["MINUTE", "ALERT", "RULE", "TOPIC", "GROUP", ">VALUE", ">PEAK", "SINCE"]
        names = ("minute", "state", "rule", "topic", "group", "value", "peak", "since")
        table = Table(columns, [[_cell(name, row[name]) for name in names] for row in rows])
    else:
        columns = ["MINUTE", "TOPIC", "GROUP", *_SHOWN.values(), ""]
        table = Table(columns, [_line(row) for row in rows])
    return Result([_timed(row) for row in rows], [table])


def _rows(folder: Path, table: str, since: float | None) -> list[dict[str, Any]]:
    from raftmq.pipeline.report import tables

    if not (folder / "state").exists():
        fix = f"`raftmq pipeline report run --out {folder}` makes one"
        raise Failure(f"there is no report in {folder}", fix=fix)
    since_ms = 0 if since is None else int((time.time() - since) * 1000)
    return tables.read(folder, table, since_ms=since_ms)


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    from raftmq.pipeline.report.alerts import iso

    return row | {name: iso(row[name]) for name in ("minute", "since") if name in row}


def _line(row: dict[str, Any]) -> list[str]:
    remark = "partial" if row["is_partial"] else row["mode"] if row["origin"] != "log" else ""
    cells = [_cell(name, row[name]) for name in ("minute", "topic", "group", *_SHOWN)]
    return [*cells, remark]


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in ("minute", "since"):
        return time_text(value)[: len("2026-11-20T10:00")]
    if name.endswith("_ms"):
        return duration_text(round(value / 1000, 3))
    if isinstance(value, float):
        return f"{round(value, 2):,.12g}"
    return f"{value:,}" if name in _SHOWN else str(value)


@click.command()
@_folder_option("--in")
@click.option(
    "--out",
    "html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page: one HTML file with all in it.",
)
@click.option(
    "--png",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The charts as a picture; needs raftmq[plots].",
)
@_since_option
@click.option("--topic", help="Only of this topic.")
def page(
    folder: Path, html: Path | None, png: Path | None, since: float | None, topic: str | None
) -> None:
    """Draw what the tables say; neither Spark nor the cluster is needed."""
    if html is None and png is None:
        raise click.UsageError("name a file: --out report.html, --png report.png, or both")
    minutes = _rows(folder, "report_minute", since)
    rows = [row for row in minutes if topic in (None, row["topic"])]
    alerts = [row for row in _rows(folder, "alert", since) if topic in (None, row["topic"])]
    if minutes and not rows:
        known = ", ".join(sorted({row["topic"] for row in minutes}))
        raise Failure(f"there are no minutes of topic {topic!r}", fix=f"--topic is one of {known}")
    if not rows:
        fix = "a minute is published once it is over: wait, or give --since more"
        raise Failure("there are no such minutes yet", fix=fix)
    from raftmq.pipeline.report import page as drawing
    from raftmq.pipeline.report import picture

    try:
        if html is not None:
            html.write_text(drawing.page(rows, alerts), "utf-8")
            note(f"drew {html}")
        if png is not None:
            picture.draw(rows, alerts, png)
            note(f"drew {png}")
    except OSError as error:
        raise Failure(f"the file cannot be written: {error}", fix="name another") from error


@click.command()
def rules() -> None:
    """Print the built-in rules: a start for a file of your own, for `run --rules FILE`."""
    from raftmq.pipeline.report.rules import built_in

    click.echo(built_in(), nl=False)
