"""A raftmq cluster whose processes are watched, paused, killed and started again.

    with Nodes("plain") as nodes:
        nodes.start()
        trio.run(load, nodes.url)
        nodes.kill(3)

Invariants:
- The folder and every process, also a paused one, are gone after the exit, also after an error.
- Memory and processor time are the kernel's figures of the node's own process.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import raftmq
from bench.counting.usage import Memory, cpu_seconds, memory
from bench.processes import Cluster, free_ports
from raftmq.broker.local_nodes import SERVE, node_settings, toml_text

from .probe import ask_table

COUNT = 3
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01


class Nodes:
    """Three nodes with the default settings."""

    def __init__(self, name: str, *, settings: str = "", groups: int = COUNT) -> None:
        self._cluster = Cluster(f"growth-{name}")
        self._settings = settings
        self._groups = groups
        self._ports = free_ports(COUNT)
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        _LIVE.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every node and remove the folder."""
        _LIVE.remove(self)
        # SIGKILL, which ends a paused node, too: the data is thrown away, so that a graceful end
        # has no use.
        self.kill(*self._processes)
        self._cluster.close()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return "raftmq://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def numbers(self) -> range:
        """The nodes' numbers."""
        return range(1, COUNT + 1)

    def port(self, number: int) -> int:
        """A node's port."""
        return self._ports[number - 1]

    def start(self, *numbers: int) -> None:
        """Start nodes, without a number all nodes, and do not wait for them."""
        addresses = {peer: ("127.0.0.1", self.port(peer)) for peer in self.numbers}
        for number in numbers or self.numbers:
            config, data = self._cluster.folder / f"node{number}.toml", self.data(number)
            own = node_settings(
                number,
                addresses[number],
                cluster="growth",
                data=data,
                founders=COUNT,
                others=addresses,
            )
            own["groups"] = self._groups
            config.write_text(toml_text({"node": own}) + self._settings)
            command = [*SERVE, "-c", str(config)]
            self._processes[number] = self._cluster.start(command, name=f"node{number}")

    def data(self, number: int) -> Path:
        """A node's data folder."""
        return self._cluster.folder / f"data{number}"

    def data_bytes(self, number: int) -> int:
        """Bytes in all files of a node."""
        return sum(path.stat().st_size for path in self.data(number).rglob("*") if path.is_file())

    def wait_answering(self, number: int) -> float:
        """Wait until a node gives its routing table; returns `time.perf_counter` of that moment."""
        deadline = time.perf_counter() + START_SECONDS_MAX
        while ask_table(self.port(number)) is None:
            self._check(number, deadline)
            time.sleep(POLL_SECONDS)
        return time.perf_counter()

    def check(self) -> None:
        """Raise if a node that should run has ended by itself."""
        for number in self._processes:
            self._check(number, float("inf"))

    def _check(self, number: int, deadline: float) -> None:
        status = self._processes[number].poll()
        if status is not None:
            tail = self._cluster.log_tail(f"node{number}")
            raise RuntimeError(f"node {number} ended with {status}\n{tail}")
        if time.perf_counter() > deadline:
            tail = self._cluster.log_tail(f"node{number}")
            raise RuntimeError(f"node {number} does not answer\n{tail}")

    def pause(self, number: int) -> None:
        """Pause a node with SIGSTOP."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Resume a node with SIGCONT; no effect on a node that is not paused."""
        with contextlib.suppress(ProcessLookupError):
            self._processes[number].send_signal(signal.SIGCONT)

    def kill(self, *numbers: int) -> None:
        """End nodes with SIGKILL, all at once; return when the processes are gone."""
        self._end(signal.SIGKILL, numbers)

    def stop(self, *numbers: int) -> None:
        """End nodes gracefully with SIGTERM; return when the processes are gone."""
        self._end(signal.SIGTERM, numbers)

    def _end(self, number: signal.Signals, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            self._processes[node].send_signal(number)
        for node in nodes:
            self._processes.pop(node).wait(START_SECONDS_MAX)

    def cpu_seconds(self) -> float:
        """Processor time of all running nodes since they started, to a hundredth of a second."""
        return sum(cpu_seconds(process.pid) for process in self._processes.values())

    def pid(self, number: int) -> int:
        """The process id of a running node."""
        return self._processes[number].pid

    def memory(self, number: int) -> Memory:
        """A node's memory now."""
        return memory(self._processes[number].pid)

    def memories(self) -> list[Memory]:
        """All running nodes' memory now, by number."""
        return [self.memory(number) for number in sorted(self._processes)]

    def resident_max(self) -> float:
        """The resident memory of the largest node, in MiB."""
        return max(memory.resident for memory in self.memories())

    def forget_pages(self) -> None:
        """Drop the data folders from the page cache, as after a restart of the machine."""
        for number in self.numbers:
            for path in self.data(number).rglob("*"):
                if path.is_file():
                    file = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(file)


_LIVE: list[Nodes] = []


def close_all() -> None:
    """Close every open cluster; for handlers of signals."""
    while _LIVE:
        _LIVE[-1].close()


VERSION = raftmq.__version__
