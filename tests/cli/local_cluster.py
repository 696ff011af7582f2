"""A local cluster of real processes for tests, started as a user would."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from raftmq.cli.node.playground import Playground, State
from tests.cli.command_line import process

SECONDS_MAX = 60.0


def wait_until(holds: Callable[[], bool], *, what: str, seconds: float = SECONDS_MAX) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class LocalCluster:
    """A cluster in the background, in a folder that is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.playground = Playground(folder, is_temporary=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process, whatever the test found."""
        if self.playground.is_running():
            self.stop()

    def start(self, *options: str) -> str:
        """`raftmq up --detach`; the URL it tells."""
        ended = process(["up", "--detach", "--any-port", "--data", str(self.folder), *options])
        assert ended.code == 0, ended.stderr
        (url,) = re.findall(r"^export RAFTMQ_URL=(\S+)$", ended.stdout, re.MULTILINE)
        return shlex.split(url)[0]

    def stop(self) -> None:
        """`raftmq down`."""
        ended = process(["down", "--data", str(self.folder)])
        assert ended.code == 0, ended.stderr

    @property
    def state(self) -> State:
        """The supervisor's state file."""
        state = self.playground.read_state()
        assert state is not None
        return state

    @property
    def pids(self) -> list[int]:
        """The nodes' processes, by node."""
        return [node.pid for node in self.state.nodes]


class Foreground:
    """`raftmq up` in the foreground, with its output."""

    def __init__(self, *arguments: str) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raftmq", "up", "--any-port", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process, whatever the test found."""
        self.process.kill()
        self.process.communicate()

    def read_until(self, words: str) -> list[str]:
        """Lines of stdout up to the one with these words."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if words in line:
                return lines
        raise AssertionError(f"{words!r} never came: {lines}")

    def read_table(self) -> tuple[list[list[str]], float]:
        """The rows of the table, and how many seconds after the start they stood there."""
        lines = self.read_until("raftmq consume")
        seconds = time.monotonic() - self.started
        rows = [line.split() for line in lines if re.match(r" +\d+ ", line)]
        return rows, seconds

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and wait; the exit code and stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, stderr
