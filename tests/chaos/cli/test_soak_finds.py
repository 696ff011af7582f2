"""Bugs found by soaks are mended: each command line of the page is played, and nothing breaks now.

Lines of real processes are only parsed: their outcome depends on the machine, too.
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
REFUSED = {1000501, 1001426}
"""Faults of two nodes for a cluster of one: that was the find, and is no longer a schedule."""


def named(found: Found) -> str:
    return f"{found.kind} {found.seed}"


def test_each_find_of_a_soak_has_its_cause() -> None:
    assert len(FINDS) >= 22
    assert not [named(found) for found in FINDS if not found.cause]


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "found", [found for found in FINDS if not found.kind.startswith(REAL)], ids=named
)
def test_run_that_broke_in_a_soak_is_good_today(found: Found, raftmq: CommandLine) -> None:
    program, *arguments = shlex.split(found.replay)
    assert program == "raftmq"
    ended = raftmq(*arguments)
    wanted = ExitCode.USAGE if found.seed in REFUSED else ExitCode.OK
    assert ended.code == wanted, ended.stdout + ended.stderr
