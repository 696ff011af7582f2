"""Server processes of a benchmark: started on loopback, always stopped.

Two ways to end them, because a benchmark that leaves servers behind spoils the next one:

| what ends the benchmark | what ends the children |
|---|---|
| a normal return, an error, Ctrl-C, SIGTERM | `Cluster.__exit__`: SIGKILL, by group |
| SIGKILL of the benchmark | the kernel: each child asked for SIGKILL at its parent's death |

Invariants:
- A child is a session leader: Ctrl-C at the terminal reaches the benchmark only, which then kills
  its children.
- Nothing is written outside the cluster's temporary folder, which is removed at the end. So no
  server stops in order, for which brokers on the JVM take more than five seconds.

Left out: Windows and macOS (prctl and /proc are Linux).
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

FILES_BESIDE = 2000
"""Files that a server has open beside those of its queues, at most."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Cluster:
    """A temporary folder and the processes that live in it, stopped and removed on exit."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"raftmq-bench-{name}-"))
        self._children: list[subprocess.Popen[str]] = []
        self.pids: dict[str, int] = {}
        """Process ids of the servers, by the names given to `start`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        is_piped: bool = False,
        is_server: bool = True,
    ) -> subprocess.Popen[str]:
        """Start one process. Its output goes to `<name>.log`; with `is_piped` only its stderr does,
        and stdin and stdout are pipes to us. `environment` replaces ours. A process that is no
        server, such as a load, may end by itself and is not measured as a server."""
        log: IO[str] = (self.folder / f"{name}.log").open("w")
        pipe = subprocess.PIPE
        with log:
            child = subprocess.Popen(
                list(command),
                stdin=pipe if is_piped else subprocess.DEVNULL,
                stdout=pipe if is_piped else log,
                stderr=log,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                text=True,
                bufsize=1,
            )
        self._children.append(child)
        if is_server:
            self.pids[name] = child.pid
        return child

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log, for an error message."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])

    def check_alive(self) -> None:
        """Raise if a server ended by itself."""
        for child in self._children:
            if child.pid in self.pids.values() and child.poll() is not None:
                logs = "\n".join(self.log_tail(path.stem) for path in self.folder.glob("*.log"))
                raise RuntimeError(f"{child.args!r} ended with {child.returncode}\n{logs}")

    def close(self) -> None:
        """Stop every process and remove the folder. Idempotent."""
        for child in reversed(self._children):
            # A child that was not reaped keeps its group's number: its own processes end, too.
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        self._children.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Clustered(ABC):
    """Base of systems under test: their servers live in a `Cluster` while the system is entered."""

    name: str
    """Name of the system in result rows."""
    _cluster: Cluster

    def __enter__(self) -> Self:
        self._cluster = Cluster(self.name)
        try:
            self._start()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the servers by name, while the system is entered."""
        return self._cluster.pids

    @property
    def server_pids(self) -> list[int]:
        """Process ids of the servers, whose processor time and memory are measured."""
        return list(self.pids.values())

    @abstractmethod
    def _start(self) -> None:
        """Start the servers; return when they are ready to serve."""


def files_max() -> int:
    """Files of queues that a server may have open, by the limit of a process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (1 << 20 if limit == resource.RLIM_INFINITY else limit) - FILES_BESIDE


def out_of_files() -> str:
    """The reason why a system whose queues are open files has no more queues."""
    return f"each queue is an open file of each server, which may have {files_max():,} of them"


def free_ports(count: int) -> list[int]:
    """Ports that were free on loopback a moment ago, for servers that cannot pick their own."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for_port(port: int, cluster: Cluster, *, seconds_max: float = 30.0) -> None:
    """Return once something accepts connections on the loopback port.

    Raises:
        RuntimeError: a process of the cluster died, or the time ran out.
    """
    deadline = time.monotonic() + seconds_max
    while True:
        cluster.check_alive()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing listens on port {port}") from None
            time.sleep(0.05)
        else:
            return


def output_of(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    seconds_max: float = 30.0,
) -> str:
    """The output of a short-lived program; its stderr if it has no output."""
    done = subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
        env=dict(environment) if environment is not None else None,
    )
    return done.stdout or done.stderr


def first_line(command: Sequence[str]) -> str:
    """The first line of a program's output, such as its version."""
    return next(iter(output_of(command).strip().splitlines()), "")


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
