"""The archive of `raftmq doctor --bundle`: all that helps, and no secret."""

import json
import os
import stat
import tarfile
import tomllib
from pathlib import Path

import msgspec
import pytest

from raftmq.cli.node import bundle
from raftmq.cli.node.settings_file import read_settings
from tests.cli.command_line import CommandLine, process
from tests.cli.local_cluster import LocalCluster
from tests.cli.test_doctor import NOBODY, free_port, settings_file

UNREACHED = ("--url", NOBODY, "--timeout", "100ms")


def contents(path: Path) -> dict[str, bytes]:
    """The files of an archive, by name below its one folder."""
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            folder, _, name = entry.name.partition("/")
            assert folder == path.name.partition(".")[0]
            file = archive.extractfile(entry)
            assert file is not None
            found[name] = file.read()
        return found


def test_without_a_cluster_it_has_this_machine_and_says_what_is_missing(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "case.tar.gz"
    ended = raftmq("doctor", *UNREACHED, "--data", str(tmp_path), "--bundle", str(path))
    assert ended.code == 0, ended.stderr
    assert f"{path} has 4 files: look through it before you send it" in ended.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = contents(path)
    assert sorted(found) == ["README.txt", "cluster.json", "findings.json", "machine.json"]
    assert found["cluster.json"].startswith(b"not there: ")
    assert b"127.0.0.1:1" in found["cluster.json"]
    assert json.loads(found["machine.json"])["packages"]["trio"]
    assert {"python", "disk"} < {each["check"] for each in json.loads(found["findings.json"])}


def test_it_has_the_settings_with_all_defaults_and_the_names_of_files(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    data, path = tmp_path / "data", tmp_path / "case.tar.gz"
    (data / "groups" / "00001").mkdir(parents=True)
    (data / "groups" / "00001" / "0001.log").write_bytes(b"a message that is secret")
    config = settings_file(tmp_path, data, port=free_port())
    ended = raftmq("doctor", *UNREACHED, "-c", config, "--bundle", str(path))
    assert ended.code == 0, ended.stderr
    found = contents(path)
    assert b"24 20" in found["folder.txt"]
    assert b"groups/00001/0001.log" in found["folder.txt"]
    assert not any(b"a message" in content for content in found.values())
    # A node reads them as its own.
    (tmp_path / "again.toml").write_bytes(found["node.toml"])
    again = read_settings(tmp_path / "again.toml", ())
    assert msgspec.to_builtins(again) == msgspec.to_builtins(read_settings(Path(config), ()))
    assert tomllib.loads(found["node.toml"].decode())["raft"]["tick_ms"] == 100


def test_only_the_end_of_a_log_is_taken(
    raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LOG_BYTES", 6)
    log, path = tmp_path / "node.log", tmp_path / "case.tar.gz"
    log.write_text("first\nlast\n")
    asked = ("doctor", *UNREACHED, "--data", str(tmp_path), "--bundle", str(path))
    raftmq.ok(*asked, "--log", str(log), "--log", str(log))
    found = contents(path)
    assert found["logs/1-node.log"] == found["logs/2-node.log"] == b"\nlast\n"


def test_it_takes_no_other_files_place(raftmq: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "case.tar.gz"
    path.write_text("mine")
    ended = raftmq("doctor", *UNREACHED, "--data", str(tmp_path), "--bundle", str(path))
    assert ended.code == 1
    assert "is there already" in ended.stderr
    assert path.read_text() == "mine"


def test_a_missing_folder_is_named(raftmq: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "none" / "case.tar.gz"
    ended = raftmq("doctor", *UNREACHED, "--data", str(tmp_path), "--bundle", str(path))
    assert ended.code == 1
    assert f"{path}: No such file or directory" in ended.stderr


def test_a_log_without_an_archive_is_a_usage_error(raftmq: CommandLine, tmp_path: Path) -> None:
    assert raftmq("doctor", "--log", str(Path(__file__))).code == 2


def test_long_lists_of_files_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle.listing(tmp_path) == [f"no files in {tmp_path}"]
    monkeypatch.setattr(bundle, "FILES_MAX", 2)
    for number in range(3):
        (tmp_path / f"{number}").write_text("")
    assert [line.split()[-1] for line in bundle.listing(tmp_path)] == ["0", "1", "..."]


@pytest.mark.process
def test_of_a_secure_cluster_it_has_each_nodes_status_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "case.tar.gz"
    with LocalCluster(tmp_path / "cluster") as cluster:
        url = cluster.start("--secure")
        folder = cluster.folder
        config = str(next(folder.rglob("node-1.toml")))
        logs = [str(each) for each in sorted(folder.rglob("*.log")) if "groups" not in str(each)]
        named = [word for log in logs for word in ("--log", log)]
        ended = process(
            ["doctor", "-c", config, "--url", url, "--bundle", str(path), *named],
            environment={**os.environ},
        )
        found = contents(path)
        keys = {line for key in folder.rglob("*.key") for line in key.read_text().splitlines()}
        keys |= {line for key in folder.rglob("*.pem") for line in key.read_text().splitlines()}
    assert ended.code in (0, 4), ended.stderr
    assert {f"status/node-{number}.json" for number in (1, 2, 3)} < set(found)
    assert json.loads(found["status/node-2.json"])["id"] == 2
    assert json.loads(found["cluster.json"])["problems"] == []
    whole = b"".join(found.values())
    assert keys
    assert not [line for line in keys if line.encode() in whole]
    assert b"PRIVATE KEY" not in whole
