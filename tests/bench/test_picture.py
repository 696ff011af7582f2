"""The picture shows every system of the scenarios that raftmq ran in."""

from pathlib import Path

from bench.picture import COLOURS, draw
from bench.results import Row
from bench.scenarios import SYSTEMS
from tests.bench.test_report import ROWS, row


def drawn(rows: list[Row], path: Path) -> str:
    draw(rows, path)
    return path.read_text()


def test_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    assert drawn(ROWS, tmp_path / "one.svg") == drawn(ROWS, tmp_path / "other.svg")


def test_scenario_without_raftmq_is_left_out(tmp_path: Path) -> None:
    text = drawn([*ROWS, row("pop-100B", "nats", 1.0)], tmp_path / "picture.svg")
    assert "Produce, 100 B, batches of 100" in text
    assert "Pop and acknowledge" not in text


def test_system_of_older_results_is_drawn(tmp_path: Path) -> None:
    rows = [*ROWS, row("single-200B", "raftmq-assigned", 1.0)]
    assert drawn(rows, tmp_path / "more.svg") != drawn(ROWS, tmp_path / "less.svg")


def test_every_system_has_a_colour(tmp_path: Path) -> None:
    assert {name.partition("-")[0] for name in SYSTEMS} == set(COLOURS)
    rows = [row("single-200B", name, 1.0 + number) for number, name in enumerate(SYSTEMS)]
    assert drawn(rows, tmp_path / "all.svg")
