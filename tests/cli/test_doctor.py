"""What `raftmq doctor` finds."""

import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from raftmq.broker.local_nodes import toml_text
from raftmq.cli.node import doctor
from raftmq.cli.node.settings_file import read_settings
from tests.cli.command_line import CommandLine
from tests.tls.certificates import make_node

NOBODY = "raftmq://127.0.0.1:1"
Usage = namedtuple("Usage", "total used free")


def test_report_has_a_verdict_for_each_check_and_a_fix_where_it_matters(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    port = str(free_port())
    ended = raftmq(
        *("doctor", "--data", str(tmp_path), "--port", port),
        *("--url", NOBODY, "--timeout", "100ms", "-o", "json"),
    )
    assert ended.code == 0
    assert {"python", "assertions", "modules", "disk", "space", "clock", "cluster"} < {
        finding["check"] for finding in ended.json
    }
    for finding in ended.json:
        assert bool(finding["fix"]) == (finding["verdict"] != "ok"), finding
    assert list(tmp_path.iterdir()) == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_port_of_the_url_is_looked_at_unless_another_is_named(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    url, port = f"raftmq://127.0.0.1:{free_port()}", free_port()
    for more, named in (((), url.rpartition(":")[2]), (("--port", str(port)), port)):
        asked = ("--data", str(tmp_path), "--url", url, "--timeout", "100ms", "-o", "json")
        found = {each["check"] for each in raftmq("doctor", *asked, *more).json}
        assert f"port {named}" in found


def settings_file(folder: Path, data: Path, *, port: int, row: int | None = None) -> str:
    """A founder's settings, whose row in `peers` has the port `row`."""
    path = folder / "node.toml"
    peer = f'{{ id = 1, host = "127.0.0.1", port = {row or port} }}'
    node = f'id = 1\ncluster = "c"\ndata = "{data}"\nport = {port}\npeers = [{peer}]'
    path.write_text(f"[node]\n{node}\n")
    return str(path)


def test_settings_of_a_node_name_the_folder_the_port_and_the_row(
    raftmq: CommandLine, tmp_path: Path
) -> None:
    port, data = free_port(), tmp_path / "data"
    data.mkdir()
    config = settings_file(tmp_path, data, port=port)
    asked = ("doctor", "-c", config, "--url", NOBODY, "--timeout", "100ms", "-o", "json")
    found = {each["check"]: each for each in raftmq.ok(*asked).json}
    assert found["node.data"]["found"] == f"{data} can be written"
    assert found["address"]["found"] == f"node 1 at 127.0.0.1:{port}, as in `peers`"
    assert f"port {port}" in found
    assert list(data.iterdir()) == []
    found = {each["check"]: each for each in raftmq.ok(*asked, "--set", "node.port=7").json}
    assert found["address"]["verdict"] == "warn"
    assert f"`peers` has node 1 at 127.0.0.1:{port}" in found["address"]["found"]


def test_address_that_the_row_in_peers_does_not_have_is_told(tmp_path: Path) -> None:
    config = Path(settings_file(tmp_path, tmp_path, port=7400, row=7401))
    finding = doctor.check_address(read_settings(config, ()).node)
    assert finding.verdict == "warn"
    assert "listens at 127.0.0.1:7400, and `peers` has node 1 at 127.0.0.1:7401" in finding.found


@pytest.mark.parametrize(
    ("node", "days", "verdict", "words"),
    [
        (1, 300, "ok", "that of node 1"),
        (2, 300, "fail", "names urn:raftmq:c:node:2"),
        (1, 10.01, "warn", "it ends in 10 days"),
        (1, -0.001, "fail", "it has ended"),
    ],
)
def test_certificate_is_examined(
    tmp_path: Path, node: int, days: float, verdict: str, words: str
) -> None:
    config = Path(settings_file(tmp_path, tmp_path, port=7400))
    files = make_node(tmp_path / "certs", node, days=days)
    config.write_text(config.read_text() + toml_text({"tls": files._asdict()}))
    settings = read_settings(config, ())
    assert settings.node.cluster == "c"
    finding = doctor.check_tls(settings)
    assert (finding.verdict, words in finding.found) == (verdict, True), finding


def test_address_of_another_machine_fails() -> None:
    # Of the range for documentation: no machine has it.
    finding = doctor.check_port(free_port(), "192.0.2.1")
    assert (finding.verdict, "192.0.2.1" in finding.found) == ("fail", True)


def test_data_folder_is_examined_where_the_settings_have_it(
    raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for data, verdict in ((file, "fail"), (file / "data", "fail"), (tmp_path / "a" / "b", "ok")):
        assert doctor.check_data(data).verdict == verdict
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    finding = doctor.check_data(tmp_path)
    assert (finding.verdict, "node.data" in finding.fix) == ("fail", True)


def test_further_disks_are_examined(raftmq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = settings_file(tmp_path, tmp_path / "data", port=free_port())
    disks = f'node.disks=["{tmp_path / "two"}", "{tmp_path / "file"}"]'
    asked = ("doctor", "-c", config, "--set", disks, "--url", NOBODY, "--timeout", "100ms")
    ended = raftmq(*asked, "-o", "json")
    assert ended.code == 4
    verdicts = [each["verdict"] for each in ended.json if each["check"] == "node.disks"]
    assert verdicts == ["ok", "fail"]


def test_space_is_that_of_the_data_folder_and_its_reserve(
    raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[Path] = []

    def usage(path: Path) -> Usage:
        examined.append(path)
        return Usage(1 << 41, 0, 8 << 30)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    config = settings_file(tmp_path, tmp_path / "data", port=free_port())
    asked = ("doctor", "-c", config, "--url", NOBODY, "--timeout", "100ms")
    raftmq.ok(*asked)
    assert examined == [tmp_path]
    # A node with less than its reserve takes no messages.
    assert raftmq(*asked, "--set", f"log.reserve_bytes={9 << 30}").code == 4


def test_set_without_a_file_of_settings_is_refused(raftmq: CommandLine) -> None:
    ended = raftmq("doctor", "--set", "node.id=2")
    assert (ended.code, "name it with -c" in ended.stderr) == (2, True)


def test_taken_port_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = doctor.check_port(taken.getsockname()[1])
    assert finding.verdict == "warn"
    assert "--port" in finding.fix


@pytest.mark.parametrize(
    ("free", "verdict"), [(1 << 20, "fail"), (1 << 30, "warn"), (1 << 40, "ok")]
)
def test_space_is_judged(monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 41, 0, free))
    assert doctor.check_space(Path(), 64 * 1024**2).verdict == verdict


def test_full_disk_exits_with_4(
    raftmq: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 41, 0, 0))
    ended = raftmq("doctor", "--data", str(tmp_path), "--url", NOBODY, "--timeout", "100ms")
    assert ended.code == 4
    # The bound at which a node refuses messages.
    assert "log.reserve_bytes, 64.0 MiB" in ended.stdout


@pytest.mark.parametrize(
    ("milliseconds", "verdict", "words"),
    [(0.001, "warn", "too fast"), (0.5, "ok", ""), (50.0, "warn", "median 50")],
)
def test_disk_is_judged_by_its_median(
    monkeypatch: pytest.MonkeyPatch, milliseconds: float, verdict: str, words: str
) -> None:
    monkeypatch.setattr(doctor, "_fsync_times", lambda folder: [milliseconds / 1000] * 5)
    finding = doctor.check_disk(Path())
    assert finding.verdict == verdict
    assert words in finding.found


def test_folder_that_does_not_exist_yet_is_examined_where_it_would_be(tmp_path: Path) -> None:
    assert doctor.check_disk(tmp_path / "a" / "b").verdict in {"ok", "warn"}
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert doctor.check_disk(tmp_path).verdict == "fail"


def test_python_without_assertions_fails() -> None:
    program = "from raftmq.cli.node.doctor import check_assertions as c; print(c().verdict)"
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "fail"
