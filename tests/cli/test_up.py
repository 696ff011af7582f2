"""`raftmq up`, `down` and `serve` with real processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftmq.cli.node.notify import parse
from raftmq.cli.node.playground import Playground, choose_ports
from tests.cli.command_line import CommandLine, process
from tests.cli.local_cluster import Foreground, LocalCluster, is_alive, wait_until

pytestmark = pytest.mark.process

TABLE_SECONDS = 3.0
"""The promise for an idle machine."""

TABLE_SECONDS_MAX = 15.0
"""The bound for a machine that is busy with other work."""


def test_up_prints_table_and_url_in_time_and_ctrl_c_leaves_nothing() -> None:
    with Foreground() as up:
        rows, seconds = up.read_table()
        print(f"the table stood there after {seconds:.2f} s (promised: {TABLE_SECONDS} s)")
        pids = [int(row[-2]) for row in rows]
        folder = Path(rows[0][-1]).parent
        assert all(map(is_alive, pids))
        assert folder.is_dir()
        code, stderr = up.end(signal.SIGINT)
    assert seconds < TABLE_SECONDS_MAX
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert code == 0
    assert f"removed {folder}" in stderr
    assert not folder.exists()
    assert not any(map(is_alive, pids))


def test_nodes_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    with Foreground("--data", str(tmp_path)) as up:
        rows, _ = up.read_table()
        pids = [int(row[-2]) for row in rows]
        up.end(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), what="the nodes are gone")
    assert Playground(tmp_path, is_temporary=False).read_state() is None


def test_cluster_in_a_folder_goes_on_with_its_messages(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "kept") as cluster:
        url = cluster.start("-n", "1")
        assert process(["topic", "create", "t", "--url", url]).code == 0
        assert process(["produce", "t", "one", "two", "-k", "k", "--url", url]).code == 0
        cluster.stop()
        assert not cluster.playground.is_running()
        assert cluster.start() == url
        assert process(["consume", "t", "-n", "2", "--url", url]).stdout == "one\ntwo\n"


def test_up_and_down_name_the_folder_of_the_cluster_that_has_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raftmq: CommandLine
) -> None:
    # Formerly `up` named `down` as its fix, and `down` named `up`.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalCluster(tmp_path / "kept") as cluster:
        port = int(cluster.start("-n", "1").rpartition(":")[2])
        refused = raftmq("up", "-n", "1", "--port", str(port))
        assert refused.code == 1
        stop = f"fix: `raftmq down --data {cluster.folder}` stops "
        assert f"port {port} is taken by the cluster in {cluster.folder}" in refused.stderr
        assert stop in refused.stderr
        monkeypatch.setattr("raftmq.cli.node.up.PORT", port)
        assert f"{stop}the one that listens at port {port}" in raftmq("down").stderr
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = raftmq("up", "-n", "1", "--port", str(other.getsockname()[1]))
        assert "is taken by another process" in refused.stderr
        assert "fix: --port P takes" in refused.stderr


def test_detached_temporary_cluster_is_found_by_down_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ended = process(["up", "-n", "1", "--detach", "--any-port"])
    try:
        assert ended.code == 0, ended.stderr
        (folder,) = tmp_path.glob("raftmq-up-*")
    finally:
        down = process(["down"])
    assert down.code == 0
    assert not folder.exists()
    assert process(["down"]).code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `raftmq serve` processes, and leaves none whatever the test found."""
    nodes: list[subprocess.Popen[bytes]] = []

    def start(playground: Playground, **environment: str) -> subprocess.Popen[bytes]:
        nodes.append(
            subprocess.Popen(
                [sys.executable, "-m", "raftmq", "serve", "-c", str(playground.config(1))],
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
            )
        )
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()
        node.communicate()


def one_node(folder: Path) -> Playground:
    playground = Playground(folder, is_temporary=False)
    playground.found(choose_ports(1, 7400, any_port=True))
    return playground


def read_until(node: subprocess.Popen[bytes], words: bytes) -> None:
    """Read a node's stderr up to the line with these words."""
    assert node.stderr is not None
    lines = []
    while words not in (line := node.stderr.readline()):
        lines.append(line)
        assert line, lines


Start = Callable[..., "subprocess.Popen[bytes]"]


def test_serve_reports_as_systemd_asks_and_ends_on_sigterm(tmp_path: Path, started: Start) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(30)
        node = started(one_node(tmp_path), NOTIFY_SOCKET=str(tmp_path / "notify"))
        ready = parse(channel.recv(4096))
        assert ready["READY"] == "1"
        assert ready["MAINPID"] == str(node.pid)
        while "leads groups 0, 1" not in parse(channel.recv(4096)).get("STATUS", ""):
            pass
        node.send_signal(signal.SIGTERM)
        while "STOPPING" not in parse(channel.recv(4096)):
            pass
    _, stderr = node.communicate(timeout=30)
    assert node.returncode == 0
    events = re.findall(rb"\] (starting|serving|leads|stopping|stopped)", stderr)
    assert events[:2] == [b"starting", b"serving"]
    assert events[-2:] == [b"stopping", b"stopped"]


def test_serve_that_waits_for_its_peers_ends_on_sigint(tmp_path: Path, started: Start) -> None:
    playground = Playground(tmp_path, is_temporary=False)
    playground.found(choose_ports(3, 7400, any_port=True))
    node = started(playground)
    read_until(node, b"starting")
    node.send_signal(signal.SIGINT)
    _, stderr = node.communicate(timeout=30)
    assert node.returncode == 0
    assert b"Traceback" not in stderr


def test_two_nodes_on_one_folder_second_says_why_it_stops(tmp_path: Path, started: Start) -> None:
    playground = one_node(tmp_path)
    read_until(started(playground), b"serving")
    second = process(["serve", "-c", str(playground.config(1)), "--log", "json"])
    assert second.code == 1
    assert json.loads(second.stderr.splitlines()[-1])["event"] == "stopped by a fault"
    assert str(playground.data(1)) in second.stderr
    assert "Traceback" not in second.stderr


def test_up_gives_up_on_nodes_that_cannot_live_and_keeps_their_words(tmp_path: Path) -> None:
    playground = one_node(tmp_path)
    settings = playground.config(1).read_text()
    playground.config(1).write_text(settings + "[raft]\nelection_ticks = 1\n")
    ended = process(["up", "--data", str(tmp_path)])
    assert ended.code == 1
    assert ended.stderr.count("ended with 1; it will be started again") == 3
    assert "raft.heartbeat_ticks" in playground.log(1).read_text()
    assert "do not stay alive" in ended.stderr
    assert not playground.is_running()


def test_secure_cluster_is_reached_by_the_url_it_prints_and_goes_on_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "kept") as cluster:
        url = cluster.start("-n", "1", "--secure")
        assert url.startswith("raftmqs://")
        assert process(["topic", "create", "t", "--url", url]).code == 0
        plain = url.replace("raftmqs", "raftmq").partition("?")[0]
        refused = process(["topic", "list", "--url", plain])
        assert refused.code == 1
        assert "TLS only" in refused.stderr
        assert "raftmqs://HOST:PORT?ca=FILE" in refused.stderr
        cluster.stop()
        assert cluster.start("--secure") == url
        assert "t" in process(["topic", "list"], environment={"RAFTMQ_URL": url}).stdout
        cluster.stop()
    with LocalCluster(tmp_path / "plain") as cluster:
        cluster.start("-n", "1")
        cluster.stop()
        ended = process(["up", "--detach", "--data", str(cluster.folder), "--secure"])
        assert ended.code == 1
        assert "holds a cluster without TLS" in ended.stderr
