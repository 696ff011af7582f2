"""A local cluster's folder: founding, finding again, locking, ports."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from raftmq.broker.settings import load
from raftmq.cli.exits import Failure
from raftmq.cli.node import playground as playground_module
from raftmq.cli.node import up
from raftmq.cli.node.playground import Playground, RunningNode, State, choose_ports
from tests.cli.command_line import CommandLine


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    return Playground(tmp_path, is_temporary=False)


@pytest.mark.parametrize(("count", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_founded_nodes_have_settings_that_fit_together(
    playground: Playground, count: int, replicas: int
) -> None:
    ports = list(range(7500, 7500 + count))
    playground.found(ports)
    every = [load(playground.config(node).read_bytes()).node for node in range(1, count + 1)]
    assert [own.port for own in every] == ports
    assert [peer.port for peer in every[0].peers] == ports
    assert len({own.cluster for own in every}) == 1
    assert len({own.data for own in every}) == count
    assert (every[0].groups, every[0].replicas) == (count, replicas)
    assert playground.ports() == ports


def test_two_clusters_have_different_ids(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        playground = Playground(tmp_path / name, is_temporary=False)
        playground.found([7500])
        ids.add(load(playground.config(1).read_bytes()).node.cluster)
    assert len(ids) == 2


def test_state_is_believed_only_while_the_lock_is_held(playground: Playground) -> None:
    node = RunningNode(1, "127.0.0.1:7400", 17, "d", "follows")
    state = State(os.getpid(), True, [node])
    lock = playground.lock()
    assert lock is not None
    playground.write_state(state)
    assert playground.read_state() == state
    assert playground.lock() is None
    os.close(lock)
    assert playground.read_state() is None
    assert not playground.is_running()


def test_detached_start_does_not_take_the_page_of_the_supervisor_before(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (
        State(pid, True, [RunningNode(1, "a:1", pid, "d", "follows")]) for pid in (7, 8)
    )
    states = iter([before, before, None, after])
    monkeypatch.setattr(Playground, "read_state", lambda _: next(states))
    process = SimpleNamespace(pid=8, poll=lambda: None)
    assert up._wait_ready(playground, process) is after  # type: ignore[arg-type]


def test_looking_for_a_supervisor_leaves_no_file(playground: Playground, tmp_path: Path) -> None:
    assert not playground.is_running()
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_refused_with_the_options_that_help() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"port {port} is taken") as caught:
            choose_ports(1, port, any_port=False)
    assert "--any-port" in caught.value.fix
    assert "--port" in caught.value.fix


def test_any_ports_are_free_and_different() -> None:
    ports = choose_ports(9, 7400, any_port=True)
    assert len(set(ports)) == 9
    assert 0 not in ports


def test_ports_beyond_the_last_are_refused() -> None:
    with pytest.raises(Failure, match="do not exist"):
        choose_ports(3, 65_534, any_port=False)


def test_url_names_every_node() -> None:
    nodes = [RunningNode(n, f"127.0.0.1:{7399 + n}", n, "d", "follows") for n in (1, 2)]
    assert State(1, True, nodes).url == "raftmq://127.0.0.1:7400,127.0.0.1:7401"


def test_up_refuses_a_folder_with_another_cluster(
    raftmq: CommandLine, playground: Playground
) -> None:
    playground.found(choose_ports(3, 7400, any_port=True))
    for options in (["-n", "5"], ["--port", "7777"]):
        ended = raftmq("up", "--data", str(playground.folder), *options)
        assert ended.code == 1
        assert "holds a cluster of 3 nodes" in ended.stderr
        assert "leave out -n and --port" in ended.stderr


def test_up_refuses_a_folder_in_use(raftmq: CommandLine, playground: Playground) -> None:
    lock = playground.lock()
    assert lock is not None
    ended = raftmq("up", "--data", str(playground.folder))
    os.close(lock)
    assert ended.code == 1
    assert re.search(r"raftmq down --data", ended.stderr)


def test_down_without_a_cluster_says_so(
    raftmq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playground_module, "PREFIX", "raftmq-up-test-nobody-")
    assert raftmq("down").code == 1
    ended = raftmq("down", "--data", str(tmp_path))
    assert ended.code == 1
    assert "no cluster is running in" in ended.stderr


@pytest.mark.parametrize(("free", "is_told"), [(67_108_863, True), (67_108_864, False)])
def test_disk_on_which_nodes_would_refuse_all_is_told_at_the_start(
    free: int,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    up.warn_of_space(tmp_path)
    assert ("take no messages below log.reserve_bytes" in capsys.readouterr().err) is is_told


def test_folder_that_was_copied_or_moved_does_not_serve_the_one_before(tmp_path: Path) -> None:
    before = Playground(tmp_path / "before", is_temporary=False)
    before.folder.mkdir()
    before.found([7400, 7401])
    before.check_data()
    for node in (1, 2):
        before.data(node).mkdir()
    copy = Playground(tmp_path / "copy", is_temporary=False)
    shutil.copytree(before.folder, copy.folder)
    before.check_data()
    with pytest.raises(Failure, match="the folder was moved or copied") as caught:
        copy.check_data()
    assert caught.value.fix is not None
    (command,) = re.findall("`(sed .*?)`", caught.value.fix)
    subprocess.run(command, shell=True, check=True)
    copy.check_data()
    assert [copy.data(node) for node in (1, 2)] == [copy.folder / "node-1", copy.folder / "node-2"]
    assert before.data(1) == before.folder / "node-1"


def test_data_on_another_disk_is_where_the_settings_say(tmp_path: Path) -> None:
    playground = Playground(tmp_path, is_temporary=False)
    playground.found([7400])
    config = playground.config(1)
    config.write_text(config.read_text().replace(str(tmp_path / "node-1"), "/mnt/other"))
    playground.check_data()
    assert playground.data(1) == Path("/mnt/other")
