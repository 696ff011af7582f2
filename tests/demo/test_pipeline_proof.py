"""The proof of `make demo-pipeline` can fail: each kind of violation is planted, and found."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.flights import Flight
from demo.pipeline.proof import check_archive, check_windows, expected, windows_of

ROWS = 20
QUEUES = 2
ENDS = dict.fromkeys(range(QUEUES), ROWS // QUEUES)
Row = dict[str, Any]


def flight(row: int) -> Flight:
    """The departure of this number: two carriers, two days."""
    hour = f'"2013-01-0{1 + row % 2}T10:00:00Z"'
    body = f'{{"time_hour":{hour},"distance":{100 + row}}}'.encode()
    return Flight(row, body, f"N{row}" if row % 3 else None, "UA" if row < 10 else "AA", {})


SENT = {row: flight(row) for row in range(ROWS)}


def archive() -> list[Row]:
    """Rows as the archive holds them, each once."""
    return [
        {
            "queue": row % QUEUES,
            "offset": row // QUEUES,
            "body": sent.body,
            "key": sent.key,
            "tag": sent.tag,
            "props": [("row", str(row))],
        }
        for row, sent in SENT.items()
    ]


def found(rows: list[Row]) -> dict[str, int]:
    """How often each promise of the archive is broken."""
    props = pa.array([row["props"] for row in rows], pa.map_(pa.string(), pa.string()))
    plain = [{name: row[name] for name in row if name != "props"} for row in rows]
    table = pa.Table.from_pylist(plain).append_column("props", props)
    checks = check_archive(table, SENT, ENDS)
    assert all(check.holds == (not check.examples) for check in checks)
    return {check.promise: check.violations for check in checks if not check.holds}


def test_whole_archive_holds() -> None:
    assert found(archive()) == {}
    # In any order.
    assert found(archive()[::-1]) == {}


def test_row_that_is_missing_is_found() -> None:
    rows = archive()
    rows.pop(7)
    assert found(rows) == {"each offset of each queue is there": 1, "each departure is there": 1}


def test_row_that_is_there_twice_is_found() -> None:
    assert found([*archive(), archive()[3]]) == {"each of them once": 1}


@pytest.mark.parametrize(("column", "value"), [("body", b"{}"), ("key", "N99"), ("tag", None)])
def test_row_that_was_altered_is_found(column: str, value: object) -> None:
    rows = archive()
    rows[4][column] = value
    assert found(rows) == {"as sent: body, key, tag": 1}


def test_row_that_nobody_sent_is_found() -> None:
    rows = archive()
    rows[5]["props"] = [("row", "999")]
    assert found(rows) == {"as sent: body, key, tag": 1, "each departure is there": 1}


def test_windows_that_differ_are_found() -> None:
    wanted = expected(SENT.values())
    assert {place[1] for place in wanted} == {"UA", "AA"}
    assert all(check.holds for check in check_windows(wanted, dict(wanted)))
    shown = dict(wanted)
    first, second, *_ = sorted(shown)
    count, miles = shown[first]
    shown[first] = (count, miles + 1)
    shown["2013-01-09", "UA"] = shown.pop(second)
    broken = {check.promise: check.violations for check in check_windows(wanted, shown)}
    assert broken == {
        "each window is there": 1,
        "none was invented": 1,
        "counts and sums are exact": 1,
    }


def test_window_that_was_written_twice_ends_the_proof(tmp_path: Path) -> None:
    row = {
        "window_start": datetime(2013, 1, 1, tzinfo=UTC),
        "carrier": "UA",
        "count": 2,
        "miles": 9,
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "1.parquet")
    assert windows_of(tmp_path) == {("2013-01-01", "UA"): (2, 9)}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "2.parquet")
    with pytest.raises(AssertionError, match="2013-01-01"):
        windows_of(tmp_path)
