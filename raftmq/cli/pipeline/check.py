"""`raftmq pipeline check`: judge recorded histories that are too large for one process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import Note, Result, Table, bytes_text, note, with_output

from .starter import Starter, with_spark

if TYPE_CHECKING:
    from raftmq.pipeline.check import Recorded, Report

EXISTING = click.Path(exists=True, path_type=Path)
# A copy of the names in raftmq.pipeline.check, which --help must not load.
CHECKERS = ("total-queue", "log", "key-order")
_CODES = {"valid": ExitCode.OK, "invalid": ExitCode.VIOLATION}


@click.command()
@click.argument("paths", nargs=-1, required=True, type=EXISTING)
@click.option("--out", type=click.Path(path_type=Path), help="Write violations and verdict there.")
@click.option(
    "--checker",
    "checkers",
    multiple=True,
    type=click.Choice(CHECKERS),
    help="A checker to run (repeat).  [default: total-queue, and log if there are offsets]",
)
@click.option("--exactly-once", is_flag=True, help="A message that comes twice is a violation.")
@click.option("--not-drained", is_flag=True, help="Readers need not have read to the end.")
@click.option("--contiguous", is_flag=True, help="Messages of one send have offsets in a row.")
@click.option(
    "--examples",
    default=1000,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Violations of each kind to keep; all are counted.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be read, and start nothing.")
@with_output
@with_spark
def check(
    starter: Starter,
    paths: tuple[Path, ...],
    out: Path | None,
    checkers: tuple[str, ...],
    exactly_once: bool,
    not_drained: bool,
    contiguous: bool,
    examples: int,
    dry_run: bool,
) -> Result:
    """Judge recorded histories of any size: what was lost, doubled, out of order, never sent.

    Each PATH is one history: a Parquet file as raftmq.checkers.write_parquet makes it, or a folder
    of its parts, in the order of their names. The exit code is 5 if any of them is invalid, 1 if
    none is but one cannot be decided.

    \b
    raftmq pipeline check history.parquet
    raftmq pipeline check recorded/ --out checked/ -o json
    """
    from raftmq.pipeline.check import Rules, as_json, find, judge, store, worst

    with starter.explaining():
        found = [find(path) for path in paths]
    if dry_run:
        return _plan(found)
    rules = Rules(
        is_exactly_once=exactly_once,
        is_drained=not not_drained,
        is_send_contiguous=contiguous,
        examples_max=examples,
    )
    with starter.session("check") as spark:
        reports = [judge(spark, one, rules, checkers=checkers, told=note) for one in found]
    if out is not None:
        try:
            store(reports, out)
        except OSError as error:
            raise Failure(f"{out}: {error.strerror}", fix="name another folder as --out") from error
    code = _CODES.get(worst(report.verdict for report in reports), ExitCode.FAILED)
    return Result(as_json(reports), _shown(reports), code=code)


def _plan(found: "Sequence[Recorded]") -> Result:
    plan = [
        {
            "history": one.name,
            "files": one.files,
            "row_groups": len(one.parts),
            "rows": one.rows,
            "bytes": one.bytes,
        }
        for one in found
    ]
    rows = [
        (one.name, one.files, len(one.parts), f"{one.rows:,}", bytes_text(one.bytes))
        for one in found
    ]
    return Result(plan, [Table(["HISTORY", ">FILES", ">ROW GROUPS", ">ROWS", ">SIZE"], rows)])


def _shown(reports: "Sequence[Report]") -> Iterator[Table | str]:
    rows = []
    for report in reports:
        for one in report.checkers:
            kinds = [f"{kind} {one.counts[kind]:,}" for kind in one.kinds if one.counts[kind]]
            found = ", ".join(kinds) or one.reason or "nothing"
            rows.append((report.history, one.checker, one.verdict, found))
    yield Table(["HISTORY", "CHECKER", "VERDICT", "FOUND"], rows)
    for report in reports:
        for finding in report.violations.slice(0, 5).to_pylist():
            yield Note(f"{report.history}: {finding['kind']}: {finding['fact']}")
