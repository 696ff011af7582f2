"""Histories read, refused and stored; mostly without Spark."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.checkers import write_parquet
from raftmq.cli.pipeline.starter import Starter
from raftmq.pipeline import PipelineError
from raftmq.pipeline.check import Report, Rules, find, judge, store
from raftmq.pipeline.check.history import FUNCTIONS, TYPES, read
from raftmq.pipeline.check.job import TABLE
from raftmq.pipeline.check.survey import numbers_of
from raftmq.pipeline.errors import cause_of
from tests.checkers.writing import Script
from tests.cli.command_line import CommandLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def written(path: Path) -> Path:
    """A history in which one message of three is lost, and another one comes twice."""
    script = Script()
    for number in range(3):
        script.sent(1, number, number)
    script.polled(2, (0, 0), (2, 2))
    script.polled(2, (2, 2))
    write_parquet(script.history(), path)
    return path


def test_types_and_functions_have_their_words_in_histories() -> None:
    assert TYPES == ("invoke", "ok", "fail", "unknown")
    assert FUNCTIONS == ("send", "poll", "ack", "assign")


def test_rows_are_numbered_through_all_parts(tmp_path: Path) -> None:
    table = pq.read_table(written(tmp_path / "whole"))
    for part in range(2):
        pq.write_table(table.slice(6 * part, 6), tmp_path / f"{part}.parquet", row_group_size=4)
    recorded = find(tmp_path)
    assert (recorded.files, len(recorded.parts), recorded.rows) == (2, 4, len(table))
    batches = list(read(recorded.parts, "value"))
    assert [row for rows in batches for row in rows.row] == list(range(len(table)))
    values = [text for rows in batches for text in rows.value.to_pylist()]
    assert values == table["value"].to_pylist()


@pytest.mark.parametrize("text", ["-1", "1.0", '"1"', "null", "07", "[1]", "99999999999999999999"])
def test_only_whole_numbers_have_a_place_in_a_bitmap(text: str, tmp_path: Path) -> None:
    table = pq.read_table(written(tmp_path / "h.parquet")).to_pydict()
    table["value"] = ["3"] * (len(table["value"]) - 1) + [text]
    pq.write_table(pa.table(table), tmp_path / "h.parquet")
    (rows,) = read(find(tmp_path / "h.parquet").parts, "value")
    every = np.ones(len(rows.row), np.bool_)
    assert numbers_of(rows, every, 2**62) is None
    every[-1] = False
    assert numbers_of(rows, every, 2**62) is not None
    assert numbers_of(rows, every, 2) is None


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no history in"):
        find(tmp_path)
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(PipelineError, match=r"a.parquet is not a Parquet file"):
        find(tmp_path)
    pq.write_table(pa.table({"operation": [1], "type": ["ok"]}), tmp_path / "a.parquet")
    with pytest.raises(PipelineError, match="has no column function, key"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("type", "maybe", "a row is of type maybe"),
        ("operation", None, "a row has no operation"),
        ("function", None, "a row has no function"),
    ],
)
def test_rows_that_say_nothing_are_refused(
    column: str, value: object, message: str, tmp_path: Path
) -> None:
    table = pq.read_table(written(tmp_path / "h.parquet")).to_pydict()
    table[column][3] = value
    pq.write_table(pa.table(table), tmp_path / "h.parquet")
    with pytest.raises(PipelineError, match=message):
        list(read(find(tmp_path / "h.parquet").parts))


@pytest.mark.parametrize(
    ("row", "change", "message"),
    [
        (0, {"type": "ok"}, "operation 0 has no invoke"),
        (4, {"type": "ok", "operation": 1}, "operation 2 has no invoke"),
        (9, {"operation": 10**9}, "operations are numbered from 0 to 1000000000"),
        (8, {"type": "fail"}, "operation 3 ended in two ways"),
    ],
)
def test_torn_histories_are_refused(
    spark: "SparkSession", row: int, change: dict[str, object], message: str, tmp_path: Path
) -> None:
    table = pq.read_table(written(tmp_path / "h.parquet")).to_pydict()
    for column, value in change.items():
        table[column][row] = value
    pq.write_table(pa.table(table), tmp_path / "h.parquet")
    with pytest.raises(Exception, match="operation") as caught:
        judge(spark, find(tmp_path / "h.parquet"), Rules())
    assert message in cause_of(caught.value).message


def test_nothing_sent_is_not_valid(spark: "SparkSession", tmp_path: Path) -> None:
    script = Script()
    script.polled(2)
    write_parquet(script.history(), tmp_path / "idle.parquet")
    script.wrote(1, 5)
    write_parquet(script.history(), tmp_path / "other.parquet")
    idle, other = (
        judge(spark, find(tmp_path / name), Rules()) for name in ("idle.parquet", "other.parquet")
    )
    assert (idle.verdict, idle.checkers[0].reason) == ("unknown", "vacuous: no message was sent")
    assert other.verdict == "unknown"
    assert "not write" in other.checkers[0].reason


def test_verdict_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("h", "valid", 4, 2, (), TABLE.empty_table())
    store([report], tmp_path)
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "valid"

    def killed(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", killed)
    with pytest.raises(KeyboardInterrupt):
        store([report], tmp_path)
    # An earlier run's verdict must not be taken for this one's.
    assert not (tmp_path / "verdict.json").exists()


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def test_command_prints_what_was_found_and_exits_with_5(
    raftmq: CommandLine, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests' own session takes the place of one that the command would start and stop.
    monkeypatch.setattr(Starter, "session", lambda self, job: nullcontext(spark))
    path = str(written(tmp_path / "h.parquet"))
    ended = raftmq("pipeline", "check", path, "--out", str(tmp_path / "out"), "-o", "json")
    assert ended.code == 5, ended.stderr
    verdict = ended.json
    assert verdict == json.loads((tmp_path / "out" / "verdict.json").read_text())
    (history,) = verdict["histories"]
    assert [one["verdict"] for one in history["checkers"]] == ["invalid", "invalid"]
    rows = pq.read_table(tmp_path / "out" / "violations.parquet").to_pylist()
    kinds = {(row["kind"], row["is_tolerated"], row["row"], tuple(row["values"])) for row in rows}
    assert kinds == {
        ("lost-middle", False, 2, ("1",)),
        ("duplicated", True, 10, ("2",)),
        ("lost-write", False, 2, ("1",)),
        ("nonmonotonic-poll", False, 10, ("2", "2")),
        ("internal-poll-skip", False, 8, ("0", "2")),
    }


def test_dry_run_starts_nothing(raftmq: CommandLine, tmp_path: Path) -> None:
    path = str(written(tmp_path / "h.parquet"))
    ended = raftmq("pipeline", "check", path, "--dry-run", "-o", "json")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.json[0]["rows"] == 11


def test_what_is_no_history_is_a_failure_with_a_fix(raftmq: CommandLine, tmp_path: Path) -> None:
    ended = raftmq("pipeline", "check", str(tmp_path))
    assert ended.code == 1
    assert "fix: give a Parquet file" in ended.stderr
