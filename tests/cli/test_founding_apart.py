"""Nodes that stand only in `peers` of a running cluster: the advice that a new user gets."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raftmq.cli.node.playground import choose_ports
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster
from tests.cli.test_joining import Words

pytestmark = pytest.mark.process

Serve = Callable[..., tuple[subprocess.Popen[str], Words]]


def settings(folder: Path, ports: list[int], node: int, *, peers: list[int]) -> Path:
    rows = [f'{{ id = {n}, host = "127.0.0.1", port = {ports[n - 1]} }}' for n in peers]
    path = folder / f"{node}-of-{len(peers)}.toml"
    path.write_text(
        f'[node]\nid = {node}\ncluster = "production"\nport = {ports[node - 1]}\n'
        f'data = "{folder / str(node)}"\npeers = [{", ".join(rows)}]\n'
    )
    return path


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a node's process and reads what it says."""
    with ExitStack() as processes:

        def start(config: Path, *more: str) -> tuple[subprocess.Popen[str], Words]:
            process = processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "raftmq", "serve", "-c", str(config), *more],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            processes.callback(process.kill)
            return process, Words(process)

        yield start


def test_cluster_does_not_grow_by_its_settings_and_says_so(
    raftmq: CommandLine, serve: Serve, tmp_path: Path
) -> None:
    ports = choose_ports(3, 20_000, any_port=True)
    urls = [f"raftmq://127.0.0.1:{port}" for port in ports]
    process, words = serve(settings(tmp_path, ports, 1, peers=[1]))
    words.wait_for("leads")
    raftmq.ok("topic", "create", "t", "--url", urls[0])
    process.terminate()
    process.wait(30)
    said = [serve(settings(tmp_path, ports, n, peers=[1, 2, 3]))[1] for n in (1, 2, 3)]
    _, line = said[0].wait_for("settings not followed")
    assert f"`raftmq cluster add 2 127.0.0.1:{ports[1]}`" in line
    for node in (2, 3):
        _, line = said[node - 1].wait_for("was founded without")
        assert "waits" in line
        assert f"`raftmq cluster add {node} 127.0.0.1:{ports[node - 1]}`" in line
    assert "settings not followed" not in line
    noted = raftmq.ok("cluster", "status", "--url", urls[0])
    assert "`raftmq cluster add 3" in noted.stderr
    waiting = raftmq("cluster", "status", "--url", urls[1], "--timeout", "3s")
    assert waiting.code
    assert "was founded without node 2" in waiting.stderr


def test_status_of_a_node_that_no_cluster_counts_is_unhealthy(
    raftmq: CommandLine, cluster: LocalCluster, serve: Serve, tmp_path: Path
) -> None:
    first = cluster.state.nodes[0]
    (port,) = choose_ports(1, 20_000, any_port=True)
    config = settings(tmp_path, [0, 0, 0, port], 4, peers=[])
    host, _, at = first.address.rpartition(":")
    name = cluster.playground.config(1).read_text().split('cluster = "')[1].split('"')[0]
    join = f'join = [{{ id = {first.id}, host = "{host}", port = {at} }}]'
    text = config.read_text().replace("peers = []", join)
    config.write_text(text.replace("production", name))
    _, words = serve(config)
    words.wait_for("serving")
    told = raftmq("cluster", "status", "--url", f"raftmq://127.0.0.1:{port}")
    assert told.code == 4
    assert "unhealthy: the node that answers is in no cluster yet" in told.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("node.port=%d", "listens at 127.0.0.1:%d"),
        ("node.host=localhost", "listens at localhost:"),
    ],
)
def test_node_that_listens_elsewhere_than_its_row_in_peers_says_so(
    serve: Serve, tmp_path: Path, setting: str, words: str
) -> None:
    *ports, other = choose_ports(3, 20_000, any_port=True)
    config = settings(tmp_path, ports, 1, peers=[1, 2])
    setting, words = (text % other if "%d" in text else text for text in (setting, words))
    _, said = serve(config, "--set", setting)
    _, line = said.wait_for("listens elsewhere")
    assert words in line
    assert f"`peers` has node 1 at 127.0.0.1:{ports[0]}" in line
    _, line = said.wait_for("waits")
    assert f"node 2 at 127.0.0.1:{ports[1]}: ConnectionRefusedError" in line


@pytest.mark.parametrize("data", ["/proc/nope", "{file}", "{file}/data"])
def test_data_folder_that_cannot_be_made_has_a_remedy(
    serve: Serve, tmp_path: Path, data: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    config = settings(tmp_path, choose_ports(1, 20_000, any_port=True), 1, peers=[1])
    data = data.format(file=file)
    process, said = serve(config, "--set", f"node.data={data}")
    _, line = said.wait_for("stopped by a fault")
    assert f"NoFolder: the data folder {data} cannot be used: " in line
    assert "name another in node.data" in line
    assert process.wait(30) == 1
