"""Node processes that are kept running: `raftmq up` and `raftmq serve --nodes` start, restart and
stop them.

One loop without threads: it waits for messages of the nodes (`notify`), looks which nodes have
ended, and restarts these after a pause that doubles with each early death.

| a node is | then |
|---|---|
| started | its log says what it does; `READY=1` makes it ready, `STATUS=` gives its role |
| ended | a line says how, and with which last words; it is started again after its pause |
| alive for a while | its pause is back at the shortest |

Invariants:
- A node dies with the supervisor, even if that is killed (`serve.die_with`).
- After `stop` no process is left.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .notify import parse

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 10.0
"""Bounds in seconds of the wait before a node is restarted."""

STEADY_SECONDS = 10.0
"""A node that lived longer is restarted after the shortest pause."""

LOOK_SECONDS = 0.1
"""Seconds between two looks at the processes."""

STOP_SECONDS_MAX = 20.0
"""Seconds after which stopping nodes are killed."""


@dataclass(slots=True)
class Child:
    """One node and its process."""

    node: int
    """The node's number."""
    process: "subprocess.Popen[bytes] | None" = None
    """None: the node is down."""
    code: int | None = None
    """The exit code of its last process, negative: a signal's number; None: none has ended."""
    role: str = "starting"
    """`starting`, `leads group ...`, `follows`, `waits: ...`, or `down`."""
    has_served: bool = False
    """True once it has served clients, also before a restart."""
    deaths: int = 0
    """The number of times that it ended by itself."""
    started: float = 0.0
    pause: float = PAUSE_SECONDS_MIN
    due: float = 0.0
    sent: signal.Signals | None = None

    @property
    def pid(self) -> int:
        """The id of its process; 0: it is down."""
        return 0 if self.process is None else self.process.pid


class Supervisor(ABC):
    """Some nodes of this machine."""

    def __init__(self, nodes: Iterable[int], folder: Path, *, say: Callable[[str], None]) -> None:
        """On systems other than Linux the nodes' messages go to a socket in `folder`."""
        self.children = [Child(node) for node in nodes]
        self._say = say
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Bound to an empty name, Linux chooses an abstract one, which leaves no file behind.
        self._channel.bind("" if sys.platform == "linux" else str(folder / "notify"))

    @abstractmethod
    def launch(self, node: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the process of a node."""

    def last_words(self, node: int) -> str:
        """The last words of a node that failed; they follow the line that tells its end."""
        return ""

    @abstractmethod
    def changed(self) -> None:
        """Processes were started, or have ended."""

    @property
    def is_ready(self) -> bool:
        """True once every node has served clients."""
        return all(child.has_served for child in self.children)

    @property
    def deaths(self) -> int:
        """The number of times that a node ended by itself."""
        return sum(child.deaths for child in self.children)

    def start(self) -> None:
        """Start all nodes."""
        for child in self.children:
            self._start(child)

    def step(self) -> None:
        """Wait a moment, note the nodes' messages and ends, and restart nodes that are due."""
        seconds = LOOK_SECONDS
        # The channel keeps few messages, and drops what comes then.
        while select.select([self._channel], [], [], seconds)[0]:
            self._listen()
            seconds = 0.0
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._bury(child)
            elif child.process is None and time.monotonic() >= child.due and self._start(child):
                self._say(f"node {child.node} was started again, pid {child.pid}")

    def stop(
        self, *, turn_seconds: float = 0.0, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Let all nodes end gracefully; kill those that do not, or all once `is_hurried`.

        Args:
            turn_seconds: between the stops of two nodes, unless the first ends sooner; 0: all stop
                at once.
        """
        now = time.monotonic()
        turns = {child.node: now + at * turn_seconds for at, child in enumerate(self.children)}
        while alive := [child for child in self.children if child.process is not None]:
            is_late = time.monotonic() > now + STOP_SECONDS_MAX or is_hurried()
            for child in alive:
                if child is alive[0] or time.monotonic() >= turns[child.node]:
                    self._end(child, signal.SIGKILL if is_late else signal.SIGTERM)
            time.sleep(LOOK_SECONDS / 2)
        self._channel.close()

    def _end(self, child: Child, number: signal.Signals) -> None:
        """Send a signal unless it was the last one sent, or note that the node has ended."""
        assert child.process is not None
        if child.process.poll() is not None:
            child.code = child.process.returncode
            child.process, child.role = None, "down"
        elif child.sent is not number:
            child.sent = number
            child.process.send_signal(number)
            # A stopped process (SIGSTOP) handles no signal but SIGKILL until it continues.
            child.process.send_signal(signal.SIGCONT)

    def _listen(self) -> None:
        said = parse(self._channel.recv(4096))
        for child in self.children:
            if said.get("MAINPID") == str(child.pid):
                child.has_served = child.has_served or "READY" in said
                child.role = said.get("STATUS", child.role)

    def _start(self, child: Child) -> bool:
        """Start a node; False: the system has no process for it, and it is tried again later."""
        environment = {**os.environ, "NOTIFY_SOCKET": _address(self._channel)}
        child.started = time.monotonic()
        try:
            child.process = self.launch(child.node, environment)
        except OSError as error:
            # The other nodes must not end with it.
            self._postpone(child, f"node {child.node} cannot be started: {error}")
            return False
        child.role = "starting"
        self.changed()
        return True

    def _bury(self, child: Child) -> None:
        assert child.process is not None
        pid, code = child.process.pid, child.process.returncode
        if time.monotonic() - child.started > STEADY_SECONDS:
            child.pause = PAUSE_SECONDS_MIN
        child.process, child.code = None, code
        words = self.last_words(child.node) if code > 0 else ""
        self._postpone(child, f"node {child.node} (pid {pid}) {_how(code)}", words)

    def _postpone(self, child: Child, what: str, words: str = "") -> None:
        """Have a node that is down started after its pause."""
        child.role = "down"
        child.deaths += 1
        child.due = time.monotonic() + child.pause
        self._say(f"{what}; it will be started again in {child.pause:g} s{words}")
        child.pause = min(PAUSE_SECONDS_MAX, child.pause * 2)
        self.changed()


def _address(channel: socket.socket) -> str:
    """An address in the form of `NOTIFY_SOCKET`: @ stands for the zero byte of an abstract one."""
    name = channel.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
