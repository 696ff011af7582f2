"""The processes of a local cluster, with a stand-in for the node."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest

from raftmq.cli.node import supervisor as supervisor_module
from raftmq.cli.node.log_lines import LogLines
from raftmq.cli.node.machine import MachineNode
from raftmq.cli.node.machine_nodes import MachineNodes
from raftmq.cli.node.notify import parse
from raftmq.cli.node.playground import Playground
from raftmq.cli.node.serve import leads_text
from raftmq.cli.node.up import PlaygroundNodes

StartMachine = Callable[..., tuple[MachineNodes, StringIO]]
COMMAND = (sys.executable, "-m", "tests.cli.fake_serve")
SECONDS_MAX = 20.0


class Run:
    """A supervisor over stand-ins, and its output."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.playground = Playground(folder, is_temporary=False)
        for node, text in enumerate(words, 1):
            self.playground.config(node).write_text(text)
        self.said: list[str] = []
        self.supervisor = PlaygroundNodes(
            self.playground, range(7500, 7500 + len(words)), say=self.said.append, command=COMMAND
        )
        self.supervisor.start()

    def until(self, holds: Callable[[], bool]) -> None:
        """Step until something holds."""
        end = time.monotonic() + SECONDS_MAX
        while not holds():
            assert time.monotonic() < end, self.said
            self.supervisor.step()

    def pid(self, node: int) -> int:
        """The node's process."""
        return self.supervisor.state().nodes[node - 1].pid


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*words: str) -> Run:
        runs.append(Run(tmp_path, list(words)))
        return runs[-1]

    yield start
    for run in runs:
        run.supervisor.stop(is_hurried=lambda: True)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nodes_become_ready_and_tell_their_roles(start: Callable[..., Run]) -> None:
    run = start("", "")
    run.until(lambda: run.supervisor.is_led)
    assert run.supervisor.is_ready
    assert [node.role for node in run.supervisor.state().nodes] == ["leads groups 0, 1"] * 2


def test_group_that_a_node_leads_alone_is_one_and_counts(start: Callable[..., Run]) -> None:
    assert (leads_text([2]), leads_text([0, 2])) == ("leads group 2", "leads groups 0, 2")
    run = start("lone", "")
    run.until(lambda: run.supervisor.is_led)
    assert [node.role for node in run.supervisor.state().nodes] == [
        "leads group 2", "leads groups 0, 1",
    ]  # fmt: skip


def test_killed_node_is_started_again_and_a_line_says_so(start: Callable[..., Run]) -> None:
    run = start("", "")
    run.until(lambda: run.supervisor.is_led)
    before = run.pid(2)
    os.kill(before, signal.SIGKILL)
    run.until(lambda: run.pid(2) not in (0, before))
    assert run.said == [
        f"node 2 (pid {before}) was ended by SIGKILL; it will be started again in 0.5 s",
        f"node 2 was started again, pid {run.pid(2)}",
    ]
    state = run.playground.folder / "up.json"
    assert str(run.pid(2)) in state.read_text()


def test_node_that_cannot_live_is_started_ever_later_with_its_last_words(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "PAUSE_SECONDS_MAX", 1.0)
    run = start("exit")
    run.until(lambda: run.supervisor.deaths >= 3)
    ends = [line for line in run.said if "ended with 3" in line]
    assert ["0.5 s" in ends[0], "in 1 s" in ends[1], "in 1 s" in ends[2]] == [True] * 3
    assert all("the disk is on fire" in line for line in ends)


def test_stop_leaves_no_process(start: Callable[..., Run]) -> None:
    run = start("", "", "")
    run.until(lambda: run.supervisor.is_ready)
    pids = [run.pid(node) for node in (1, 2, 3)]
    run.supervisor.stop()
    assert not any(map(is_alive, pids))


def test_stopped_process_is_woken_to_end(start: Callable[..., Run]) -> None:
    run = start("")
    run.until(lambda: run.supervisor.is_ready)
    pid = run.pid(1)
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    run.supervisor.stop()
    assert time.monotonic() - started < supervisor_module.STOP_SECONDS_MAX / 2
    assert not is_alive(pid)


def test_node_that_does_not_end_is_killed_when_it_becomes_urgent(
    start: Callable[..., Run],
) -> None:
    run = start("deaf")
    run.until(lambda: run.supervisor.is_ready)
    pid = run.pid(1)
    until = time.monotonic() + 0.5
    run.supervisor.stop(is_hurried=lambda: time.monotonic() > until)
    assert not is_alive(pid)


@pytest.fixture
def start_machine(tmp_path: Path) -> Iterator[StartMachine]:
    """Starts stand-ins as the nodes 2 and 102 of a machine; also gives the lines of its log."""
    started: list[MachineNodes] = []

    def start(words: str, command: Sequence[str] = COMMAND) -> tuple[MachineNodes, StringIO]:
        config = tmp_path / "node.toml"
        config.write_text(words)
        out = StringIO()
        log = LogLines(None, is_json=True, out=out)
        nodes = [MachineNode(number, (f"node.id={number}",)) for number in (2, 102)]
        started.append(MachineNodes(config, tmp_path, nodes, log=log, command=command))
        started[-1].start()
        return started[-1], out

    yield start
    for running in started:
        running.stop(is_hurried=lambda: True)


def until(running: MachineNodes, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end
        running.step()


def test_nodes_of_a_machine_renew_certificates_and_end_gracefully(
    start_machine: StartMachine,
) -> None:
    running, _ = start_machine("")
    until(running, lambda: all(child.role.startswith("leads") for child in running.children))
    running.renew_certificates()
    until(running, lambda: all(child.role == "renewed" for child in running.children))
    running.stop()
    assert running.failed == []


def test_nodes_of_a_machine_that_had_to_be_killed_are_named(start_machine: StartMachine) -> None:
    running, _ = start_machine("deaf")
    until(running, lambda: running.is_ready)
    running.stop(is_hurried=lambda: True)
    assert running.failed == [2, 102]


def test_node_for_which_the_system_has_no_process_is_tried_again(
    start_machine: StartMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, log = start_machine("", command=("/nowhere/raftmq",))
    assert running.deaths == 2
    assert running.failed == [2, 102]
    assert "node 2 cannot be started: [Errno 2]" in log.getvalue()
    monkeypatch.setattr(running, "_command", COMMAND)
    until(running, lambda: running.is_ready)
    assert "node 102 was started again" in log.getvalue()


def test_datagram_without_names_says_nothing() -> None:
    assert parse(b"\xff\x00 hello\n\n") == {}
