"""Real cells: servers start, are measured, and are gone afterwards however the cell ends."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cell import run
from bench.scenarios import SCENARIOS, SYSTEMS
from bench.system import Sample

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


def start_cell(folder: Path, scenario: str, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.cell", "floor", scenario, "--seconds", str(seconds)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_naming(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(command.decode(errors="replace"))
    return found


def wait_until_running(cell: "subprocess.Popen[str]") -> None:
    assert cell.stdout is not None
    for line in cell.stdout:
        if json.loads(line) == {"phase": "running"}:
            return
    pytest.fail("the cell ended before it ran")


class ReadAtOnce(AbstractContextManager["ReadAtOnce"]):
    """A system whose client has all messages when it counts the first one."""

    name, version, settings, server_pids = "floor", "", "", (os.getpid(),)

    def __exit__(self, *_: object) -> None:
        pass


def test_read_that_is_too_short_to_measure_has_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [Sample(100, 10, seconds, None, None, 0.0) for seconds in (1.0, 0.01)]
    scenario = SimpleNamespace(rows=["produce-1MiB", "consume-1MiB"], run=lambda *_: samples)
    monkeypatch.setitem(SCENARIOS, "consume-1MiB", scenario)
    monkeypatch.setitem(SYSTEMS, "floor", SimpleNamespace(make=ReadAtOnce))
    run("floor", "consume-1MiB", 2.0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stored, read = [line for line in lines if "scenario" in line]
    assert stored["messages_per_s"] == 100
    assert read["unsupported"].startswith("100 messages came within 10 ms")


@pytest.mark.parametrize(
    ("scenario", "given"),
    [
        ("produce-100B", ["produce-100B"]),
        ("single-200B", ["single-200B"]),
        ("consume-1MiB", ["produce-1MiB", "consume-1MiB"]),
    ],
)
def test_floor_cell_prints_its_rows_and_leaves_nothing_behind(
    tmp_path: Path, scenario: str, given: list[str]
) -> None:
    cell = start_cell(tmp_path, scenario, seconds=0.3)
    output, _ = cell.communicate(timeout=60)
    rows = [line for line in map(json.loads, output.splitlines()) if "phase" not in line]
    assert cell.returncode == 0
    assert [row["scenario"] for row in rows] == given
    assert all(row["system"] == "floor" and row["messages_per_s"] > 0 for row in rows)
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_cell_without_the_operation_says_so_for_its_scenario(tmp_path: Path) -> None:
    cell = start_cell(tmp_path, "ordered-100B", seconds=0.3)
    output, _ = cell.communicate(timeout=60)
    assert cell.returncode == 0
    assert json.loads(output.splitlines()[-1]) == {
        "scenario": "ordered-100B",
        "unsupported": "the floor has no keys: compare with its consume",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_cell_leaves_no_server_and_no_folder(
    tmp_path: Path, number: signal.Signals
) -> None:
    cell = start_cell(tmp_path, "produce-100B", seconds=60.0)
    with cell:
        wait_until_running(cell)
        assert len(processes_naming(tmp_path)) == 3
        cell.send_signal(number)
        cell.wait(30)
    assert cell.returncode != 0
    assert processes_naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_servers_of_a_killed_cell_die_with_it(tmp_path: Path) -> None:
    cell = start_cell(tmp_path, "produce-100B", seconds=60.0)
    with cell:
        wait_until_running(cell)
        cell.kill()
        cell.wait(30)
    deadline = time.monotonic() + 10.0
    while processes_naming(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_naming(tmp_path) == []
