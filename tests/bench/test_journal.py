"""A stopped run goes on: finished cells are kept line by line."""

import json
from pathlib import Path

import pytest

from bench.journal import Grown, Journal, OtherRun, Outcome
from bench.scenarios import Cell
from tests.bench.test_report import row

CELL = Cell(0, "single-200B", "floor")


def opened(path: Path, seconds: float = 4.0) -> Journal:
    return Journal(path, seconds=seconds, scale=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a run that was stopped after one cell and one scenario of growth."""
    path = tmp_path / "out" / "part.jsonl"
    journal = opened(path)
    journal.begin("monday", "a1b2")
    journal.note_cell(CELL, Outcome(row("single-200B", "floor", 100.0)))
    journal.note_growth("slow", Grown([row("slow-produce", "raftmq", 1.0)], []))
    return path


def test_finished_work_of_a_stopped_run_is_found_again(path: Path) -> None:
    journal = opened(path)
    assert journal.starts == ["monday"]
    assert journal.cells == {CELL: Outcome(row("single-200B", "floor", 100.0))}
    assert journal.grown == {"slow": Grown([row("slow-produce", "raftmq", 1.0)], [])}


def test_cell_without_a_row_keeps_its_reason(path: Path) -> None:
    journal = opened(path)
    journal.begin("tuesday", "a1b2")
    journal.note_cell(Cell(0, "pop-100B", "floor"), Outcome(None, "no leases"))
    found = opened(path)
    assert found.starts == ["monday", "tuesday"]
    assert found.cells[Cell(0, "pop-100B", "floor")] == Outcome(None, "no leases")


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_line_that_was_cut_is_as_if_it_had_not_been_written(path: Path, cut: int) -> None:
    path.write_text(path.read_text()[:-cut])
    journal = opened(path)
    assert list(journal.cells) == [CELL]
    assert journal.grown == {}
    journal.begin("tuesday", "a1b2")
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert opened(path).starts == ["monday", "tuesday"]


def test_commits_of_all_starts_are_kept_once_each(path: Path) -> None:
    opened(path).begin("tuesday", "a1b2")
    opened(path).begin("wednesday", "c3d4+")
    journal = opened(path)
    assert journal.starts == ["monday", "tuesday", "wednesday"]
    assert journal.commits == ["a1b2", "c3d4+"]
    journal.begin("thursday", "e5f6")
    assert journal.commits == ["a1b2", "c3d4+", "e5f6"]


def test_run_of_other_settings_is_refused(path: Path) -> None:
    with pytest.raises(OtherRun, match=r"--seconds 4.0 --scale 1.0: go on with these, or remove"):
        opened(path, seconds=6.0)


def test_complete_run_leaves_no_file(path: Path) -> None:
    opened(path).remove()
    assert list(path.parent.iterdir()) == []
