"""Memory, descriptors and holds of the loop of node processes, and the limits of these."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.real import run
from raftmq.chaos.real.gauges import COMPARED, LIMITS, MIB, Gauges, Limits, use_of
from raftmq.chaos.real.holds import Holds, longest_hold_ms
from raftmq.chaos.real.run_state import RunState

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="this system has no /proc")


def spend(seconds: float) -> None:
    """Use the processor for this time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def hold(path: Path, *, busy: float = 0.0, idle: float = 0.0) -> float:
    """Block a loop in one step; returns the gauges read afterwards."""

    async def main() -> None:
        trio.lowlevel.add_instrument(Holds(path))
        await trio.lowlevel.checkpoint()
        spend(busy)
        time.sleep(idle)  # noqa: ASYNC251
        await trio.sleep(0.001)

    trio.run(main)
    return longest_hold_ms(path, os.getpid())


def test_loop_that_computes_is_held_and_one_that_waits_for_the_processor_is_not(
    tmp_path: Path,
) -> None:
    assert 100 <= hold(tmp_path / "busy", busy=0.1) < 400
    assert hold(tmp_path / "idle", idle=0.3) < 100
    assert longest_hold_ms(tmp_path / "busy", os.getpid() + 1) == 0.0


EATER = """
import sys, time
held = bytearray(b"x" * (64 << 20))
files = [open("/dev/null") for _ in range(100)]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def eater() -> Iterator[int]:
    """A process that has taken 64 MiB and a hundred descriptors."""
    command = [sys.executable, "-c", EATER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def looked(process: int, folder: Path, limits: Limits) -> tuple[Gauges, list[str]]:
    """Two looks at one process, and the promises that they found broken."""
    told: list[str] = []
    nodes = SimpleNamespace(
        nodes=[1], pid=lambda node: process, holds_path=lambda node: folder / "node-1.holds"
    )
    compared: Counter[str] = Counter()
    state: RunState = SimpleNamespace(  # type: ignore[assignment]
        nodes=nodes, compared=compared, complain=lambda name, text: told.append(name)
    )
    gauges = Gauges(state, limits)
    gauges.look()
    gauges.look()
    assert compared[COMPARED] == (2 if process else 0)
    return gauges, told


def test_each_limit_that_a_process_exceeds_is_told_once(tmp_path: Path, eater: int) -> None:
    (tmp_path / "node-1.holds").write_text(f"{eater} 30000000\n")
    gauges, told = looked(eater, tmp_path, LIMITS)
    assert told == []
    assert gauges.most["most resident memory of a node, MiB"] >= 64
    assert gauges.most["most open descriptors of a node"] >= 100
    assert gauges.most["longest hold of a loop, CPU-ms"] == 30
    assert looked(eater, tmp_path, LIMITS._replace(resident_bytes_max=60 * MIB))[1] == ["B4"]
    assert looked(eater, tmp_path, LIMITS._replace(descriptors_max=99))[1] == ["B5"]
    assert looked(eater, tmp_path, LIMITS._replace(hold_ms_max=29.0))[1] == ["B6"]


def test_node_that_is_down_takes_nothing(tmp_path: Path) -> None:
    gauges, told = looked(0, tmp_path, Limits(0, 0, 0.0))
    assert (gauges.most, told) == ({}, [])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    # It has ended, and is a zombie as long as it was not waited for.
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert use_of(ended.pid, tmp_path / "none") is None
    ended.wait()
    assert use_of(ended.pid, tmp_path / "none") is None


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.timeout(300)
def test_run_measures_its_nodes_and_fails_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = Schedule(1, 8.0, (Event(2000, "kill", (2,)),))
    monkeypatch.setattr("raftmq.chaos.real.gauges.LIMITS", Limits(MIB, 1_000, 0.01))
    outcome = run(schedule, folder=tmp_path)
    assert {violation.name for violation in outcome.violations} == {"B4", "B6"}, str(outcome)
    assert 20 < outcome.counts["most resident memory of a node, MiB"] < 256
    assert 10 < outcome.counts["most open descriptors of a node"] < 1_000
    assert 1 <= outcome.counts["longest hold of a loop, CPU-ms"] < 500
    assert outcome.compared[COMPARED] > 20
