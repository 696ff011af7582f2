"""`raftmq pipeline archive`: keep topics as Parquet files; verify, compact, list and read them.

`run` needs Spark and a cluster; `verify`, `compact`, `ls` and `get` need neither.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import (
    Meter,
    Result,
    Table,
    bytes_text,
    dash,
    note,
    output_option,
    with_output,
)
from raftmq.cli.values import DURATION
from raftmq.errors import Rejected
from raftmq.words import counted

from .starter import Starter, explaining, with_spark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.pipeline.archive.job import Queued, Settings
    from raftmq.pipeline.archive.manifest import File
    from raftmq.pipeline.archive.verify import Finding

FOLDER = click.Path(path_type=Path, file_okay=False)
_SHOWN_QUEUES = 4
"""Most queues whose offsets are shown in a cell of a table."""


@click.group()
def archive() -> None:
    """Keep topics as Parquet files by day and hour, each message once.

    \b
    raftmq pipeline archive run orders --to lake --once
    raftmq pipeline archive ls lake
    raftmq pipeline archive verify lake --deep
    """


@archive.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--to", "folder", type=FOLDER, required=True, help="The archive, new or old.")
@click.option(
    "--once/--follow",
    "is_once",
    default=False,
    help="End when all is archived that is there now, or go on.  [default: --follow]",
)
@click.option(
    "--every",
    type=DURATION,
    default="10s",
    metavar="DURATION",
    help="Between two batches; each makes a file a queue and hour.  [default: 10s]",
)
@click.option(
    "--max-per-trigger",
    "rows_max",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most messages of a batch.  [default: all there are]",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Go on after messages that retention took, and note the loss; else that is an error.",
)
@click.option("--job", default="", help="Shown as consumer group spark-JOB.  [default: by folder]")
@click.option("--dry-run", is_flag=True, help="Show what there is to archive, and end.")
@with_output
@with_spark
def run(
    starter: Starter,
    topics: tuple[str, ...],
    folder: Path,
    is_once: bool,
    every: float,
    rows_max: int | None,
    skip_lost: bool,
    job: str,
    dry_run: bool,
) -> Result | None:
    """Archive TOPICs, and go on with what comes until Ctrl-C, or end with --once.

    Killed at any moment and started again it goes on where the archive ends.

    \b
    raftmq pipeline archive run orders payments --to lake
    """
    from raftmq.pipeline.archive.job import Settings, plan

    settings = Settings(
        tuple(dict.fromkeys(topics)), starter.url, is_once, every, rows_max, skip_lost, job
    )
    with starter.explaining():
        queues = plan(folder, settings)
    lost = sum(each.lost for each in queues)
    if lost and not skip_lost:
        fix = "--skip-lost goes on with what is left, and notes what is gone in the archive"
        raise Failure(f"retention took {counted(lost, 'message')} before archiving", fix=fix)
    if dry_run:
        return _plan(queues)
    _archive(starter, folder, settings, sum(each.rows for each in queues))
    return None


def _plan(queues: "list[Queued]") -> Result:
    columns = ["TOPIC", ">QUEUE", ">ARCHIVED TO", ">EARLIEST", ">END", ">TO ARCHIVE", ">LOST"]
    rows = [(q.topic, q.queue, dash(q.archived), q.earliest, q.end, q.rows, q.lost) for q in queues]
    return Result(
        [{**each._asdict(), "rows": each.rows, "lost": each.lost} for each in queues],
        [Table(columns, rows)],
        notes=["nothing was archived: leave out --dry-run to do it"],
    )


def _archive(starter: Starter, folder: Path, settings: "Settings", rows: int) -> None:
    from raftmq.pipeline.archive.job import job_of, run

    done = 0
    with starter.session("archive") as spark:
        note(f"progress: `raftmq group lag spark-{job_of(folder, settings)}`")
        total = rows if settings.is_once else None
        with Meter("archiving", total=total) as meter:
            try:
                for progress in run(spark, folder, settings):
                    done += progress.rows
                    meter.advance(progress.rows)
            finally:
                note(f"archived {counted(done, 'message')} to {folder}")


@archive.command()
@click.argument("folder", type=FOLDER)
@click.option("--deep", is_flag=True, help="Read all rows, too, and compare their digests.")
@click.option("--dry-run", is_flag=True, help="Show how much there is to read, and end.")
@with_output
def verify(folder: Path, deep: bool, dry_run: bool) -> Result:
    """Check that the archive in FOLDER is whole; exit with 5 if it is not.

    Queues must have neither holes nor overlaps, and all files their size and rows.
    """
    from raftmq.pipeline.archive.manifest import load
    from raftmq.pipeline.archive.verify import Checked, verify

    found: list[Finding] = []
    with explaining():
        if dry_run:
            return _files(load(folder).files)
        with Meter("verifying", unit="rows") as meter:
            for each in verify(folder, is_deep=deep):
                if isinstance(each, Checked):
                    found.extend(each.findings)
                    meter.advance(each.file.rows)
                else:
                    found.append(each)
    return _findings(found)


def _files(files: "Sequence[File]") -> Result:
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return Result(
        {"files": len(files), "rows": rows, "bytes": size},
        [Table([">FILES", ">ROWS", ">SIZE"], [(len(files), f"{rows:,}", bytes_text(size))])],
        notes=["nothing was examined: leave out --dry-run to do it"],
    )


def _findings(found: "list[Finding]") -> Result:
    damage = [each for each in found if each.is_damage]
    rows = [("damage" if each.is_damage else "note", *each) for each in found]
    return Result(
        [{**each._asdict(), "is_damage": each.is_damage} for each in found],
        [Table(["", "KIND", "WHERE", "WHAT"], rows)] if rows else [],
        notes=[counted(len(damage), "damage") if damage else "the archive is whole"],
        code=ExitCode.VIOLATION if damage else ExitCode.OK,
    )


@archive.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--grace",
    type=DURATION,
    default="1h",
    metavar="DURATION",
    help="How long replaced files stay for present readers.  [default: 1h]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be compacted, and end.")
@with_output
def compact(folder: Path, grace: float, dry_run: bool) -> Result:
    """Merge the files of each topic and hour that is over into one file.

    Readers and `archive run` may go on meanwhile. Killed at any moment, the command leaves the
    archive as it was, or with the merged files.
    """
    from raftmq.pipeline.archive import compact as work
    from raftmq.pipeline.archive.parts import folder_of

    with explaining():
        hours = work.plan(folder)
        if not dry_run:
            with Meter("compacting", total=sum(hour.rows for hour in hours), unit="rows") as meter:
                for hour in work.compact(folder, grace=grace):
                    meter.advance(hour.rows)
    rows = [
        (folder_of(hour.topic, hour.hour), len(hour.files), hour.rows, hour.bytes) for hour in hours
    ]
    names = ("path", "files", "rows", "bytes")
    return Result(
        [dict(zip(names, row, strict=True)) for row in rows],
        [Table(["PATH", ">FILES", ">ROWS", ">BYTES"], rows)] if rows else [],
        notes=[f"{'would compact' if dry_run else 'compacted'} {counted(len(rows), 'hour')}"],
    )


@archive.command()
@click.argument("folder", type=FOLDER)
@click.argument("message_id", metavar="ID")
@output_option("table", "json", "raw")
def get(folder: Path, message_id: str, output: str) -> int:
    """Print the message of an ID out of the archive in FOLDER; raw: its body alone.

    The cluster may have forgotten it long ago. Properties are text in an archive.

    \b
    raftmq pipeline archive get lake 10000-2a
    """
    from raftmq.cli.messages.formats import print_message
    from raftmq.cli.messages.msg import ID_FIX
    from raftmq.pipeline.archive import get

    try:
        with explaining():
            message = get(folder, message_id)
    except Rejected as error:
        raise Failure(str(error), fix=ID_FIX) from error
    if message is None:
        fix = "`raftmq pipeline archive ls FOLDER` shows the offsets that are there"
        raise Failure(f"the archive has no message {message_id}", fix=fix)
    return print_message(message, output)


@archive.command("ls")
@click.argument("folder", type=FOLDER)
@with_output
def list_days(folder: Path) -> Result:
    """Show the contents of the archive in FOLDER, by topic and day (UTC)."""
    from raftmq.pipeline.archive.listing import days

    with explaining():
        found = days(folder)
    columns = ["TOPIC", "DAY", ">HOURS", ">FILES", ">ROWS", ">SIZE", "~OFFSETS"]
    rows = [
        (each.topic, each.day, each.hours, each.files, f"{each.rows:,}",
         bytes_text(each.bytes), _offsets_text(each.offsets))
        for each in found
    ]  # fmt: skip
    return Result(found, [Table(columns, rows)])


def _offsets_text(offsets: dict[int, tuple[int, int]]) -> str:
    """The queues' ranges, as `0: 17-41`, and the number of further queues.

    >>> _offsets_text({0: (0, 12), 1: (5, 9)})
    '0: 0-11  1: 5-8'
    """
    shown = [f"{queue}: {start}-{end - 1}" for queue, (start, end) in sorted(offsets.items())]
    more = len(shown) - _SHOWN_QUEUES
    return "  ".join(shown[:_SHOWN_QUEUES]) + (
        f"  and {counted(more, 'queue')}" if more > 0 else ""
    )
