"""`raftmq pipeline archive verify`, `compact` and `ls`, which need neither Spark nor a cluster."""

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.pipeline.archive.archives import archived
from tests.pipeline.archive.rowsets import NOON, rows


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    archived(tmp_path, rows(0, 40), rows(0, 9, queue=1))
    archived(tmp_path, rows(40, 60))
    return str(tmp_path)


def test_ls_shows_days(raftmq: CommandLine, folder: str) -> None:
    ran = raftmq("pipeline", "archive", "ls", folder)
    words = ran.stdout.splitlines()[1].split()
    assert words[:5] == ["orders", "2026-11-21", "1", "3", "69"]
    assert words[-4:] == ["0:", "0-59", "1:", "0-8"]


def test_compact_tells_what_it_would_do_and_does_it(raftmq: CommandLine, folder: str) -> None:
    path = "data/topic=orders/dt=2026-11-21/hour=12"
    for words in (["--dry-run"], []):
        ran = raftmq("pipeline", "archive", "compact", folder, "-o", "json", *words)
        assert ran.code == 0
        (hour,) = ran.json
        assert (hour["path"], hour["files"], hour["rows"]) == (path, 3, 69)
    ran = raftmq("pipeline", "archive", "compact", folder)
    assert (ran.stdout, ran.stderr.splitlines()[-1]) == ("", "compacted 0 hours")


def test_verify_exits_with_5_when_something_is_damaged(raftmq: CommandLine, folder: str) -> None:
    ran = raftmq("pipeline", "archive", "verify", folder, "--deep")
    assert (ran.code, ran.stderr.splitlines()[-1]) == (0, "the archive is whole")
    next(Path(folder).rglob("*.parquet")).unlink()
    ran = raftmq("pipeline", "archive", "verify", folder, "-o", "json")
    assert ran.code == 5
    assert [each["kind"] for each in ran.json] == ["missing"]


def test_verify_tells_what_it_would_examine(raftmq: CommandLine, folder: str) -> None:
    verify = ("pipeline", "archive", "verify", folder, "--dry-run")
    size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    assert raftmq.ok(*verify, "-o", "json").json == {"files": 3, "rows": 69, "bytes": size}
    ran = raftmq.ok(*verify)
    assert ran.stdout.splitlines()[1].split()[:2] == ["3", "69"]
    assert ran.stderr.startswith("nothing was examined")


def test_get_prints_the_message_of_an_id(raftmq: CommandLine, folder: str) -> None:
    get = ("pipeline", "archive", "get", folder)
    # Topic 7 is orders; 0x2f is 47.
    (found,) = raftmq.ok(*get, "70000-2f", "-o", "json").lines
    assert (found["topic"], found["queue"], found["offset"]) == ("orders", 0, 47)
    assert (found["id"], found["key"], found["tag"]) == ("70000-2f", "key 5", None)
    assert found["body"] == "message 47 of orders 0"
    assert found["props"] == {"n": "47", "city": "Łódź"}
    assert found["timestamp"] == NOON // 1000 + 47
    shown = raftmq.ok(*get, "70001-8").stdout
    assert "topic    orders, queue 1, offset 8" in shown
    assert "body     message 8 of orders 1" in shown
    raftmq.ok("pipeline", "archive", "compact", folder)
    assert raftmq.ok(*get, "70000-0", "-o", "json").lines[0]["body"] == "message 0 of orders 0"


@pytest.mark.parametrize(
    ("message_id", "said"),
    [
        ("70000-3c", "the archive has no message 70000-3c"),
        ("70002-0", "the archive has no message 70002-0"),
        ("90000-0", "it holds orders (70000-...)"),
        ("order-1", "is no message id"),
    ],
)
def test_get_says_what_is_not_there(
    raftmq: CommandLine, folder: str, message_id: str, said: str
) -> None:
    ran = raftmq("pipeline", "archive", "get", folder, message_id)
    assert ran.code == 1
    assert said in ran.stderr


@pytest.mark.parametrize("command", ["ls", "verify", "compact"])
def test_folder_that_is_no_archive_is_an_error(
    raftmq: CommandLine, tmp_path: Path, command: str
) -> None:
    ran = raftmq("pipeline", "archive", command, str(tmp_path / "nothing"))
    assert ran.code == 1
    assert "is not an archive" in ran.stderr
    assert "archive run TOPIC --to DIR" in ran.stderr
