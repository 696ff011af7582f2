"""`python -m demo.pipeline`: run the demo; exit status 0 only if the verdict holds.

The exit statuses are those of `python -m demo`.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import anyio
import click
from rich.console import Console

from demo.__main__ import INTERRUPTED, single
from demo.flights import ROWS, NoData
from demo.screen import Screen, proof, verdict
from raftmq.errors import RaftmqError

from .drivers import DriverFailed
from .story import Result, tell

ROWS_DEFAULT = 120_000


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(5_000, ROWS),
    default=ROWS_DEFAULT,
    show_default=True,
    help="How many departures to send.",
)
@click.option("--keep", is_flag=True, help="Keep the folder with all that was written.")
@click.option("--json", "is_json", is_flag=True, help="Print the verdict as JSON.")
def main(rows: int, keep: bool, is_json: bool) -> None:
    """Kill a leader and both Spark drivers; prove that windows and archive are exact."""
    screen = Screen(Console(stderr=True))
    folder = Path(tempfile.mkdtemp(prefix="raftmq-demo-"))
    result, troubles = None, []
    try:
        result = anyio.run(tell, rows, screen, folder, backend="trio")
    except* (RaftmqError, NoData, DriverFailed, TimeoutError) as group:
        troubles = [f"{type(error).__name__}: {error}" for error in single(group)]
    except* KeyboardInterrupt:
        screen.note("interrupted; all processes were stopped")
    finally:
        if keep:
            screen.note(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if troubles:
        raise click.ClickException("; ".join(troubles))
    if result is None:
        sys.exit(INTERRUPTED)
    _print(result, is_json=is_json)
    sys.exit(0 if result.holds else 1)


def _print(result: Result, *, is_json: bool) -> None:
    if is_json:
        checks = [{**asdict(check), "holds": check.holds} for check in result.checks]
        click.echo(json.dumps({"verdict": result.holds, "checks": checks}, indent=2))
        return
    words = "windows as counted one by one; each message once in the archive"
    Console().print(proof(result.checks, "Results of the jobs"), verdict(result.checks, words))


if __name__ == "__main__":
    main()
