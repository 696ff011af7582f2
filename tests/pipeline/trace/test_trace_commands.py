"""`raftmq pipeline trace show` and `slowest`, which need neither Spark nor a cluster."""

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.pipeline.trace.stories import event, kept

BILLING = {"group": "billing", "attachment": 1}


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    rows = [
        event(5, "stored", 0, 10),
        event(6, "handed out", 0, 10, attempt=1, until=31_000_000, **BILLING),
        event(7, "acked", 0, 8, attempt=1, **BILLING),
        event(8, "nacked", 8, 2, attempt=1, until=31_000_000, **BILLING),
        event(3000, "ready", 8, 2, attempt=1, **BILLING),
        event(3000, "handed out", 8, 2, attempt=2, step=1, until=99_000_000, **BILLING),
        event(3001, "acked", 8, 2, attempt=2, **BILLING),
    ]
    kept(tmp_path / "lives", rows)
    return str(tmp_path / "lives")


def test_show_tells_the_story_of_one_message(raftmq: CommandLine, folder: str) -> None:
    rows = raftmq.ok("pipeline", "trace", "show", folder, "orders", "1", "9", "-o", "json").json
    assert [(row["what"], row["group"]) for row in rows] == [
        ("stored", None),
        ("handed out", "billing"),
        ("nacked", "billing"),
        ("ready", "billing"),
        ("handed out", "billing"),
        ("acked", "billing"),
    ]
    lines = raftmq.ok("pipeline", "trace", "show", folder, "orders", "1", "3").stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["0s", "10ms", "20ms"]


@pytest.mark.parametrize("output", ["table", "json"])
def test_show_of_what_is_not_known_is_an_error_with_a_fix(
    raftmq: CommandLine, folder: str, output: str
) -> None:
    ran = raftmq("pipeline", "trace", "show", folder, "orders", "1", "10", "-o", output)
    assert (ran.code, ran.stdout) == (1, "")
    assert "error: nothing is known of orders/1/10" in ran.stderr
    assert f"raftmq pipeline trace run {folder}" in ran.stderr


def test_slowest_come_first_with_their_story(raftmq: CommandLine, folder: str) -> None:
    lines = raftmq.ok("pipeline", "trace", "slowest", folder).stdout.splitlines()
    first, second = (line.split() for line in lines[1:])
    assert first[:6] == ["orders/1/8", "2", "billing", "10ms", "10ms", "29.96s"]
    assert second[:6] == ["orders/1/0", "8", "billing", "10ms", "10ms", "20ms"]
    assert "nacked +30ms, ready +29.95s" in lines[1]
    found = raftmq.ok("pipeline", "trace", "slowest", folder, "--limit", "1", "-o", "json").json
    assert [(each["offset"], len(each["story"])) for each in found] == [(8, 6)]


def test_folder_without_a_trace_is_told(raftmq: CommandLine, tmp_path: Path) -> None:
    ran = raftmq("pipeline", "trace", "slowest", str(tmp_path / "none"))
    assert ran.code == 1
    assert "holds no trace" in ran.stderr
