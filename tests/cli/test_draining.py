"""`raftmq cluster drain`, `undrain` and `roll`, on a cluster of real processes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli.cluster import draining
from raftmq.cli.cluster.draining import _why_not_well, _words
from tests.cli.command_line import CommandLine, Ended, process
from tests.cli.local_cluster import LocalCluster, wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[LocalCluster, str]]:
    with LocalCluster(tmp_path / "cluster") as cluster:
        yield cluster, cluster.start()


def on(url: str, *arguments: str) -> Ended:
    return process(["cluster", *arguments, "--url", url])


def leads(url: str) -> dict[int, list[int]]:
    return {node["id"]: node["leads"] for node in on(url, "status", "-o", "json").json["nodes"]}


@pytest.mark.process
def test_a_drained_node_is_shown_as_such(cluster: tuple[LocalCluster, str]) -> None:
    _, url = cluster
    ended = on(url, "drain", "2")
    assert ended.code == 0, ended.stderr
    assert "node 2 leads nothing and may be stopped" in ended.stderr
    assert leads(url)[2] == []
    shown = on(url, "status")
    assert shown.code == 0
    assert "up, drained" in shown.stdout
    assert "node 2 is drained: it leads nothing until `raftmq cluster undrain 2`" in shown.stderr
    refused = process(["cluster", "drain", "9", "--url", url])
    assert refused.code == 1
    assert "there is no node 9; the members are 1, 2, 3" in refused.stderr
    assert on(url, "undrain", "2").code == 0
    wait_until(lambda: leads(url)[2] == [2], what="node 2 leads its group again")


@pytest.mark.process
def test_all_nodes_are_restarted_and_none_stays_drained(cluster: tuple[LocalCluster, str]) -> None:
    local, url = cluster
    before = local.pids
    # The supervisor of the local cluster starts a node that ended again.
    end = "import os, sys; os.kill(int(sys.argv[1]), 15)"
    ended = on(url, "roll", "--run", f"{sys.executable} -c '{end}' {{pid}}", "--wait", "60s")
    assert ended.code == 0, ended.stderr
    assert not set(before) & set(local.pids)
    nodes = on(url, "status", "-o", "json").json["nodes"]
    assert [node["is_drained"] for node in nodes] == [False] * 3


@pytest.mark.process
def test_a_drain_that_does_not_end_leaves_no_node_drained(
    cluster: tuple[LocalCluster, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _, url = cluster
    monkeypatch.setattr(draining, "DRAIN_SECONDS_MAX", 0.0)
    ended = CommandLine(capsys)("cluster", "roll", "--run", "true {node}", "--url", url)
    assert ended.code == 1
    assert "some groups have no leader" in ended.stderr
    nodes = on(url, "status", "-o", "json").json["nodes"]
    assert [node["is_drained"] for node in nodes] == [False] * 3


@pytest.mark.process
def test_a_command_that_fails_ends_the_roll_and_the_drain(
    cluster: tuple[LocalCluster, str],
) -> None:
    local, url = cluster
    before = local.pids
    for command, said in (
        (f"{sys.executable} -c 'raise SystemExit(3)' {{node}}", "it ended with 3"),
        ("no-such-program {node}", "No such file or directory: 'no-such-program'"),
    ):
        ended = on(url, "roll", "--run", command, "--node", "2")
        assert ended.code == 1
        assert said in ended.stderr
        assert "node 2 and those after it were not restarted" in ended.stderr
    # It did what it was told, and restarted nothing.
    ended = on(url, "roll", "--run", "true {node}", "--node", "3", "--wait", "2s")
    assert ended.code == 1
    assert "node 3 was not restarted" in ended.stderr
    assert local.pids == before
    nodes = on(url, "status", "-o", "json").json["nodes"]
    assert [node["is_drained"] for node in nodes] == [False] * 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("systemctl restart raftmq", "names no node: write {node}, {host}, {port} or {pid} in it"),
        ("ssh {host} 'a", "No closing quotation"),
    ],
)
def test_a_command_for_no_node_is_refused_before_anything_is_asked(command: str, said: str) -> None:
    ended = process(["cluster", "roll", "--run", command, "--url", "raftmq://127.0.0.1:1"])
    assert ended.code == 2
    assert said in ended.stderr


def test_a_command_is_split_at_blanks_outside_quotes() -> None:
    assert _words(None) == []
    assert _words("ssh {host} 'restart it'") == ["ssh", "{host}", "restart it"]


def group(**behind: int | None) -> dict[str, Any]:
    return {"id": 1, "behind": behind}


def test_a_problem_or_more_than_256_missing_records_forbid_a_stop() -> None:
    assert _why_not_well({"problems": [], "groups": [group(**{"1": 0, "2": 256})]}) == ""
    assert _why_not_well({"problems": ["a", "b"], "groups": []}) == "a"
    lacking = {"problems": [], "groups": [group(), group(**{"1": 0, "2": 257})]}
    assert _why_not_well(lacking) == "node 2 lacks 257 records of group 1"
    unknown = {"problems": [], "groups": [group(**{"3": None})]}
    assert _why_not_well(unknown) == "the leader of group 1 does not know what node 3 lacks"
