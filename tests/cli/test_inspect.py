"""`raftmq inspect` on the golden log folder, whole and damaged."""

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from raftmq.cli.node.inspect import _shown
from raftmq.log.files import RealFiles
from raftmq.machine.catalog.access import PutToken, PutUser
from raftmq.machine.catalog.audit import AdminAct
from raftmq.machine.catalog.catalog import Authored, Once
from tests.cli.command_line import CommandLine

GOLDEN = Path(__file__).parent.parent / "log" / "golden" / "v1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy in the place where a node keeps the log of group 3."""
    log = tmp_path / "node-1" / "groups" / "00003"
    shutil.copytree(GOLDEN, log)
    return log


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def last_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_summary_finds_the_log_below_and_touches_nothing(
    raftmq: CommandLine, folder: Path, tmp_path: Path
) -> None:
    before = contents(tmp_path)
    ended = raftmq("inspect", str(tmp_path), "-o", "json")
    assert ended.code == 0
    (log,) = ended.json
    assert log["folder"] == str(folder)
    assert log["segments"] == len(list(folder.glob("*.log")))
    assert log["indexes"] == len(list(folder.glob("*.index")))
    assert log["snapshots"] == sorted(int(path.stem) for path in folder.glob("*.snapshot"))
    assert log["hard_state"]["term"] > 0
    assert log["first"] <= log["last"]
    assert log["damaged"] == []
    assert contents(tmp_path) == before


def test_files_and_folders_that_vanish_meanwhile_are_passed_over(
    raftmq: CommandLine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "aaa"
    shutil.copytree(folder, gone / "groups" / "00001")
    (folder / "of_another").write_text("x")
    scandir = os.scandir

    def vanishing(path: str) -> "Iterator[os.DirEntry[str]]":
        if str(path) == str(gone):
            shutil.rmtree(gone)
        return scandir(path)

    listed = RealFiles.list

    def outdated(self: RealFiles, path: str) -> list[str]:
        return [*listed(self, path), "deleted", "00000000000000000099.log"]

    monkeypatch.setattr(os, "scandir", vanishing)
    monkeypatch.setattr(RealFiles, "list", outdated)
    (log,) = raftmq.ok("inspect", str(tmp_path), "-o", "json").json
    assert log["folder"] == str(folder)
    assert log["segments"] == len(list(folder.glob("*.log")))
    assert log["damaged"] == []


def test_table_has_one_line_a_log(raftmq: CommandLine, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "node-1" / "groups" / "00004")
    lines = raftmq("inspect", str(tmp_path)).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["FOLDER", "NODE", "GROUP"]
    only = raftmq("inspect", str(tmp_path), "-g", "4", "-o", "json").json
    assert [Path(log["folder"]).name for log in only] == ["00004"]


def test_records_are_printed_within_bounds(raftmq: CommandLine, folder: Path) -> None:
    ended = raftmq("inspect", str(folder), "-r", "--first", "8", "--last", "12", "-o", "json")
    records = [line for line in ended.lines if line["item"] == "record"]
    assert {record["index"] for record in records} == {8, 9, 10, 11, 12}
    assert not [line for line in ended.lines if line["item"] == "mark"]
    table = raftmq("inspect", str(folder), "--records", "--marks").stdout
    assert "mark" in table
    assert "# segment" in table


def test_flipped_bit_in_the_middle_is_damage_and_exits_with_4(
    raftmq: CommandLine, folder: Path
) -> None:
    first = min(folder.glob("*.log"))
    flip(first, first.stat().st_size // 2)
    ended = raftmq("inspect", str(folder), "-o", "json")
    assert ended.code == 4
    (damaged,) = ended.json[0]["damaged"]
    assert damaged["path"] == str(first)
    assert not damaged["is_torn_tail"]
    assert f"damaged: {first}, byte {damaged['position']}" in ended.stderr
    assert "ROT 1" in raftmq("inspect", str(folder)).stdout


@pytest.mark.parametrize("with_index", [False, True])
def test_segment_that_is_missing_is_told_and_exits_with_4(
    raftmq: CommandLine, folder: Path, with_index: bool
) -> None:
    _, *middle, last = sorted(folder.glob("*.log"))
    for gone, after in pairwise([*middle, last]):
        lost = [gone, gone.with_suffix(".index")][: 1 + with_index]
        kept = {path: path.read_bytes() for path in lost}
        for path in lost:
            path.unlink()
        ended = raftmq("inspect", str(folder), "-o", "json")
        (damaged,) = ended.json[0]["damaged"]
        assert (damaged["path"], damaged["is_torn_tail"]) == (str(after), False)
        assert "a file is missing" in damaged["message"]
        assert ended.code == 4
        assert ended.json[0]["segments"] == len(list(folder.glob("*.log")))
        for path, data in kept.items():
            path.write_bytes(data)
    for path in folder.glob("*.log"):
        path.unlink()
    ended = raftmq("inspect", str(folder))
    assert ended.code == 4
    assert "without any segment" in ended.stderr


def test_cut_end_of_the_last_segment_is_a_torn_tail_and_no_failure(
    raftmq: CommandLine, folder: Path
) -> None:
    last = last_segment(folder)
    last.write_bytes(last.read_bytes()[:-7])
    ended = raftmq("inspect", str(folder))
    assert ended.code == 0
    assert "torn tail" in ended.stderr
    assert "the next start cuts it" in ended.stderr


def test_segment_whose_header_is_gone_is_told_and_the_rest_still_shown(
    raftmq: CommandLine, folder: Path
) -> None:
    first = min(folder.glob("*.log"))
    flip(first, 20)
    ended = raftmq("inspect", str(folder), "-o", "json")
    assert ended.code == 4
    assert ended.json[0]["segments"] == len(list(folder.glob("*.log")))
    assert ended.json[0]["last"] > 16


def test_folder_that_may_not_be_read_is_not_taken_for_an_empty_one(
    raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "groups"
    closed.mkdir()
    real = os.scandir

    def refused(path: str) -> object:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    # Root may read everything, so the refusal is made up.
    monkeypatch.setattr(os, "scandir", refused)
    ended = raftmq("inspect", str(tmp_path))
    assert ended.code == 1
    assert "Permission denied" in ended.stderr
    assert "holds no log" not in ended.stderr


def test_folder_without_a_log_is_refused(raftmq: CommandLine, tmp_path: Path) -> None:
    ended = raftmq("inspect", str(tmp_path))
    assert ended.code == 1
    assert "node.data" in ended.stderr
    assert raftmq("inspect", str(tmp_path / "absent")).code == 2


def test_keys_of_passwords_and_digests_of_tokens_are_not_shown() -> None:
    secret = b"by this somebody could log in ***"[:32]
    for change in (
        PutUser("alice", bytes(16), 4096, secret, secret, 0, secret),
        PutToken("alice", "a" * 16, secret),
    ):
        act = AdminAct("root", "", "put_user", "user", "alice")
        for command in (
            change,
            Once(7, change),
            Authored(act, change),
            Authored(act, Once(7, change)),
        ):
            shown = _shown(msgspec.to_builtins(command, builtin_types=(bytes,)))
            assert "alice" in shown
            assert "..." in shown
            assert "somebody" not in shown
