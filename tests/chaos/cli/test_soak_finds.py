"""The runs that broke in a soak are played again, and nothing breaks now.

Only the newest are: the faults of an older line meet other events today, as the simulation has
changed since. So a run may also get too little done before its heal to say anything. Lines of
real processes are parsed only: those runs depend on the machine, too.
"""

import shlex
from pathlib import Path

import pytest

from raftmq.chaos.soak import Book, Found
from raftmq.cli.exits import ExitCode
from tests.cli.command_line import CommandLine

BOOK = Book.read(Path(__file__).parents[3] / "docs" / "chaos" / "soak.json")
FINDS = [found for soak in BOOK.soaks for found in soak.found]
REAL = "real "
PLAYED = 10
"""The newest runs of simulated worlds, which are played."""


def named(found: Found) -> str:
    return f"{found.kind} {found.seed}"


def test_each_find_of_a_soak_has_its_cause() -> None:
    assert len(FINDS) >= 22
    assert not [named(found) for found in FINDS if not found.cause]


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "found", [found for found in FINDS if not found.kind.startswith(REAL)][-PLAYED:], ids=named
)
def test_run_that_broke_in_a_soak_is_good_today(found: Found, raftmq: CommandLine) -> None:
    program, *arguments = shlex.split(found.replay)
    assert program == "raftmq"
    ended = raftmq(*arguments)
    is_vacuous = ended.code == ExitCode.FAILED and "\nvacuous: " in ended.stdout
    assert ended.code == ExitCode.OK or is_vacuous, ended.stdout + ended.stderr
