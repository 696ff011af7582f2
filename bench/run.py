"""The runner behind `make bench`: all systems in one run, then two result files.

    python -m bench.run [--only produce,single-200B] [--systems floor,nats] [--seconds 6]
                        [--rounds 1] [--scale 1.0] [--out docs] [--plan]

Each cell (one system in one scenario) is a process of its own on a fresh cluster; no other system
is up meanwhile. The systems of a scenario follow one another, so that what disturbs the machine
for a minute disturbs them alike, and every other round goes through them backwards. One unrecorded
round of the floor comes first: a disk's first touch of its blocks is slower than all later ones.
A cell of consume reads back what it stored by the load of produce, and gives both rows; with
`--only consume` the row of the produce is dropped.

Then raftmq alone goes through the scenarios of growth (`bench.growth`), each a process of its own
too. Their windows last `--seconds`, 2 s at most; `--scale` shrinks their amounts for a trial.

A run says first how long it will take; with `--plan`, that is all. Each finished cell is kept in
`benchmarks.part.jsonl` beside the result files (`bench.journal`): after a stop, or a failed cell,
the same command measures what is missing.

Data goes to the files, tables to stdout, progress to stderr. Exit status: 0 done, 1 a cell failed,
2 usage, 130 stopped.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench import machine, page, report, results
from bench.journal import Grown, Journal, OtherRun, Outcome
from bench.scenarios import (
    GROWTH,
    GROWTH_SECONDS,
    READS,
    SCENARIOS,
    SYSTEMS,
    Cell,
    cells,
    why_unavailable,
    without_fills,
)

STOP_SECONDS_MAX = 20.0
CELL_SECONDS_MAX = 300.0
"""Time of a cell beside its measurements, at most: a cell that takes longer hangs."""
GROWTH_SECONDS_MAX = 900.0
"""Time of a scenario of growth, at most: one that takes longer hangs."""
GROWTH_WINDOW_SECONDS_MAX = 2.0
GROWTH_ROUNDS = 4
TABLE_CHARACTERS = 200
"""Width of the tables where stdout is no terminal."""
PART = "benchmarks.part.jsonl"
"""Name of the file with the finished cells of a run that has not ended."""


def main(arguments: list[str]) -> int:
    """Run the cells and scenarios that the arguments choose; returns the exit status."""
    chosen = _parse(arguments)
    errors = Console(stderr=True)
    if warned := machine.warning():
        errors.print(f"[yellow]warning:[/] {escape(warned)}")
    absent = {name: why_unavailable(name) for name in chosen.systems}
    for name, reason in absent.items():
        if reason is not None:
            errors.print(f"[yellow]skipped[/] {name}: {escape(reason)}")
    systems = [name for name in chosen.systems if absent[name] is None]
    scenarios = [name for name in chosen.only if name in SCENARIOS]
    planned = cells(scenarios, systems, chosen.rounds)
    growth = [name for name in chosen.only if name in GROWTH and "raftmq" in systems]
    if not planned and not growth:
        errors.print(
            "[red]error:[/] nothing to measure: no system that is here has such a scenario"
        )
        return 2
    try:
        journal = Journal(chosen.out / PART, seconds=chosen.seconds, scale=chosen.scale)
    except OtherRun as reason:
        errors.print(f"[red]error:[/] {escape(str(reason))}")
        return 2
    _print_plan(planned, growth, journal, chosen.seconds, errors)
    if chosen.plan:
        return 0
    facts = machine.describe()
    continued = list(journal.starts)
    journal.begin(machine.now(), machine.commit())
    if len(journal.commits) > 1:
        errors.print(f"[yellow]warning:[/] rows of commits {', '.join(journal.commits)}")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failed = _run_all(planned, journal, chosen.seconds, chosen.scale, errors)
        window_seconds = min(chosen.seconds, GROWTH_WINDOW_SECONDS_MAX)
        failed += _run_growth(growth, journal, window_seconds, chosen.scale, errors)
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command goes on, with what is in {chosen.out / PART}")
        return 130
    skipped: list[results.Skip] = [
        {"system": name, "scenario": None, "reason": reason}
        for name, reason in absent.items()
        if reason is not None
    ]
    rows, unsupported = _summarize(planned, journal)
    grown = [journal.grown[name] for name in growth if name in journal.grown]
    result = results.Result(
        date=machine.now(),
        command=shlex.join(["python", "-m", "bench.run", *arguments]),
        seconds=chosen.seconds,
        rounds=chosen.rounds,
        machine=facts,
        rows=rows + [row for each in grown for row in each.rows],
        skipped=skipped + _left_out(scenarios, systems) + unsupported + failed,
        figures=[figure for each in grown for figure in each.figures],
        continues=continued,
        commits=journal.commits,
        scale=chosen.scale,
    )
    _write(result, chosen.out)
    _print_tables(result)
    errors.print(f"wrote {chosen.out}/benchmarks.json and {chosen.out}/benchmarks.md")
    if failed:
        errors.print("the same command measures what failed")
        return 1
    journal.remove()
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--only",
        type=_scenarios,
        default=[*SCENARIOS, *GROWTH],
        help="scenarios, or parts of their names; consume alone does not show its produce",
    )
    parser.add_argument("--systems", type=_systems, default=list(SYSTEMS), help=", ".join(SYSTEMS))
    parser.add_argument("--seconds", type=_positive, default=6.0, help="measured, for each cell")
    parser.add_argument("--rounds", type=_rounds, default=1, metavar="N", help="1 to 99")
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts in growth")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the two files")
    parser.add_argument("--plan", action="store_true", help="only say how long the run takes")
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 600.0:
        raise argparse.ArgumentTypeError(f"{text} is not within 0.1 and 600 seconds")
    return seconds


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise argparse.ArgumentTypeError(f"{text} is not within 1 and 99 rounds")
    return int(text)


def _scenarios(text: str) -> list[str]:
    parts = [part for part in text.split(",") if part]
    names = [*SCENARIOS, *GROWTH]
    found = [name for name in names if any(part in name for part in parts)]
    unknown = [part for part in parts if not any(part in name for name in names)]
    if unknown or not found:
        raise argparse.ArgumentTypeError(f"no scenario has {unknown or text!r} in its name")
    return found


def _systems(text: str) -> list[str]:
    wanted = [part for part in text.split(",") if part]
    unknown = [name for name in wanted if name not in SYSTEMS]
    if unknown or not wanted:
        raise argparse.ArgumentTypeError(f"unknown {unknown}; there are {', '.join(SYSTEMS)}")
    return [name for name in SYSTEMS if name in wanted]


def _print_plan(
    planned: Sequence[Cell],
    growth: Sequence[str],
    journal: Journal,
    seconds: float,
    errors: Console,
) -> None:
    """Say how long the run takes, and what is there already."""
    if journal.starts:
        errors.print(
            f"going on with the run of {journal.starts[0]}: {len(journal.cells)} rows and "
            f"{len(journal.grown)} scenarios of growth are there"
        )
    missing = without_fills([cell for cell in planned if cell not in journal.cells])
    minutes = [0.0] * (1 + max((cell.round for cell in planned), default=0))
    for cell in missing:
        minutes[cell.round] += cell.expected_seconds(seconds) / 60
    growing = [name for name in growth if name not in journal.grown]
    grown = len(growing) * GROWTH_SECONDS / 60
    errors.print(
        f"{len(missing)} cells in rounds of about {', '.join(f'{each:.0f}' for each in minutes)} "
        f"min, {len(growing)} scenarios of growth in {grown:.0f} min: about "
        f"{sum(minutes) + grown:.0f} min"
    )


def _run_all(
    planned: Sequence[Cell], journal: Journal, seconds: float, scale: float, errors: Console
) -> list[results.Skip]:
    """Measure the cells that the journal lacks; returns those that failed."""
    failed: list[results.Skip] = []
    unsupported = {
        (cell.scenario, cell.system) for cell, done in journal.cells.items() if done.row is None
    }
    rows = [cell for cell in planned if cell not in journal.cells]
    missing = without_fills(rows)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[phase]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as progress:
        total = sum(cell.expected_seconds(seconds) for cell in missing)
        whole = progress.add_task("all", total=total, phase="")
        if missing:
            warming = "warming the disk"
            _run_cell("floor", "produce-100B", min(seconds, 3.0), scale, progress, warming)
        began = time.monotonic()
        for previous, cell in itertools.pairwise([*missing[:1], *missing]):
            if cell.round != previous.round:
                minutes = (time.monotonic() - began) / 60
                errors.print(f"round {cell.round + 1} begins after {minutes:.0f} min")
            progress.advance(whole, cell.expected_seconds(seconds))
            wanted = [
                row
                for row in (replace(cell, scenario=n) for n in SCENARIOS[cell.scenario].rows)
                if row in rows and (row.scenario, row.system) not in unsupported
            ]
            if not wanted:
                continue
            outcomes = _run_cell(cell.system, cell.scenario, seconds, scale, progress)
            for row in wanted:
                outcome = outcomes[row.scenario]
                if outcome.has_failed:
                    errors.print(f"[red]failed[/] {row.system} in {row.scenario}:")
                    errors.print(escape(outcome.reason))
                    failed.append(_skip(row, f"round {row.round + 1}: {_first_line(outcome)}"))
                    continue
                journal.note_cell(row, outcome)
                if outcome.row is None:
                    unsupported.add((row.scenario, row.system))
    return failed


def _run_cell(
    system: str, scenario: str, seconds: float, scale: float, progress: Progress, title: str = ""
) -> dict[str, Outcome]:
    """Run one cell in a process of its own, and show its phases; the cell stops when we stop.

    Returns the outcome of each of the scenario's rows, by name.
    """
    passes = SCENARIOS[scenario].times + (SCENARIOS[scenario].operation in READS)
    name = title or f"{scenario} · {system}"
    growing = SCENARIOS[scenario].expected_seconds
    task = progress.add_task(name, total=seconds * passes + growing + 1.0, phase="")
    command = [sys.executable, "-m", "bench.cell", system, scenario, "--seconds", str(seconds)]
    command += ["--scale", str(scale)]
    lines, failure = _run_child(
        command, task, progress, CELL_SECONDS_MAX + 3 * passes * seconds + 2 * growing
    )
    found = {str(line["scenario"]): _outcome(line) for line in lines}
    failed = Outcome(None, failure, has_failed=True)
    return {name: found.get(name, failed) for name in SCENARIOS[scenario].rows}


def _run_growth(
    names: Sequence[str], journal: Journal, seconds: float, scale: float, errors: Console
) -> list[results.Skip]:
    """Run the scenarios of growth that the journal lacks; returns those that failed."""
    failed: list[results.Skip] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[phase]}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        for name in (name for name in names if name not in journal.grown):
            task = progress.add_task(GROWTH[name], total=None, phase="")
            command = [sys.executable, "-m", "bench.growth", name, "--scale", str(scale)]
            command += ["--seconds", str(seconds), "--rounds", str(GROWTH_ROUNDS)]
            lines, failure = _run_child(command, task, progress, GROWTH_SECONDS_MAX)
            if lines:
                rows = cast("list[results.Row]", lines[0]["rows"])
                figures = cast("list[results.GrowthFigure]", lines[0]["figures"])
                journal.note_growth(name, Grown(rows, figures))
            else:
                errors.print(f"[red]failed[/] {name}:")
                errors.print(escape(failure))
                reason = failure.splitlines()[0]
                failed.append({"system": "raftmq", "scenario": name, "reason": reason})
    return failed


def _run_child(
    command: list[str], task: TaskID, progress: Progress, seconds_max: float
) -> tuple[list[dict[str, object]], str]:
    """Run a program that prints its phases; returns its other lines, and how it ended: its status,
    its last phase, and the end of its stderr."""
    try:
        with tempfile.TemporaryFile("w+") as complaints, _started(command, complaints) as child:
            lines, phase = _follow(child, task, progress, time.monotonic() + seconds_max)
            if child.poll() is None:
                child.terminate()
            child.wait()
            complaints.seek(0)
            tail = "\n".join(complaints.read().strip().splitlines()[-12:])
            return lines, f"ended with status {child.returncode} while {phase}\n{tail}"
    finally:
        progress.remove_task(task)


@contextlib.contextmanager
def _started(command: list[str], complaints: "object") -> "Iterator[subprocess.Popen[bytes]]":
    # In a session of its own, the child gets no Ctrl-C: we terminate it once, and it cleans up.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,  # type: ignore[call-overload]
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def _follow(
    child: "subprocess.Popen[bytes]", task: TaskID, progress: Progress, deadline: float
) -> tuple[list[dict[str, object]], object]:
    """Show the child's phases and running time; returns its other lines, and its last phase."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    rest, found, phase, running_since = b"", [], None, None
    while time.monotonic() < deadline:
        is_over = child.poll() is not None
        rest += child.stdout.read() or b""
        *lines, rest = rest.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "phase" not in said:
                found.append(said)
                continue
            phase = said["phase"]
            progress.update(task, phase=str(phase))
            running_since = time.monotonic() if phase == "running" else running_since
        if is_over:
            return found, phase
        if running_since is not None:
            progress.update(task, completed=time.monotonic() - running_since)
        time.sleep(0.1)
    return found, "hanging"


def _outcome(line: dict[str, object]) -> Outcome:
    if "unsupported" in line:
        return Outcome(None, str(line["unsupported"]))
    return Outcome(cast("results.Row", {**line, "ratio_to_floor": None, "rounds": 1}))


def _summarize(
    planned: Sequence[Cell], journal: Journal
) -> tuple[list[results.Row], list[results.Skip]]:
    """The median rows of the planned cells, and those that a system does not support."""
    rows: list[results.Row] = []
    skipped: list[results.Skip] = []
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for cell in planned:
        if cell in journal.cells:
            outcomes.setdefault((cell.scenario, cell.system), []).append(journal.cells[cell])
    for (scenario, system), found in outcomes.items():
        measured = [outcome.row for outcome in found if outcome.row is not None]
        if measured:
            rows.append(results.median_row(measured))
        else:
            skipped.append(_skip(Cell(0, scenario, system), _first_line(found[0])))
    return results.with_ratios(rows), skipped


def _left_out(scenarios: Sequence[str], systems: Sequence[str]) -> list[results.Skip]:
    """The cells that no run measures (`bench.scenarios`)."""
    return [
        _skip(Cell(0, scenario, system), SYSTEMS[system].left_out[scenario])
        for system in systems
        for scenario in scenarios
        if scenario in SYSTEMS[system].left_out
    ]


def _skip(cell: Cell, reason: str) -> results.Skip:
    return {"system": cell.system, "scenario": cell.scenario, "reason": reason}


def _first_line(outcome: Outcome) -> str:
    return outcome.reason.splitlines()[0]


def _write(result: results.Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (folder / page.RESULT).write_text(text + "\n")
    page.write(folder)


def _print_tables(result: results.Result) -> None:
    # A pipe has no width: its tables keep all columns whole.
    console = Console(width=None if sys.stdout.isatty() else TABLE_CHARACTERS)
    for scenario, rows in results.by_scenario(result.rows).items():
        table = Table("system", title=SCENARIOS[scenario].title, title_justify="left")
        for name in report.COLUMNS:
            table.add_column(name, justify="right")
        for row in sorted(rows.values(), key=lambda row: -row["messages_per_s"]):
            table.add_row(*report.cells(row))
        console.print(table)
        if names := report.figure_names(list(rows.values())):
            more = Table("system", *names, "note")
            for row in rows.values():
                more.add_row(*report.figure_texts(row, names), row.get("note", ""))
            console.print(more)
    if result.figures:
        table = Table("scenario", "figure", title="Cost as work grows", title_justify="left")
        for name in ("got", "wanted", "met"):
            table.add_column(name, justify="right")
        for figure in result.figures:
            table.add_row(figure["scenario"], *report.figure_cells(figure))
        console.print(table)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
