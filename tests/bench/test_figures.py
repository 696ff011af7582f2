"""When a figure meets its target, and how two alternating ways are compared."""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure, compared, table, write


def test_figure_is_met_on_the_side_of_what_is_wanted() -> None:
    assert [Figure("rate", value, wanted=5.0).is_met for value in (4.9, 5.0, 5.1)] == [
        False, True, True,
    ]  # fmt: skip
    limits = [Figure("time", value, wanted=0.3, is_limit=True) for value in (0.2, 0.3, 0.4)]
    assert [each.is_met for each in limits] == [True, True, False]
    assert Figure("for comparison", 0.0).is_met


def test_ratio_is_the_median_of_neighbours_without_the_first_pair() -> None:
    turns: list[str] = []
    # The machine's pace changes from pair to pair: the ratio of the medians would be 6.
    ours, theirs = iter([100.0, 12.0, 2.0, 14.0]), iter([1.0, 4.0, 1.0, 2.0])

    def way(word: str, values: Iterator[float]) -> float:
        turns.append(word)
        return next(values)

    found = compared(
        "read", lambda: way("a", ours), lambda: way("b", theirs),
        rounds=3, words=("fast", "slow"), unit="rows/s", wanted=0.5, is_limit=True,
    )  # fmt: skip
    assert "".join(turns) == "abababab"
    assert found == [
        Figure("read: fast", 12.0, "rows/s"),
        Figure("read: slow", 2.0, "rows/s"),
        Figure("read: ratio", 3.0, wanted=0.5, is_limit=True),
        Figure("read: lowest ratio", 2.0),
        Figure("read: highest ratio", 7.0),
    ]
    assert not found[2].is_met


def test_table_marks_what_is_missed_and_json_holds_all(tmp_path: Path) -> None:
    figures = [Figure("good", 2000.0, "rows/s", wanted=5.0), Figure("bad", 0.4, "", 0.3, True)]
    shown = table(figures)
    assert [row.style for row in shown.rows] == ["", "bold red"]
    assert [list(column.cells) for column in shown.columns[1:]] == [
        ["2,000 rows/s", "0.40 "], ["≥ 5", "≤ 0.3"],
    ]  # fmt: skip
    write(tmp_path / "figures.json", {"date": "today"}, figures)
    content = json.loads((tmp_path / "figures.json").read_text())
    assert content["date"] == "today"
    assert [Figure(**each) for each in content["figures"]] == figures
