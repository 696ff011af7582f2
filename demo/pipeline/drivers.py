"""A job on Spark as a process of its own, which can be killed with all that it has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 60.0


class DriverFailed(Exception):
    """A job ended with an error; the message holds its last lines."""


class Driver:
    """`raftmq pipeline …`, which may be started again and again."""

    def __init__(self, name: str, arguments: Sequence[str], *, url: str, folder: Path) -> None:
        self.name = name
        """Name for people."""
        self._arguments = arguments
        self._url = url
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the driver's Python; Java is its child."""
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str) -> None:
        """Start the job; it goes on where the job before ended."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raftmq", "pipeline", *self._arguments, *more],
                stdout=log,
                stderr=log,
                env={**os.environ, "RAFTMQ_URL": self._url},
                # One kill reaches Java, too.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise `DriverFailed` if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._failed()

    def kill(self) -> None:
        """SIGKILL to Python and Java. Spark's workers are in groups of their own; they end when
        they see that Java is gone."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """As by Ctrl-C; waits for its end."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        finally:
            self.kill()

    def finish(self, *more: str) -> None:
        """Run the job again, to the end of the topic.

        Raises:
            DriverFailed: the job ended with an error.
        """
        self.start(*more)
        assert self._process is not None
        if self._process.wait() != 0:
            raise self._failed()
        self.kill()

    def _failed(self) -> DriverFailed:
        assert self._process is not None
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        code = self._process.returncode
        return DriverFailed(f"{self.name} ended with {code}:\n" + "\n".join(lines))
