"""The chapter about a bug is true: its lines are typed here."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from raftmq.cli.exits import ExitCode
from tests.cli.command_line import CommandLine

ROOT = Path(__file__).parents[3]
CHAPTER = ROOT / "docs/chaos/a-bug.md"


def lines(word: str) -> list[list[str]]:
    """The arguments of each command of this kind in the chapter."""
    found = re.findall(rf"^\$ raftmq (chaos {word} .*)$", CHAPTER.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_line_of_the_chapter_shows_the_stale_read_and_without_the_bug_none(
    raftmq: CommandLine,
) -> None:
    with_bug, without = lines("replay")
    assert "--mutant" in with_bug
    assert "--mutant" not in without
    assert with_bug[-1] == without[-1]
    ended = raftmq(*with_bug, "-o", "json")
    assert ended.code == ExitCode.VIOLATION
    assert [violation["name"] for violation in ended.json["violations"]] == ["R20"]
    assert "isolate-leader" in with_bug[-1]
    assert raftmq(*without).code == ExitCode.OK


def test_what_the_chapter_prints_is_what_its_commands_print() -> None:
    command = [sys.executable, "docs/chapters.py", "--check", "a-bug"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, f"`make chapters` rewrites\n{done.stdout}{done.stderr}"
