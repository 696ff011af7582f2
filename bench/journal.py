"""The finished rows of a run, kept in a file as they come, so that a stopped run can go on.

The file has one JSON object a line:

| line | fields |
|---|---|
| a start | `started` (date), `commit`, `seconds`, `scale` |
| a row of a cell | `round`, `scenario`, `system`, `row` (null: unsupported), `reason` |
| a scenario of growth | `growth` (its name), `rows`, `figures` |

A cell of consume has two lines: its own, and that of the produce that filled the log. The same
command reads the file, measures the missing rows, and removes the file at its end. A row or a
scenario that failed is not in the file. The same command with fewer rounds writes the result files
of the rounds that are complete, at once.

Invariants:
- A line is complete or ignored: a last line that a power loss or SIGKILL cut is removed.
- All lines are of cells that were measured with equal `seconds` and `scale`. Their commits may
  differ, and the result names all of them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.results import GrowthFigure, Row
from bench.scenarios import Cell


class OtherRun(Exception):
    """The file is of a run with other settings; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one system in one scenario in one round: a row, or why there is none."""

    row: Row | None
    reason: str = ""
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Grown:
    """The results of one scenario of growth."""

    rows: list[Row]
    figures: list[GrowthFigure]


class Journal:
    """The finished work of a run and of the stopped runs that it continues."""

    def __init__(self, path: Path, *, seconds: float, scale: float) -> None:
        """Read the file if there is one. Raises `OtherRun`."""
        self._path = path
        self._start = {"seconds": seconds, "scale": scale}
        self.starts: list[str] = []
        """Dates of the runs that this one continues."""
        self.commits: list[str] = []
        """Their commits, each once; after `begin` that of this run as well."""
        self.cells: dict[Cell, Outcome] = {}
        self.grown: dict[str, Grown] = {}
        text = path.read_text() if path.exists() else ""
        self._complete = text[: text.rfind("\n") + 1]
        for line in self._complete.splitlines():
            self._read(json.loads(line))

    def begin(self, date: str, commit: str) -> None:
        """Note the start of this run; the file exists from now on."""
        self._add_commit(commit)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(self._complete)
        self._append({"started": date, "commit": commit, **self._start})

    def note_cell(self, cell: Cell, outcome: Outcome) -> None:
        """Keep an outcome that is no failure."""
        assert not outcome.has_failed
        self.cells[cell] = outcome
        where = {"round": cell.round, "scenario": cell.scenario, "system": cell.system}
        self._append({**where, "row": outcome.row, "reason": outcome.reason})

    def note_growth(self, name: str, grown: Grown) -> None:
        """Keep a scenario of growth."""
        self.grown[name] = grown
        self._append({"growth": name, "rows": grown.rows, "figures": grown.figures})

    def remove(self) -> None:
        """Forget all: the run is complete, and its files are written."""
        self._path.unlink()

    def _read(self, line: dict[str, object]) -> None:
        if "started" in line:
            if {"seconds": line["seconds"], "scale": line["scale"]} != self._start:
                raise OtherRun(
                    f"{self._path} is of a stopped run with --seconds {line['seconds']} --scale "
                    f"{line['scale']}: go on with these, or remove the file"
                )
            self.starts.append(str(line["started"]))
            self._add_commit(str(line["commit"]))
        elif "growth" in line:
            rows, figures = line["rows"], line["figures"]
            self.grown[str(line["growth"])] = Grown(
                cast("list[Row]", rows), cast("list[GrowthFigure]", figures)
            )
        else:
            cell = Cell(cast("int", line["round"]), str(line["scenario"]), str(line["system"]))
            self.cells[cell] = Outcome(cast("Row | None", line["row"]), str(line["reason"]))

    def _add_commit(self, commit: str) -> None:
        if commit not in self.commits:
            self.commits.append(commit)

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
