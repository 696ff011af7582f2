"""`raftmq pipeline cdc`: changes of a database's table into a topic, and the table rebuilt."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import Meter, Result, Table, note, with_output
from raftmq.cli.pipeline.starter import Starter, with_spark
from raftmq.cli.session import url_option
from raftmq.cli.values import DURATION
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.pipeline.cdc.source import Source

F = TypeVar("F", bound=Callable[..., Any])

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
_table = click.option("--table", required=True, metavar="NAME", help="The table: [SCHEMA.]NAME.")


def _topic(command: F) -> F:
    return click.option("--topic", required=True, metavar="TOPIC", help="Where its changes go.")(
        command
    )


@click.group()
def cdc() -> None:
    """Changes of a database's table into a topic, and the table rebuilt from it.

    DATABASE is sqlite:PATH, postgresql://user@host/name, mariadb://user@host/name or
    mysql://user@host/name; the last three need `pip install 'raftmq[cdc]'`.

    \b
    raftmq pipeline cdc prepare sqlite:shop.db --table orders --topic orders-changes
    raftmq pipeline cdc capture sqlite:shop.db --table orders --topic orders-changes
    raftmq pipeline cdc rebuild orders-changes --out orders
    raftmq pipeline cdc verify sqlite:shop.db --table orders --topic orders-changes --out orders
    """


@cdc.command()
@click.argument("database")
@_table
@_topic
@click.option("--undo", is_flag=True, help="Take back what this and captures left there.")
@_dry_run
def prepare(database: str, table: str, topic: str, undo: bool, dry_run: bool) -> None:
    """Make a table ready to be captured: triggers, or a publication. Prints the statements.

    The table itself stays as it is. `--undo` ends what the database keeps for the topic,
    and with it captures of the table into other topics.
    """
    with _opened(database, table, topic) as source:
        statements = source.undo() if undo else source.prepare()
        for statement in statements:
            click.echo(f"{statement};")
        if not dry_run:
            source.execute(statements)
    done = "nothing was changed: leave out --dry-run to do it" if dry_run else "done"
    note(done if statements else f"{table} is ready")


@cdc.command()
@click.argument("database")
@_table
@_topic
@click.option("--once", is_flag=True, help="End when all that is committed now is in the topic.")
@click.option("--snapshot", is_flag=True, help="Begin with all rows, whatever the topic has.")
@_dry_run
@url_option
def capture(
    database: str, table: str, topic: str, once: bool, snapshot: bool, dry_run: bool, url: str
) -> None:
    """Carry the changes of a table into a topic, in the order of commits, each once.

    An empty topic begins with a snapshot of the table. Ctrl-C ends it; started again it goes on.
    """
    from raftmq import blocking
    from raftmq.pipeline.cdc.change_capture import capture, plan

    with (
        Starter(url, None, "").explaining(),
        _opened(database, table, topic) as source,
        blocking.connect(url) as mq,
    ):
        if dry_run:
            click.echo(plan(mq, source, topic, snapshot=snapshot))
            return
        until = source.now() if once else None
        sent = 0
        with Meter(f"{table} into {topic}", unit="changes") as meter:
            for step in capture(mq, source, topic, until=until, snapshot=snapshot):
                sent += step.sent
                meter.advance(step.sent, f"{step.phase} of {table}, at {step.lsn}")
    note(f"{counted(sent, 'message')} sent")


@cdc.command()
@click.argument("topic")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the versions of the table are.",
)
@click.option("--full", is_flag=True, help="From the topic's beginning, not from the last version.")
@_dry_run
@with_output
@with_spark
def rebuild(starter: Starter, topic: str, out: Path, full: bool, dry_run: bool) -> Result:
    """Make the table that a topic's changes describe, as Parquet in DIR/v=<n>.

    Only what is new since the last version is read. DIR/CURRENT names the version that holds.
    """
    from raftmq import blocking
    from raftmq.pipeline.cdc.rebuild import plan, rebuild

    with starter.explaining(), blocking.connect(starter.url) as mq:
        planned = plan(mq, topic, out, is_full=full)
        if dry_run or planned.is_empty:
            return _result(
                {"topic": topic, "from": planned.start, "until": planned.end,
                 "version": planned.version},
                note="nothing was changed" if dry_run
                else "the last version holds: nothing is new",
            )  # fmt: skip
        with starter.session("cdc") as spark:
            made = rebuild(spark, mq, topic, out, url=starter.url, is_full=full)
    return _result({"version": made.version, "rows": made.rows, "position": made.position,
                    "until": made.end, "folder": str(out / f"v={made.version}")})  # fmt: skip


@cdc.command()
@click.argument("database")
@_table
@_topic
@click.option(
    "--out",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the versions of the table are.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="1m",
    metavar="DURATION",
    help="How long to wait for a capture that is running.  [default: 1m]",
)
@_dry_run
@with_output
@with_spark
def verify(
    starter: Starter,
    database: str,
    table: str,
    topic: str,
    out: Path,
    wait: float,
    dry_run: bool,
) -> Result:
    """Compare the table in the database with the rebuilt one, by digests at the same place.

    Others may go on writing. Changes that the topic lacks up to that place are captured first.
    Exits with 5 if they differ.
    """
    from raftmq import blocking
    from raftmq.pipeline.cdc.change_capture import plan
    from raftmq.pipeline.cdc.differences import notes
    from raftmq.pipeline.cdc.verify import source_digest, verify

    with (
        starter.explaining(),
        _opened(database, table, topic) as source,
        blocking.connect(starter.url) as mq,
    ):
        if dry_run:
            compared = f"{source.table.name} with {out}"
            return _result({"capture": plan(mq, source, topic), "compare": compared})
        with notes(out) as noted:
            # Taken before Spark starts, so that few changes have to be captured up to this place.
            found = source_digest(source, noted)
            with starter.session("cdc") as spark:
                verified = verify(
                    spark, mq, source, topic, out, found, url=starter.url, wait_seconds=wait
                )
    apart = verified.differences
    told = {"place": found.place.lsn, "database": str(found.digest),
            "rebuilt": str(verified.rebuilt), "equal": apart is None}  # fmt: skip
    if apart is None:
        return _result(told)
    return Result(
        told | {"differing": apart.rows, "first": apart.first},
        [*_result(told).shown, "", Table(["KEY", "FOUND"], apart.first)],
        failure=Failure(
            f"{counted(apart.rows, 'row')} of {table} and of the table in {out} differ",
            fix="`raftmq pipeline cdc rebuild … --full`, and verify again; if they still differ, "
            "the topic lacks changes: `raftmq pipeline cdc capture … --snapshot`, then rebuild",
            code=ExitCode.VIOLATION,
        ),
    )


def _result(values: dict[str, Any], *, note: str = "") -> Result:
    """Values as a table of one row."""
    table = Table([name.upper() for name in values], [list(values.values())])
    return Result(values, [table], notes=[note] if note else [])


@contextmanager
def _opened(database: str, table: str, topic: str) -> "Iterator[Source]":
    from raftmq.pipeline import PipelineError
    from raftmq.pipeline.cdc.source import open_source

    try:
        source = open_source(database, table, topic)
        try:
            yield source
        finally:
            source.close()
    except PipelineError as error:
        raise Failure(error.message, fix=error.fix) from error
