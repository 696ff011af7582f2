"""A rolling restart ends its drains and restarts each node once: on a cluster of plain values."""

import signal
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from raftmq.cli.cluster import draining
from raftmq.cli.cluster.draining import _Roll
from raftmq.cli.exits import Failure
from raftmq.cli.interrupts import as_interrupts
from raftmq.errors import Reason, Rejected, Unavailable

OLD_MS = 10**9
"""Uptime of a node that was not restarted."""


class FakeCluster:
    """Three nodes, and the administrator's calls that `roll` makes."""

    def __init__(self) -> None:
        self.admin = self
        self.level = 2
        self.members = {1, 2, 3}
        self.drained: set[int] = set()
        self.drains: list[int] = []
        """The nodes that were drained, in order."""
        self.restarted: list[int] = []
        self.keeps_leading = False
        """A drained node goes on leading."""
        self.refusal: Exception | None = None
        self.undrain_error: Exception | None = None

    async def drain_node(self, node: int, *, is_on: bool = True, timeout: float = 0.0) -> None:
        if is_on and self.refusal is not None:
            raise self.refusal
        if not is_on and self.undrain_error is not None:
            raise self.undrain_error
        if is_on:
            self.drained.add(node)
            self.drains.append(node)
        else:
            self.drained.discard(node)

    def picture(self) -> dict[str, Any]:
        keeps = self.drained if self.keeps_leading else {1, 2, 3} - self.drained
        leader = max(keeps, default=3)
        nodes = [
            {
                "id": number,
                "address": f"host:{number}",
                "pid": 100 + number,
                "is_drained": number in self.drained,
                "is_reachable": True,
                "uptime_ms": 0 if number in self.restarted else OLD_MS,
            }
            for number in sorted(self.members)
        ]
        groups = [{"id": 0, "leader": leader, "behind": {}}]
        return {"level": self.level, "problems": [], "nodes": nodes, "groups": groups}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()

    async def picture_of(_: object) -> dict[str, Any]:
        return fake.picture()

    async def run_command(_: _Roll, node: dict[str, Any]) -> None:
        fake.restarted.append(node["id"])

    monkeypatch.setattr(draining, "picture_of", picture_of)
    monkeypatch.setattr(_Roll, "_run_command", run_command)
    return fake


def rolled(cluster: FakeCluster, *nodes: int, seconds: float = 5.0) -> None:
    async def run() -> None:
        mq: Any = cluster
        await _Roll(mq, ["restart", "{node}"], seconds).run(nodes)

    anyio.run(run, backend="trio")


def test_each_node_is_drained_restarted_and_undrained_the_leader_last(cluster: FakeCluster) -> None:
    rolled(cluster)
    assert cluster.drains == cluster.restarted == [1, 2, 3]
    assert cluster.drained == set()


def test_a_node_that_leaves_meanwhile_is_passed_over(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_command(_: _Roll, node: dict[str, Any]) -> None:
        cluster.restarted.append(node["id"])
        cluster.members.discard(2)

    monkeypatch.setattr(_Roll, "_run_command", run_command)
    rolled(cluster)
    assert cluster.restarted == [1, 3]
    assert "node 2 has left the cluster" in capsys.readouterr().err


def test_a_node_that_is_named_twice_is_restarted_once(cluster: FakeCluster) -> None:
    rolled(cluster, 2, 2)
    assert cluster.restarted == [2]


def test_an_interruption_ends_the_drain(cluster: FakeCluster) -> None:
    cluster.keeps_leading = True

    async def run() -> None:
        mq: Any = cluster
        with anyio.move_on_after(0.5):
            await _Roll(mq, ["restart"], 5.0).run([1])

    anyio.run(run, backend="trio")
    assert cluster.drains == [1]
    assert cluster.drained == set()


def test_a_drain_that_takes_too_long_is_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_SECONDS_MAX", 0.3)
    cluster.keeps_leading = True
    with pytest.raises(Failure, match="node 1 still leads group 0"):
        rolled(cluster, 1)
    assert (cluster.drained, cluster.restarted) == (set(), [])


def test_a_drain_that_cannot_be_ended_ends_the_roll(cluster: FakeCluster) -> None:
    cluster.undrain_error = Unavailable("no leader of the system group")
    with pytest.raises(Unavailable):
        rolled(cluster, 1, 2)
    assert cluster.restarted == [1]


def test_a_drain_of_another_operator_stays(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_command(_: _Roll, node: dict[str, Any]) -> None:
        cluster.restarted.append(node["id"])
        cluster.drained.add(2)

    monkeypatch.setattr(_Roll, "_run_command", run_command)
    rolled(cluster, 1, 2)
    assert cluster.drained == {2}


@pytest.mark.parametrize("level", [None, 1])
def test_below_the_level_of_drains_nodes_are_restarted_without(
    cluster: FakeCluster, level: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.level = level
    rolled(cluster)
    assert (cluster.drains, cluster.restarted) == ([], [1, 2, 3])
    assert capsys.readouterr().err.count("not drained: that needs feature level 2") == 3


def test_a_node_that_must_lead_is_restarted_without_a_drain(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refusal = Rejected(Reason.BAD_ARGUMENT, "groups [0] would have no node that may lead")
    rolled(cluster, 1)
    assert cluster.restarted == [1]
    assert "not drained: groups [0] would have no node that may lead" in capsys.readouterr().err


def test_a_drain_that_is_denied_ends_the_roll(cluster: FakeCluster) -> None:
    cluster.refusal = Rejected(Reason.DENIED, "user guest may not change the cluster")
    with pytest.raises(Rejected, match="guest"):
        rolled(cluster, 1)
    assert cluster.restarted == []


@pytest.mark.parametrize(
    ("program", "said"),
    [("import time; time.sleep(60)", "it did not end within 0.3 s"), ("exit(3)", "ended with 3")],
)
def test_a_command_that_hangs_or_fails_is_ended_and_named(program: str, said: str) -> None:
    async def run(words: Sequence[str]) -> None:
        mq: Any = FakeCluster()
        with anyio.fail_after(10):
            await _Roll(mq, words, 0.3)._run_command({"id": 2, "address": "host:7400", "pid": 7})

    with pytest.raises(Failure, match=said):
        anyio.run(run, [sys.executable, "-c", program, "{node}"], backend="trio")


def test_other_signals_do_what_ctrl_c_does() -> None:
    with pytest.raises(KeyboardInterrupt), as_interrupts(signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(signal.SIGTERM)
