"""The suite's summary: the kinds of faults that struck, and those that never did."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tests.conftest

SUITE = """
import os
from raftmq.chaos.campaign import Plan, campaign
from raftmq.chaos.core import run
from raftmq.chaos.faults import Event, Schedule, World

def test_in_this_process():
    assert run(Schedule(1, 20.0, (Event(4000, "kill", (1,)), Event(5000, "torn-write", (2,)))))

def test_in_a_process_of_its_own():
    plan = Plan(World.CORE, ("pause",), seconds=20.0)
    assert len(list(campaign(plan, range(2), jobs=2))) == 2

def test_of_a_fault_that_finds_nothing():
    assert run(Schedule(1, 20.0, (Event(4000, "rejoin", (1,)),)))
"""

REAL = """

from raftmq.checkers import Verdict
from raftmq.chaos.faults import Event, Schedule, World
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.tally import noted

def test_real():
    schedule = Schedule(1, 20.0, (Event(0, "full-disk", (1,), 9), Event(0, "kill", (1,))))
    counts = {"skipped: full-disk: there is no overlay": 1}
    noted(Outcome(World.REAL, schedule, Verdict.VALID, counts=counts, struck={"kill": 1}))
"""


def summary_of(folder: Path, *options: str, suite: str = SUITE) -> str:
    (folder / "conftest.py").write_text(Path(tests.conftest.__file__).read_text())
    (folder / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.campaign
def test_suite_names_the_kinds_that_never_struck_whatever_process_played_them(
    tmp_path: Path,
) -> None:
    for options in ((), ("-n", "2")):
        told = summary_of(tmp_path, *options)
        assert re.search(r"^core: 3 of \d+ kinds of faults struck$", told, re.MULTILINE), told
        assert "  rejoin never struck (due 1 time)" in told
        assert "  wipe never struck (never due)" in told
        for struck in ("kill", "torn-write", "pause"):
            assert f"  {struck} never" not in told
        assert "sim:" not in told


def test_kind_that_could_not_be_made_has_its_reason(tmp_path: Path) -> None:
    told = summary_of(tmp_path, suite=REAL)
    assert "  full-disk never struck (due 1 time; there is no overlay)" in told
    assert re.search(r"^real: 1 of \d+ kinds", told, re.MULTILINE)


def test_suite_that_plays_nothing_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_nothing() -> None:\n    pass\n")
    assert "faults that struck" not in summary_of(tmp_path, "-k", "test_nothing")
