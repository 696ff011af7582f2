"""The nodes of one machine: numbers, ports, folders, and the settings that are refused."""

import json
import os
import socket
from pathlib import Path

import pytest

from raftmq.broker.settings import NodeSettings
from raftmq.cli.exits import Failure
from raftmq.cli.node import machine
from raftmq.cli.node.machine import nodes_of
from raftmq.cli.node.settings_file import read_settings
from raftmq.cli.values import NODE_COUNT, NODES_MAX
from tests.cli.command_line import CommandLine

PEERS = '{ id = 2, host = "10.0.0.2", port = 7400 }, { id = 102, host = "10.0.0.2", port = 7401 }'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The settings of machine 2, of which two nodes found a cluster."""
    path = tmp_path / "node.toml"
    path.write_text(
        f'[node]\nid = 2\ncluster = "c"\nhost = "10.0.0.2"\ndata = "{tmp_path / "data"}"\n'
        f'machine = "m2"\npeers = [{PEERS}]\n'
    )
    return path


def nodes(config: Path, wanted: int | None, *overrides: str) -> list[NodeSettings]:
    """The settings that each node of the machine reads."""
    found = nodes_of(read_settings(config, overrides), wanted)
    read = [read_settings(config, (*overrides, *node.overrides)).node for node in found]
    assert [node.id for node in read] == [node.id for node in found]
    return read


def ran(folder: Path) -> Path:
    """A folder in which a node ran."""
    folder.mkdir(parents=True)
    (folder / "node.json").write_text("{}")
    return folder


def test_nodes_of_a_machine_are_100_apart_on_ports_in_a_row(config: Path, tmp_path: Path) -> None:
    read = nodes(config, 3)
    assert [(node.id, node.port, node.machine) for node in read] == [
        (2, 7400, "m2"), (102, 7401, "m2"), (202, 7402, "m2"),
    ]  # fmt: skip
    assert [node.data for node in read] == [
        str(tmp_path / f"data/node-{number}") for number in (2, 102, 202)
    ]


def test_node_that_is_no_founder_joins_by_the_founders(config: Path) -> None:
    founder, _, later = nodes(config, 3)
    assert [peer.id for peer in founder.peers] == [2, 102]
    assert (later.peers, later.join) == ([], founder.peers)


def test_nodes_without_a_machine_have_the_name_of_the_host(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "host-7")
    assert [node.machine for node in nodes(config, 2, "node.machine=")] == ["host-7"] * 2
    monkeypatch.setattr(socket, "gethostname", lambda: "host 7")
    with pytest.raises(Failure, match="'host 7' is not a place name") as refused:
        nodes(config, 2, "node.machine=")
    assert refused.value.fix == "set node.machine"


def test_nodes_are_spread_over_the_disks_and_stay_where_they_are(
    config: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "data", tmp_path / "two"
    disks = f'node.disks=["{two}"]'
    assert [node.data for node in nodes(config, 3, disks)] == [
        str(one / "node-2"), str(two / "node-102"), str(one / "node-202"),
    ]  # fmt: skip
    ran(one / "node-102")
    assert [node.data for node in nodes(config, 2, disks)] == [
        str(one / "node-2"), str(one / "node-102"),
    ]  # fmt: skip
    ran(two / "node-102")
    with pytest.raises(Failure, match="node 102 has two folders"):
        nodes(config, 2, disks)


def test_folder_that_is_given_twice_is_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="name a folder twice"):
        nodes(config, 2, f'node.disks=["{tmp_path / "data"}"]')


def test_auto_is_one_node_a_processor_and_never_fewer_than_have_folders(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.processors() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(machine, "processors", lambda: 2)
    assert [node.id for node in nodes(config, None)] == [2, 102]
    # The folder of node 102 may be lost with its disk: it has to come back.
    ran(tmp_path / "data/node-202")
    assert [node.id for node in nodes(config, None)] == [2, 102, 202]
    monkeypatch.setattr(machine, "processors", lambda: 1000)
    assert len(nodes(config, None)) == NODES_MAX


def test_fewer_nodes_than_folders_are_refused_with_the_way_to_remove_one(
    config: Path, tmp_path: Path
) -> None:
    for number in (2, 102, 202):
        ran(tmp_path / f"data/node-{number}")
    with pytest.raises(Failure, match="--nodes 1 leaves out nodes 102, 202") as refused:
        nodes(config, 1)
    assert "--nodes 3 runs all" in refused.value.fix
    assert "`raftmq cluster remove 202`" in refused.value.fix


def test_folder_of_another_machine_is_refused(config: Path, tmp_path: Path) -> None:
    ran(tmp_path / "data/node-103")
    with pytest.raises(Failure, match="node 103, which is none of machine 2: those are 2, 102"):
        nodes(config, 2)


def test_folder_of_a_node_that_ran_alone_is_refused_with_the_way_to_keep_it(
    config: Path, tmp_path: Path
) -> None:
    ran(tmp_path / "data")
    with pytest.raises(Failure, match="of one node that ran without --nodes") as refused:
        nodes(config, 2)
    assert str(tmp_path / "data/node-2") in refused.value.fix


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("node.id=102", "from 1 to 99"),
        ("node.port=65535", "ports 65535 to 65536 do not exist"),
    ],
)
def test_number_or_port_out_of_range_is_refused(config: Path, override: str, words: str) -> None:
    with pytest.raises(Failure, match=words):
        nodes(config, 2, override)


def test_serve_alone_refuses_what_is_meant_for_nodes(
    config: Path, tmp_path: Path, raftmq: CommandLine
) -> None:
    # Started in the blank folder above them, node 2 would come back as one that lost its disk.
    ran(tmp_path / "data/node-2")
    alone = raftmq("serve", "-c", str(config))
    assert alone.code == 1
    assert "has the folders of node 2" in alone.stderr
    assert "`raftmq serve --nodes`" in alone.stderr
    alone = raftmq("serve", "-c", str(config), "--set", 'node.disks=["/x"]')
    assert "node.disks is for the nodes of `raftmq serve --nodes`" in alone.stderr


def test_refused_start_of_nodes_writes_nothing(
    config: Path, tmp_path: Path, raftmq: CommandLine
) -> None:
    refused = raftmq("serve", "-c", str(config), "--nodes", "2", "--set", "node.id=100")
    assert refused.code == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("text", ["0", "65", "-1", "all", "1.5", "٣"])
def test_number_of_nodes_out_of_range_is_a_usage_error(
    config: Path, raftmq: CommandLine, text: str
) -> None:
    refused = raftmq("serve", "-c", str(config), "--nodes", text)
    assert refused.code == 2
    assert "a number of nodes from 1 to 64, or auto" in refused.stderr


def test_number_of_nodes_is_read() -> None:
    assert [NODE_COUNT.read(text) for text in ("1", "64", "auto")] == [1, 64, "auto"]


def test_node_in_paths_of_tls_is_the_number(config: Path) -> None:
    config.write_text(
        config.read_text()
        + '[tls]\ncert = "/c/node-{node}.pem"\nkey = "/c/{node}.key"\nca = "/c/a"\n'
    )
    own = [
        read_settings(config, node.overrides).tls for node in nodes_of(read_settings(config, ()), 2)
    ]
    assert [(tls.cert, tls.key) for tls in own] == [
        ("/c/node-2.pem", "/c/2.key"), ("/c/node-102.pem", "/c/102.key"),
    ]  # fmt: skip


def test_log_of_the_process_that_runs_the_nodes_names_no_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from raftmq.cli.node.log_lines import log_of

    log_of("json", None).info("starting", nodes=[2, 102])
    log_of("json", 2).info("starting")
    of_all, of_one = map(json.loads, capsys.readouterr().err.splitlines())
    assert ("node" in of_all, of_one["node"]) == (False, 2)
