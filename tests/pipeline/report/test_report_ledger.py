"""Closing of minutes, the rows of minutes, opening and closing of alerts."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from raftmq.pipeline import PipelineError
from raftmq.pipeline.report import rules as ruling
from raftmq.pipeline.report import tables
from raftmq.pipeline.report.minute_facts import MINUTE_MS, Facts, Flow, Level
from raftmq.pipeline.report.minute_ledger import GRACE_MS, KEPT_MS, Ledger, Look, Standing
from raftmq.pipeline.report.rules import Judge, Rule
from raftmq.pipeline.report.state import State, load, locked, save

START = 100 * MINUTE_MS
KEY = ("orders", "billing")


def look(minutes: float = 0, **other: Any) -> Look:
    now = START + int(minutes * MINUTE_MS)
    known = Look(now, {1: (1, 9), 2: (1, 9)}, ("orders",), {KEY: "pop"}, (), ())
    return structs.replace(known, **other)


def facts(minute: int, *, acked: int = 0, lag: int | None = None, at: int = 0) -> Facts:
    """Of one batch: `minute` counts from the start."""
    time = START + minute * MINUTE_MS
    found = Facts({(time, *KEY): Flow(acked=acked)}, last=time + at)
    if lag is not None:
        found.levels[time, *KEY] = Level(lag, lag, 1)
    return found


def closed(ledger: Ledger, now: Look) -> dict[int, list[dict[str, Any]]]:
    return {(minute - START) // MINUTE_MS: rows for minute, rows in ledger.close(now)}


def group_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = (row for row in rows if row["group"] == "billing")
    return row


def test_minute_is_closed_once_all_logs_are_past_it() -> None:
    ledger = Ledger()
    ledger.take(1, facts(0, acked=1), is_first=False)
    assert not closed(ledger, look(9))
    ledger.take(1, facts(1, acked=2), is_first=False)
    ledger.take(2, facts(0, acked=4, at=59_999), is_first=False)
    assert not closed(ledger, look(9))
    ledger.reached_end(2, START + MINUTE_MS + GRACE_MS - 1)
    assert not closed(ledger, look(9))
    ledger.reached_end(2, START + MINUTE_MS + GRACE_MS)
    found = closed(ledger, look(9))
    assert list(found) == [0]
    assert group_row(found[0])["acked"] == 5
    assert not closed(ledger, look(9))


def test_levels_stay_until_they_change() -> None:
    ledger = Ledger()
    ledger.take(1, facts(0, lag=10), is_first=False)
    ledger.take(2, facts(0, lag=5), is_first=False)
    ledger.take(1, facts(3, lag=1), is_first=False)
    for number in (1, 2):
        ledger.reached_end(number, START + 4 * MINUTE_MS + GRACE_MS)
    found = closed(ledger, look(9))
    assert {n: group_row(rows)["lag"] for n, rows in found.items()} == {0: 15, 1: 15, 2: 15, 3: 6}
    assert group_row(found[0])["oldest_ms"] == START + MINUTE_MS - 1


def test_late_event_reopens_what_it_changes() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.take(number, facts(0, acked=1), is_first=False)
        ledger.reached_end(number, START + 3 * MINUTE_MS + GRACE_MS)
    assert list(closed(ledger, look(9))) == [0, 1, 2]
    ledger.take(1, Facts({(START + MINUTE_MS, *KEY): Flow(acked=7)}), is_first=False)
    found = closed(ledger, look(9))
    assert {n: group_row(rows)["acked"] for n, rows in found.items()} == {1: 7}
    late = Facts(levels={(START + MINUTE_MS, *KEY): Level(4, 4, 0)})
    ledger.take(1, late, is_first=False)
    found = closed(ledger, look(9))
    assert {n: group_row(rows)["lag"] for n, rows in found.items()} == {1: 4, 2: 4}


def test_event_that_is_too_late_is_counted_in_the_oldest_minute() -> None:
    ledger = Ledger()
    minutes = KEPT_MS // MINUTE_MS + 5
    for number in (1, 2):
        ledger.take(number, facts(0), is_first=False)
        ledger.reached_end(number, START + minutes * MINUTE_MS + GRACE_MS)
    closed(ledger, look(minutes))
    ledger.take(1, facts(0, acked=3), is_first=False)
    assert group_row(closed(ledger, look(minutes))[5])["acked"] == 3
    assert len(ledger.flows) <= KEPT_MS // MINUTE_MS + 1


def test_minutes_from_before_the_log_are_partial() -> None:
    ledger = Ledger()
    cut = structs.replace(facts(0, acked=1), is_cut=True)
    ledger.take(1, cut, is_first=True)
    ledger.take(2, structs.replace(cut), is_first=False)
    for number in (1, 2):
        ledger.reached_end(number, START + 2 * MINUTE_MS + GRACE_MS)
    found = closed(ledger, look(9))
    assert [group_row(found[n])["is_partial"] for n in (0, 1)] == [True, False]


def test_group_that_reads_by_offset_has_a_snapshot_of_the_last_minute() -> None:
    ledger = Ledger()
    ledger.see(look(0))
    for number in (1, 2):
        ledger.reached_end(number, START + 3 * MINUTE_MS + GRACE_MS)
    now = look(3.1, standings=(Standing("orders", "mirror", "pull", 12),))
    found = closed(ledger, now)
    (row,) = (row for row in found[2] if row["group"] == "mirror")
    assert (row["lag"], row["origin"], row["acked"]) == (12, "snapshot", None)
    assert not [row for row in (*found[0], *found[1]) if row["group"] == "mirror"]


def test_group_that_is_gone_has_no_rows_and_holds_up_nothing() -> None:
    ledger = Ledger()
    for number in (1, 2):
        ledger.take(number, facts(0, lag=3), is_first=False)
    gone = look(1, modes={}, ranges={1: (1, 9)})
    ledger.see(gone)
    ledger.reached_end(1, START + 2 * MINUTE_MS + GRACE_MS)
    found = closed(ledger, gone)
    assert [row["group"] for row in found[1]] == [""]
    assert group_row(found[0])["lag"] is None


# Rules


def row(minute: int, **values: Any) -> dict[str, Any]:
    known = {"minute": START + minute * MINUTE_MS, "topic": "orders", "group": "billing"}
    return dict.fromkeys(tables.ROW) | {"is_partial": False} | known | values


def alerts(rule: Rule, *rows: dict[str, Any]) -> list[tuple[int, str]]:
    judge = Judge()
    found = [alert for each in rows for alert in judge.judge([rule], [each])]
    assert [alert.number for alert in found] == list(range(1, len(found) + 1))
    return [((alert.minute - START) // MINUTE_MS, alert.state) for alert in found]


def test_alert_opens_after_so_many_minutes_and_closes_when_the_rule_holds() -> None:
    rule = Rule("slow", "lag_growth", minutes=3)
    lags = [0, 5, 6, 6, 7, 8, 9, 10, 10, 11]
    rows = [row(minute, lag=lag) for minute, lag in enumerate(lags)]
    assert alerts(rule, *rows) == [(6, "open"), (8, "closed")]


def test_alert_tells_since_when_and_how_bad() -> None:
    judge, rule = Judge(), Rule("dead", "dead", minutes=2)
    found = [
        alert
        for minute, dead in enumerate([0, 3, 9, 4, 0])
        for alert in judge.judge([rule], [row(minute, dead=dead)])
    ]
    assert [each.state for each in found] == ["open", "closed"]
    assert {each.since for each in found} == {START + MINUTE_MS}
    assert [(each.value, each.peak) for each in found] == [(9, 9), (0, 9)]


def test_alert_of_a_group_that_is_gone_is_closed() -> None:
    judge, rule = Judge(), Rule("dead", "dead")
    assert judge.judge([rule], [row(0, dead=1)])
    (alert,) = judge.judge([rule], [row(1, group="other", dead=0)])
    assert (alert.state, alert.group) == ("closed", "billing")


@pytest.mark.parametrize(
    ("name", "broken", "fine"),
    [
        ("no-consumer", {"fresh": 2, "consumers": 0}, {"fresh": 2, "consumers": 1}),
        ("many-retries", {"handed_out": 10, "retries": 3}, {"handed_out": 10, "retries": 2}),
        ("dead-letters", {"dead": 1}, {"dead": 0}),
    ],
)
def test_built_in_rule(name: str, broken: dict[str, int], fine: dict[str, int]) -> None:
    (rule,) = (each for each in ruling.read() if each.name == name)
    rows = [row(minute, **(broken if minute < 5 else fine)) for minute in range(6)]
    assert alerts(rule, *rows) == [(rule.minutes - 1, "open"), (5, "closed")]


def test_trimmed_log_is_an_alert_unless_the_report_is_new() -> None:
    (rule,) = (each for each in ruling.read() if each.name == "missing-minutes")
    partial = [row(minute, group="", is_partial=minute in (0, 2)) for minute in range(4)]
    assert alerts(rule, *partial) == [(2, "open"), (3, "closed")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[rule]]\nname = "a"\nmetric = "lags"', "no metric 'lags'"),
        ('[[rule]]\nname = "a"\nmetric = "lag"\nis = "=>"', "'=>' is no comparison"),
        ('[[rule]]\nname = "a"\nmetric = "lag"\nminutes = 0', "minutes of 1 or more"),
        ('[[rule]]\nname = "a"\nmetric = "lag"\nfor = 3', "`for`"),
        ('[[rule]]\nname = "a"\nmetric = "lag"\n' * 2, "the name 'a'"),
        ("[[rule", "cannot be read"),
    ],
)
def test_bad_rules_are_refused_with_a_reason(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=said):
        ruling.read(path)


# Tables on disk


def test_row_that_is_written_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    first = [row(minute, mode="pop", origin="log", lag=minute) for minute in (0, 19, 21)]
    tables.write(tmp_path, "report_minute", first)
    before = tables.read(tmp_path, "report_minute")
    tables.write(tmp_path, "report_minute", first)
    assert tables.read(tmp_path, "report_minute") == before == first
    tables.write(tmp_path, "report_minute", [first[1] | {"lag": 7}])
    found = tables.read(tmp_path, "report_minute", since_ms=START + MINUTE_MS)
    assert [each["lag"] for each in found] == [7, 21]
    files = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    assert files == ["01.parquet", "02.parquet"]


def test_state_is_read_back_as_it_was(tmp_path: Path) -> None:
    state = State("name", offsets={1: 5}, carries={1: b"x"})
    state.ledger.take(1, facts(0, acked=3, lag=2), is_first=False)
    state.ledger.see(look(0))
    state.outbox.rows = [row(0)]
    state.outbox.alerts = Judge().judge([Rule("dead", "dead")], [row(0, dead=1)])
    save(tmp_path, state)
    assert load(tmp_path) == state


def test_folder_has_one_report_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(PipelineError, match="another report")
    with locked(tmp_path / "a"), refused, locked(tmp_path / "a"):
        pass


def test_damaged_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"\x81")
    with pytest.raises(PipelineError, match="damaged"):
        load(tmp_path)
