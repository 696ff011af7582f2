"""The processes of a local cluster: start, restart and stop them.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raftmq.broker.local_nodes import SERVE, start_node

from .notify import parse
from .playground import HOST, Playground, RunningNode, State

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 10.0
"""Bounds in seconds of the wait before a node is restarted."""

STEADY_SECONDS = 10.0
"""A node that lived longer is restarted after the shortest pause."""

LOOK_SECONDS = 0.1
"""Seconds between two looks at the processes."""

TURN_SECONDS = 1.0
"""Seconds between the stops of two nodes, unless the first ends sooner."""

STOP_SECONDS_MAX = 20.0
"""Seconds after which stopping nodes are killed."""

LEADS = "leads group"
"""Begins the role of a node that leads: see `serve.leads_text`."""


@dataclass(slots=True)
class _Child:
    node: int
    port: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = PAUSE_SECONDS_MIN
    due: float = 0.0
    role: str = "starting"
    has_served: bool = False
    deaths: int = 0
    sent: signal.Signals | None = None


class Supervisor:
    """The nodes of one playground."""

    def __init__(
        self,
        playground: Playground,
        ports: Sequence[int],
        *,
        say: Callable[[str], None],
        command: Sequence[str] = SERVE,
    ) -> None:
        self._playground = playground
        self._say = say
        self._command = command
        self._children = [_Child(node, port) for node, port in enumerate(ports, 1)]
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Bound to an empty name, Linux chooses an abstract one, which leaves no file behind.
        path = "" if sys.platform == "linux" else str(playground.folder / "notify")
        self._channel.bind(path)

    @property
    def is_ready(self) -> bool:
        """True once every node has served clients."""
        return all(child.has_served for child in self._children)

    @property
    def is_led(self) -> bool:
        """True once every node serves and each partition group has a leader that reported it.

        A cluster made by `up` has one data group a node, and the system group.
        """
        led = sum(child.role.count(",") + 1 for child in self._leaders())
        return self.is_ready and led > len(self._children)

    def _leaders(self) -> list[_Child]:
        return [child for child in self._children if child.role.startswith(LEADS)]

    @property
    def deaths(self) -> int:
        """The number of times that a node ended by itself."""
        return sum(child.deaths for child in self._children)

    def state(self) -> State:
        """The present state of the nodes."""
        nodes = [self._running(child) for child in self._children]
        return State(os.getpid(), self.is_ready, nodes, self._playground.certs)

    def start(self) -> None:
        """Start all nodes."""
        for child in self._children:
            self._start(child)

    def step(self) -> None:
        """Wait a moment, note the nodes' messages and ends, and restart nodes that are due."""
        if select.select([self._channel], [], [], LOOK_SECONDS)[0]:
            self._listen()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._bury(child)
            elif child.process is None and time.monotonic() >= child.due:
                self._start(child)
                self._say(f"node {child.node} was started again, pid {self._pid(child)}")

    def stop(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Let all nodes end gracefully; kill those that do not, or all once `is_hurried`."""
        now = time.monotonic()
        turns = {child.node: now + at * TURN_SECONDS for at, child in enumerate(self._children)}
        while alive := [child for child in self._children if child.process is not None]:
            is_late = time.monotonic() > now + STOP_SECONDS_MAX or is_hurried()
            for child in alive:
                # One after the other, so that each can hand over leadership to nodes still alive.
                if child is alive[0] or time.monotonic() > turns[child.node]:
                    self._end(child, signal.SIGKILL if is_late else signal.SIGTERM)
            time.sleep(LOOK_SECONDS / 2)
        self._channel.close()

    def _end(self, child: _Child, number: signal.Signals) -> None:
        """Send a signal unless it was the last one sent, or note that the node has ended."""
        assert child.process is not None
        if child.process.poll() is not None:
            child.process, child.role = None, "down"
        elif child.sent is not number:
            child.sent = number
            child.process.send_signal(number)
            # A stopped process (SIGSTOP) handles no signal but SIGKILL until it continues.
            child.process.send_signal(signal.SIGCONT)

    def _listen(self) -> None:
        said = parse(self._channel.recv(4096))
        for child in self._children:
            if said.get("MAINPID") == str(self._pid(child)):
                child.has_served = child.has_served or "READY" in said
                child.role = said.get("STATUS", child.role)

    def _start(self, child: _Child) -> None:
        environment = {**os.environ, "NOTIFY_SOCKET": _address(self._channel)}
        config, log = self._playground.config(child.node), self._playground.log(child.node)
        child.process = start_node(config, log, command=self._command, environment=environment)
        child.started = time.monotonic()
        child.role = "starting"
        self._playground.write_state(self.state())

    def _bury(self, child: _Child) -> None:
        assert child.process is not None
        pid, code = child.process.pid, child.process.returncode
        lived = time.monotonic() - child.started
        if lived > STEADY_SECONDS:
            child.pause = PAUSE_SECONDS_MIN
        child.process, child.role = None, "down"
        child.deaths += 1
        child.due = time.monotonic() + child.pause
        words = _last_words(self._playground.log(child.node)) if code > 0 else ""
        self._say(
            f"node {child.node} (pid {pid}) {_how(code)}; it will be started again in "
            f"{child.pause:g} s{words}"
        )
        child.pause = min(PAUSE_SECONDS_MAX, child.pause * 2)
        self._playground.write_state(self.state())

    def _running(self, child: _Child) -> RunningNode:
        data = str(self._playground.data(child.node))
        address = f"{HOST}:{child.port}"
        return RunningNode(child.node, address, self._pid(child), data, child.role)

    def _pid(self, child: _Child) -> int:
        return 0 if child.process is None else child.process.pid


def _address(channel: socket.socket) -> str:
    """An address in the form of `NOTIFY_SOCKET`: @ stands for the zero byte of an abstract one."""
    name = channel.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"\n  its last words ({log}): {lines[-1].strip()}" if lines else ""
