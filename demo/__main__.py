"""`python -m demo`: run the demo; exit status 0 only if the verdict holds.

| status | meaning |
|---|---|
| 0 | every check holds |
| 1 | a check is violated, or the demo could not be run to its end |
| 2 | the command line is wrong |
| 130 | interrupted: the nodes were stopped and a temporary folder removed |
"""

import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import click
from rich.console import Console

from raftmq.errors import RaftmqError

from .flights import ROWS, NoData
from .report import Report
from .screen import Screen, tables
from .story import tell

INTERRUPTED = 130


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(1_000, ROWS),
    default=ROWS,
    show_default=True,
    help="How many departures to send.",
)
@click.option("--keep", is_flag=True, help="Keep the cluster's folder, and say where it is.")
@click.option("--json", "is_json", is_flag=True, help="Print the report as JSON.")
def main(rows: int, keep: bool, is_json: bool) -> None:
    """Kill a leader mid-stream and prove that nothing is lost, repeated or put out of order."""
    screen = Screen(Console(stderr=True))
    folder = Path(tempfile.mkdtemp(prefix="raftmq-demo-")) if keep else None
    report, troubles = None, []
    try:
        report = anyio.run(run, rows, screen, folder, backend="trio")
    except* (RaftmqError, NoData, TimeoutError) as group:
        troubles = [f"{type(error).__name__}: {error}" for error in single(group)]
    if folder is not None:
        screen.note(f"kept {folder}: `raftmq inspect {folder}/node-1` shows a node's data")
    if troubles:
        raise click.ClickException("; ".join(troubles))
    if report is None:
        screen.note("interrupted; the nodes were stopped")
        sys.exit(INTERRUPTED)
    if is_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        Console().print(tables(report))
    sys.exit(0 if report.holds else 1)


async def run(rows: int, screen: Screen, folder: Path | None) -> Report | None:
    """Run the demo; None if a signal ended it."""
    report = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, tasks.cancel_scope)
        report = await tell(rows, screen, folder=folder)
        tasks.cancel_scope.cancel()
    return report


def single(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from single(inner)
    else:
        yield error


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


if __name__ == "__main__":
    main()
