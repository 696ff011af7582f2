"""The report as tables on a terminal, and as pictures."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from raftmq.cli.app import run as command_line
from raftmq.cli.exits import Failure
from raftmq.cli.pipeline.report import report
from raftmq.pipeline.report import charts, page, tables
from raftmq.pipeline.report.rules import read as read_rules
from raftmq.pipeline.report.state import State, save

START = 1_795_345_200_000
MINUTE = 60_000


def row(minute: int, group: str = "", topic: str = "orders", **values: Any) -> dict[str, Any]:
    known = {"minute": START + minute * MINUTE, "topic": topic, "group": group}
    empty = dict.fromkeys(tables.ROW) | {"is_partial": False, "mode": "", "origin": "log"}
    return empty | known | values


def alert(number: int, state: str, minute: int) -> dict[str, Any]:
    at = START + minute * MINUTE
    return {
        "number": number, "state": state, "rule": "slow", "topic": "orders", "group": "<b>",
        "minute": at, "since": at, "metric": "lag", "value": 3.0, "peak": 4.0, "threshold": 0.0,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row(n, stored=10 * n) for n in (0, 1, 2, 5, 6)]
    rows += [row(n, "<b>", acked=n, lag=n, retries=0, dead=1) for n in (0, 1, 2, 5, 6)]
    tables.write(tmp_path, "report_minute", rows)
    tables.write(tmp_path, "alert", [alert(1, "open", 1), alert(2, "closed", 5)])
    save(tmp_path, State("name"))
    return tmp_path


def drawn(folder: Path) -> tuple[list[charts.Sheet], charts.Axis]:
    rows = tables.read(folder, "report_minute")
    axis = charts.axis_of(rows)
    return charts.sheets_of(rows, tables.read(folder, "alert"), axis)[0], axis


def test_missing_and_partial_minutes_are_gaps(folder: Path) -> None:
    tables.write(folder, "report_minute", [row(6, stored=1, is_partial=True)])
    ((sheet,), axis) = drawn(folder)
    assert axis == charts.Axis(START, 7, 1)
    assert sheet.gaps == (3, 4, 6)
    assert sheet.panels[0].lines[0].values == [0, 10, 20, None, None, 50, None]
    assert [mark.point for mark in sheet.marks] == [1, 5]


def test_minutes_before_the_first_one_of_a_topic_are_no_gaps() -> None:
    for minutes in (20, 2000):
        rows = [row(n, topic="old", stored=9) for n in range(minutes)]
        rows += [row(n, stored=1) for n in range(minutes // 2, minutes - 3) if n != minutes - 8]
        axis = charts.axis_of(rows)
        gaps = {sheet.topic: sheet.gaps for sheet in charts.sheets_of(rows, [], axis)[0]}
        assert gaps == {"old": (), "orders": (axis.point(START + (minutes - 8) * MINUTE),)}


def test_lines_of_a_full_panel_and_of_many_groups_look_different() -> None:
    rows = [row(0, f"g{group:02}", lag=99 - group) for group in range(2 * charts.COLORS)]
    rows += [row(0, f"g{group:02}", dead=1) for group in range(2 * charts.COLORS)]
    ((sheet,), _) = charts.sheets_of(rows, [], charts.axis_of(rows))
    lines = sheet.panels[1].lines
    assert len(lines) == charts.LINES_MAX
    assert len({line.color for line in lines}) == charts.LINES_MAX
    text = page.page(rows, [])
    styles = {f".c{line.color} " for line in lines}
    assert all(style in text for style in styles)
    looks = {(line.color, line.is_dashed, line.is_dotted) for line in sheet.panels[2].lines}
    assert len(looks) == charts.LINES_MAX


def test_newest_alerts_stand_above_the_charts_and_older_ones_are_folded() -> None:
    alerts = [alert(n, "open", n) for n in range(1, 59)]
    text = page.page([row(n, stored=1) for n in range(60)], alerts)
    shown, found, older = text.partition("<summary>48 older</summary>")
    assert found
    assert "<details>" in shown
    assert (shown.count("<td>slow</td>"), older.count("<td>slow</td>")) == (10, 48)


def test_opening_and_closing_of_an_alert_have_different_shapes(folder: Path) -> None:
    text = page.page(tables.read(folder, "report_minute"), tables.read(folder, "alert"))
    shapes = {
        state: {
            found.partition(" ")[2] for found in re.findall(f'class="{state}" d="M([^"]*)"', text)
        }
        for state in ("open", "closed")
    }
    assert all(len(found) == 1 for found in shapes.values())
    assert shapes["open"] != shapes["closed"]


def test_point_of_a_long_time_is_the_mean_or_the_highest() -> None:
    rows = [row(n, stored=n) for n in range(1000)] + [row(n, "g", lag=n) for n in range(1000)]
    axis = charts.axis_of(rows)
    assert (axis.points, axis.minutes) == (334, 3)
    ((sheet,), _) = charts.sheets_of(rows, [], axis)
    assert sheet.gaps == ()
    assert sheet.panels[0].lines[0].values[:2] == [1, 4]
    assert sheet.panels[1].lines[0].values[:2] == [2, 5]


def test_lines_with_the_highest_points_are_drawn() -> None:
    rows = [row(n, f"g{group:02}", lag=group) for n in range(2) for group in range(20)]
    ((sheet,), _) = charts.sheets_of(rows, [], charts.axis_of(rows))
    assert [line.name for line in sheet.panels[1].lines] == [f"g{n}" for n in range(12, 20)]
    assert sheet.panels[1].left_out == 12


def test_page_is_whole_and_shows_gaps_and_alerts(folder: Path) -> None:
    text = page.page(tables.read(folder, "report_minute"), tables.read(folder, "alert"))
    pictures = [ElementTree.fromstring(each) for each in re.findall("(?s)<svg.*?</svg>", text)]
    charts_drawn = [each for each in pictures if "viewBox" in each.attrib]
    assert len(charts_drawn) == 3
    for each in charts_drawn:
        kinds = [part.attrib.get("class", "") for part in each]
        assert (kinds.count("gap"), kinds.count("open"), kinds.count("closed")) == (1, 1, 1)
        # Two lines of a path: nothing is drawn across the gap.
        (line, *_) = (part for part in each if part.attrib.get("class", "").startswith("line"))
        assert line.attrib["d"].count("M") == 2
    assert "<b>:" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in text, "no script may run"
    assert "<script" not in text
    assert "<td>&lt;b&gt;</td>" in text


def test_busiest_topic_is_drawn_first_and_totals_stand_above_all() -> None:
    rows = [row(n, topic="alerts", stored=1) for n in range(2)]
    rows += [row(n, stored=600) for n in range(2)]
    rows += [row(n, "g", acked=500, retries=3, dead=1, lag=700 - n) for n in range(2)]
    text = page.page(rows, [])
    assert re.findall("<h2>(.*?)</h2>", text) == ["orders", "alerts"]
    (totals,) = re.findall('<p class="totals">(.*?)</p>', text)
    assert totals == "1,202 in, 1,000 acked, 6 retries, 2 dead letters; a lag of 699 at the end."
    assert text.index("totals") < text.index("<h2>")


def test_chart_that_is_alone_is_as_wide_as_the_others() -> None:
    # With `auto-fit` the empty columns collapse, and one chart grows to twice its scale.
    assert "auto-fill, minmax" in page.page([row(0, stored=1)], [])


def test_png_is_drawn(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra `plots`")
    path = tmp_path / "report.png"
    run("page", "--in", str(folder), "--png", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_picture_without_matplotlib_names_the_extra(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = ["pipeline", "report", "page", "--in", str(folder), "--png", str(tmp_path / "p.png")]
    assert command_line(line) == 1
    assert "pip install 'raftmq[plots]'" in capsys.readouterr().err


def test_point_without_neighbours_is_a_dot(tmp_path: Path) -> None:
    tables.write(tmp_path, "report_minute", [row(0, stored=10)])
    text = page.page(tables.read(tmp_path, "report_minute"), [])
    assert re.search(r'<path class="line alone c0[^"]*" d="M([\d.]+ [\d.]+)L\1"/>', text)


def test_page_of_a_topic_without_minutes_names_those_with_some(
    folder: Path, tmp_path: Path
) -> None:
    line = ("page", "--in", str(folder), "--out", str(tmp_path / "p.html"), "--topic", "nosuch")
    with pytest.raises(Failure, match="there are no minutes of topic 'nosuch'") as refused:
        run(*line)
    assert refused.value.fix == "--topic is one of orders"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(report, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_show_prints_rows_and_alerts(folder: Path) -> None:
    lines = run("show", "--in", str(folder), "--group", "<b>").splitlines()
    assert len(lines) == 6
    assert re.match(r"2026-11-2\d[T ]\d\d:\d\d +orders +<b> ", lines[1])
    shown = json.loads(run("show", "--in", str(folder), "--group", "", "-o", "json"))
    assert [each["stored"] for each in shown] == [0, 10, 20, 50, 60]
    alerts = json.loads(run("show", "--in", str(folder), "--alerts", "-o", "json"))
    assert [(each["state"], each["minute"]) for each in alerts] == [
        ("open", "2026-11-22T11:01:00Z"),
        ("closed", "2026-11-22T11:05:00Z"),
    ]


def test_folder_without_a_report_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there is no report"):
        run("show", "--in", str(tmp_path))


def test_built_in_rules_are_printed_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(run("rules"))
    assert read_rules(path) == read_rules()
