"""`raftmq chaos`: break a cluster on purpose, judge what clients saw, and explain the verdict.

| command | does |
|---|---|
| `run` | plays seeds: faults drawn from each, clients at work, then every checker |
| `soak` | plays runs of every kind for hours, and keeps a book of them |
| `replay`, `shrink` | one schedule again; the few of its faults that matter |
| `check` | judges recorded histories of any system |
| `report` | pages of kept runs and of histories |
| `list` | what there is: faults, invariants, anomalies, checkers, mutants |

Each of them exits with 5 if a promise was broken.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import Result, Table, note, output_option, print_result
from raftmq.words import counted

from .list import list_
from .run import replay, run, shrink
from .soak import soak

if TYPE_CHECKING:
    from raftmq.chaos.report import Case
    from raftmq.checkers import Report
    from raftmq.checkers.history import History

EXISTING = click.Path(exists=True, path_type=Path)


@click.group(cls=HintedGroup)
def chaos() -> None:
    """Break a cluster on purpose, and judge what its clients saw.

    \b
    raftmq chaos run --seeds 1..20 --artifacts found/
    raftmq chaos check history.parquet
    """


chaos.add_command(run)
chaos.add_command(soak)
chaos.add_command(replay)
chaos.add_command(shrink)
chaos.add_command(list_)


# -- check ---------------------------------------------------------------------------------------


@chaos.command()
@click.argument("paths", nargs=-1, required=True, type=EXISTING)
@click.option("--explain", "is_explained", is_flag=True, help="Explain each anomaly.")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write pages into it.")
@output_option()
def check(paths: tuple[Path, ...], is_explained: bool, folder: Path | None, output: str) -> int:
    """Judge recorded histories, of raftmq or of anything else.

    A folder stands for the histories in it and below: Parquet files as raftmq.checkers.Recorder
    makes them, Jepsen's logs, EDN. The exit code is 5 if any of them is invalid, 1 if none is but
    one cannot be decided, 2 if a file is no history; the others are judged all the same.

    \b
    raftmq chaos check history.parquet --explain
    raftmq chaos check recorded/ -o json
    """
    from raftmq.checkers import Verdict, explain, worst
    from raftmq.checkers.check import histories_in

    files = {file: _page_name(path, file) for path in paths for file in histories_in(path)}
    if not files:
        names = ", ".join(map(str, paths))
        fix = "give a Parquet file of raftmq.chaos, a Jepsen log (*.log, *.txt) or *.edn"
        raise Failure(f"there is no history in {names}", fix=fix, code=ExitCode.USAGE)
    judged, problems = [], []
    for file, page_name in files.items():
        try:
            history, reports = _judged(file)
        except Failure as problem:
            # One bad file must not keep the others from being judged.
            problem.show()
            problems.append(problem.code)
            continue
        judged.append((file, reports, worst(report.verdict for report in reports)))
        if is_explained:
            text = "\n\n".join([str(file), *(explain(report, history) for report in reports)])
            # Printed as each file is judged, which may take minutes. On stdout with the table, so
            # that a pager gets both; JSON must be alone on stdout.
            click.echo(text, err=output == "json")
        if folder is not None:
            note(_write_page(_of_history(history, file, reports), folder / page_name))
    rows = [
        (file, verdict.value, "; ".join(_findings_text(reports)))
        for file, reports, verdict in judged
    ]
    shown = [Table(["HISTORY", "VERDICT", "FOUND"], rows)] if rows else []
    print_result(Result([_judged_json(*one) for one in judged], shown), output)
    verdicts = {verdict for _, _, verdict in judged}
    if Verdict.INVALID in verdicts:
        return ExitCode.VIOLATION
    if problems:
        return max(problems)
    return ExitCode.FAILED if Verdict.UNKNOWN in verdicts else ExitCode.OK


def _page_name(path: Path, file: Path) -> str:
    """A page's name, with the folders below `path`: files of one name get different pages."""
    parts = file.relative_to(path).parts if file != path else (file.name,)
    return "-".join(parts).removesuffix(file.suffix) + ".html"


def _judged(file: Path) -> "tuple[History, list[Report]]":
    from raftmq.checkers import NotAHistory, judge, read_history

    try:
        history = read_history(file)
    except NotAHistory as problem:
        fix = "formats: Parquet of raftmq.checkers.write_parquet, a Jepsen log, EDN"
        raise Failure(str(problem), fix=fix, code=ExitCode.USAGE) from None
    except ModuleNotFoundError as problem:
        raise needs_extra(problem) from None
    return history, judge(history)


def _findings_text(reports: "Sequence[Report]") -> Iterator[str]:
    for report in reports:
        found = [f"{name} {report.counts.get(name, 1):,}" for name in sorted(report.names())]
        yield f"{report.checker}: {', '.join(found) or report.reason or 'nothing'}"


def _judged_json(file: Path, reports: "Sequence[Report]", verdict: Any) -> dict[str, Any]:
    return {
        "history": str(file),
        "verdict": verdict.value,
        "checkers": [
            {
                "checker": report.checker,
                "verdict": report.verdict.value,
                "reason": report.reason,
                "counts": dict(report.counts),
                "anomalies": [
                    {"name": one.name, "fact": one.fact, "operations": list(one.operations)}
                    for one in report.anomalies
                ],
            }
            for report in reports
        ],
    }


# -- report --------------------------------------------------------------------------------------


@chaos.command()
@click.argument("path", type=EXISTING)
@click.option("--to", type=click.Path(path_type=Path), help="The page.  [default: beside PATH]")
@click.option("--png", is_flag=True, help="Store it as a picture too; needs a browser.")
@click.option("--height", default=1600, show_default=True, help="Of the picture, in pixels.")
def report(path: Path, to: Path | None, png: bool, height: int) -> None:
    """Write the page of a kept run, of all runs in a folder, or of a history. A page that a test
    wrote (pytest --chaos-artifacts) is shown as it is.

    \b
    raftmq chaos report found/sim-log-seed-7 --png
    raftmq chaos report history.parquet --to page.html
    """
    places = _runs_in(path) if path.is_dir() else [path]
    if not places:
        fix = (
            "`raftmq chaos run --artifacts DIR` keeps the runs that broke something, "
            "`pytest --chaos-artifacts DIR` the tests that failed"
        )
        raise Failure(f"no run is kept in {path}", fix=fix, code=ExitCode.USAGE)
    if to is not None and len(places) > 1:
        fix = "leave out --to: each page goes into its run's folder"
        raise Failure(f"{path} holds {counted(len(places), 'run')}", fix=fix, code=ExitCode.USAGE)
    for place in places:
        page = to or (place / "report.html" if place.is_dir() else place.with_suffix(".html"))
        if place.is_dir() and not _is_run(place):
            click.echo(_page_of_test(place, page))
        else:
            click.echo(_write_page(_case(place), page))
        if png:
            _write_picture(page, height)


def _runs_in(path: Path) -> list[Path]:
    if _is_run(path) or _is_of_test(path):
        return [path]
    return sorted(each for each in path.iterdir() if _is_run(each) or _is_of_test(each))


def _is_run(folder: Path) -> bool:
    return (folder / "outcome.json").exists()


def _is_of_test(folder: Path) -> bool:
    """Whether `pytest --chaos-artifacts` kept a failure here."""
    return (folder / "history.parquet").exists() and (folder / "report.html").exists()


def _page_of_test(folder: Path, to: Path) -> str:
    """Copy the page that a test wrote: only the test knew its checks and its faults."""
    page = folder / "report.html"
    if to != page:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    return f"as the test wrote it  {to}"


def _case(place: Path) -> "Case":
    from raftmq.chaos.report import NotAnOutcome, of_outcome, read_outcome
    from raftmq.checkers import NotAHistory

    if not place.is_dir():
        return _of_history(*_with_file(place))
    try:
        return of_outcome(read_outcome(place))
    except (NotAnOutcome, NotAHistory) as problem:
        raise Failure(str(problem), fix="play it again with the line in replay.txt") from None


def _with_file(file: Path) -> "tuple[History, Path, list[Report]]":
    history, reports = _judged(file)
    return history, file, reports


def _of_history(history: "History", file: Path, reports: "list[Report]") -> "Case":
    from raftmq.chaos.report import of_history

    return of_history(history, file.name, reports)


def _write_page(case: "Case", to: Path) -> str:
    """Store a page; returns a line with its verdict and place."""
    from raftmq.chaos.report import page

    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page(case), encoding="utf-8")
    return f"{case.verdict.value}  {to}"


def _write_picture(page: Path, height: int) -> None:
    from raftmq.chaos.report import NoBrowser, picture

    try:
        picture(page, page.with_suffix(".png"), height=height)
    except NoBrowser as problem:
        fix = "install Chromium (`apt install chromium`), or open the page and print it there"
        raise Failure(str(problem), fix=fix) from None
    click.echo(f"picture  {page.with_suffix('.png')}")


def needs_extra(problem: ModuleNotFoundError) -> Failure:
    """The failure for a missing package of the extra `chaos`."""
    fix = "pip install 'raftmq[chaos]'"
    return Failure(f"{problem.name} is not installed", fix=fix, code=ExitCode.FAILED)
