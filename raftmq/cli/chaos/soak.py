"""`raftmq chaos soak`: runs of every kind for hours, and a row of results in a book."""

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import Meter, note
from raftmq.words import counted

from .run import WORLDS, explained, processors

if TYPE_CHECKING:
    from raftmq.chaos.soak import Book, Soak

WRITE_SECONDS = 60.0
"""Seconds between two writes of the row, so that a killed soak loses no more."""


@click.command()
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Begin no further run after this much real time.",
)
@click.option(
    "--world",
    "worlds",
    type=click.Choice(WORLDS),
    multiple=True,
    default=("core", "sim"),
    show_default=True,
    help="May be given several times.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Worker processes.  [default: processors; 1 with the real world]",
)
@click.option(
    "--artifacts",
    type=click.Path(path_type=Path),
    default="build/soak",
    show_default=True,
    help="Keep runs that are not good in folders below it.",
)
@click.option(
    "--book",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default="build/soak/soak.json",
    show_default=True,
    help="Add a row to this file, and write its page beside it.",
)
def soak(
    hours: float, worlds: tuple[str, ...], jobs: int | None, artifacts: Path, path: Path
) -> int:  # fmt: skip
    """Play runs of every kind for hours, and add a row to a book of results.

    A seed decides the world, the workload, the size of the cluster, the length and the faults of a
    run; seeds go on where the last soak of the book ended. Ctrl-C ends it, and what was played is
    kept. The exit code is 5 if a promise was broken, 130 after Ctrl-C, 1 if no run showed anything.

    \b
    raftmq chaos soak --hours 6 --book docs/chaos/soak.json
    """
    from raftmq.chaos.faults import World
    from raftmq.chaos.soak import soak

    book = _read(path)
    row = book.begin()
    results = soak(
        row.first_seed,
        [World(world) for world in worlds],
        seconds_max=hours * 3600,
        # Real processes need the machine for themselves.
        jobs=1 if "real" in worlds else jobs or processors(),
        artifacts=artifacts,
    )
    began = written = time.monotonic()
    is_interrupted = False
    with explained(), closing(results), Meter("soak", total=hours * 3600, unit="s") as meter:
        try:
            for result in results:
                row.add(result)
                if row not in book.soaks:
                    book.soaks.append(row)
                meter.advance(time.monotonic() - began - meter.done, _progress(row))
                if time.monotonic() >= written + WRITE_SECONDS:
                    written = time.monotonic()
                    book.write(path)
        except KeyboardInterrupt:
            is_interrupted = True
            note("interrupted: what was played until now is in the book")
    if book.soaks:
        book.write(path)
    _print(row, artifacts)
    if row.found:
        return ExitCode.VIOLATION
    if is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if row.total.runs > row.total.undecided else ExitCode.FAILED


def _read(path: Path) -> "Book":
    import msgspec

    from raftmq.chaos.soak import Book

    try:
        return Book.read(path)
    except (msgspec.MsgspecError, OSError) as error:
        fix = "name another file with --book, which is made if there is none"
        raise Failure(
            f"{path} is no book of soaks: {error}", fix=fix, code=ExitCode.USAGE
        ) from None


def _progress(row: "Soak") -> str:
    """The words before the bar."""
    broken = sum(found.runs for found in row.found)
    runs, faults = counted(row.total.runs, "run"), counted(row.total.faults, "fault")
    return f"soak: {runs}, {faults}, {broken:,} broken"


def _print(row: "Soak", artifacts: Path) -> None:
    from raftmq.chaos.soak import simulated

    for found in row.found:
        click.echo(f"{found.kind}, seed {found.seed}: {', '.join(found.what)}: {found.text}")
        click.echo(f"replay: {found.replay}")
    total = row.total
    note(
        f"seeds {row.first_seed}..{row.last_seed}: {counted(total.runs, 'run')}, "
        f"{total.undecided:,} undecided, {sum(found.runs for found in row.found):,} broken; "
        f"{total.cpu_seconds / 60:.1f} CPU-min, {simulated(total.simulated_seconds)} in their "
        f"worlds, {counted(total.faults, 'fault')}"
    )
    if row.found or total.undecided:
        note(f"kept in {artifacts}")
