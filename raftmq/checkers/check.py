"""Judge recorded histories: `python -m raftmq.checkers.check PATH... [-o text|json] [--explain]`.

A folder stands for the histories in it and below: all files named `*.log`, `*.txt`, `*.edn`,
`*.parquet`; the formats are those of `raftmq.checkers.formats`. With `-o json` the answer is
one object, `{file: "valid" | "invalid" | "unknown"}`, on stdout; reasons and explanations go to
stderr.

| exit status | when |
|---|---|
| 0 | every history was judged, whatever the verdicts |
| 2 | a file is no history in a known format, or there is none; the others are judged all the same |
| 5 | with `--strict`: all were judged and at least one is invalid |
"""

import re
import sys
from pathlib import Path

import click
import msgspec

from raftmq.checkers.objects.linearizability import Limit
from raftmq.checkers.objects.search import PLACES_MAX

from .formats import read_history
from .history import NotAHistory
from .judge import judge
from .verdict import Verdict, explain, worst

BESIDE = re.compile(r"node-\d+\.log|replay\.txt")
"""Files beside histories: logs of nodes, and the command that plays the run again."""
SUFFIXES = frozenset({".log", ".txt", ".edn", ".parquet"})
EXIT_USAGE = 2
EXIT_VIOLATION = 5


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.option("--explain", "is_explained", is_flag=True, help="Explain each anomaly, on stderr.")
@click.option("--strict", is_flag=True, help="Exit with 5 if a history is invalid.")
@click.option("--places", default=PLACES_MAX, show_default=True, help="Search limit for each key.")
@click.option("--seconds", default=60.0, show_default=True, help="Search limit for each file.")
def main(
    paths: tuple[Path, ...],
    output: str,
    is_explained: bool,
    strict: bool,
    places: int,
    seconds: float,
) -> None:
    """Judge each history: valid, invalid or unknown."""
    verdicts: dict[str, Verdict] = {}
    problems = 0
    files = [(path, file) for path in paths for file in histories_in(path)]
    for path, file in files:
        name = _name(path, file, is_alone=len(paths) == 1)
        try:
            verdicts[name] = judge_file(file, Limit(places, seconds), is_explained=is_explained)
        except NotAHistory as problem:
            click.echo(f"error: {problem}", err=True)
            problems += 1
    if not files:
        click.echo(
            f"error: no history (*{', *'.join(sorted(SUFFIXES))}) here; a run of the core world "
            "has none, for it has no clients: `raftmq chaos replay` judges it",
            err=True,
        )
    if output == "json":
        texts = {name: verdict.value for name, verdict in verdicts.items()}
        click.echo(msgspec.json.format(msgspec.json.encode(texts)))
    else:
        for name, verdict in verdicts.items():
            click.echo(f"{name}  {verdict.value}")
    if problems or not files:
        sys.exit(EXIT_USAGE)
    if strict and Verdict.INVALID in verdicts.values():
        sys.exit(EXIT_VIOLATION)


def histories_in(path: Path) -> list[Path]:
    """The file itself, or the histories in a folder and those below it, by name.

    Other files that the plugin and campaigns keep beside histories are left out.
    """
    if path.is_file():
        return [path]
    found = [file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file()]
    return sorted(file for file in found if not BESIDE.fullmatch(file.name))


def judge_file(path: Path, limit: Limit, *, is_explained: bool = False) -> Verdict:
    """The worst verdict of all checkers that fit the file's functions.

    Raises:
        NotAHistory: the file's format is not known.
    """
    history = read_history(path)
    reports = judge(history, limit=limit, is_shrinking=is_explained)
    for report in reports:
        if is_explained:
            click.echo(f"{path}\n{explain(report, history)}\n", err=True)
        elif report.reason:
            click.echo(f"{path}: {report.checker}: {report.reason}", err=True)
    return worst(report.verdict for report in reports)


def _name(path: Path, file: Path, *, is_alone: bool) -> str:
    """A file's name in the answer: relative to the path if one was given; else the whole path."""
    if not is_alone:
        return str(file)
    return file.name if file == path else file.relative_to(path).as_posix()


if __name__ == "__main__":
    main()
