"""Running the command line: in this process, or as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from raftmq.cli.app import run


@dataclass(frozen=True, slots=True)
class Ended:
    """A command's exit code and output."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Its output as one JSON document."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """Its output as one JSON value a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class CommandLine:
    """Runs commands in this process, which is quick."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        """Run one command."""
        self._capsys.readouterr()
        code = run(arguments)
        out, err = self._capsys.readouterr()
        return Ended(code, out, err)

    def ok(self, *arguments: str) -> Ended:
        """Run one command that must end with 0."""
        ended = self(*arguments)
        assert ended.code == 0, ended.stderr
        return ended


def process(
    arguments: Sequence[str], *, data: bytes = b"", environment: dict[str, str] | None = None
) -> Ended:
    """Run one command as a process that reads `data` from stdin."""
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", *arguments],
        input=data,
        capture_output=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def interrupted(arguments: Sequence[str], *, seconds: float = 3.0) -> Ended:
    """Run one command as a process, and press Ctrl-C after a while.

    Never in this process: a signal that comes a moment too late would end the tests.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "raftmq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        with suppress(subprocess.TimeoutExpired):
            running.wait(seconds)
        running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    return Ended(running.returncode, out.decode(), err.decode())
