"""Counts of what processes do: processor time, context switches, system calls, bytes, stacks.

Three ways, as one of them would spoil the figures of another:

| way | counts | slows the processes |
|---|---|---|
| /proc | processor time in the program and in the kernel, context switches | no |
| strace, for one stretch | system calls, bytes on TCP, waits of the event loop | ten times |
| py-spy, for one stretch | samples of stacks, by the package of the innermost frame | hardly |

strace comes from the distribution; py-spy is named on the command line. Without them their columns
stay empty.

Left out: processes that end or start meanwhile.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.counting.usage import cpu_times

_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_SENT = re.compile(r"(?:write|writev|sendto|sendmsg)\(\d+<TCP.* = (\d+)$")
_WAIT = re.compile(r"epoll_wait\(.*, (-?\d+)\) += ")

Shares = dict[str, float]
"""Package → share of the samples."""

CALLS = {
    "wait": ("epoll_wait",),
    "rearm": ("epoll_ctl",),
    "receive": ("read", "recvfrom", "recvmsg"),
    "send": ("write", "sendto", "sendmsg"),
    "log": ("writev", "pwritev", "fdatasync"),
}
"""Columns of system calls; all others are counted as `other`."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one process since its start."""

    user: float
    """Processor seconds in the program."""
    kernel: float
    """Processor seconds in the kernel."""
    waits: int
    """Voluntary context switches: the process had to wait."""
    preempted: int
    """Involuntary context switches: the kernel let another process run."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """All threads of a process, by now."""
        user, kernel = cpu_times(pid)
        counts = Counter[str]()
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                name, _, value = line.partition(":")
                if name.endswith("ctxt_switches"):
                    counts[name] += int(value)
        return cls(
            user,
            kernel,
            counts["voluntary_ctxt_switches"],
            counts["nonvoluntary_ctxt_switches"],
        )

    def since(self, before: "Work") -> "Work":
        """The work done after `before`."""
        return Work(
            self.user - before.user,
            self.kernel - before.kernel,
            self.waits - before.waits,
            self.preempted - before.preempted,
        )


@dataclass(frozen=True, slots=True)
class Calls:
    """System calls of one process within a stretch."""

    by_column: Counter[str]
    """Number of calls by column of `CALLS`, and `other`."""
    sent_bytes: int
    """Bytes written to TCP sockets."""
    idle_waits: int
    """Waits of the event loop that may block; the other ones only look for events, as a task is
    ready to run."""


class Tracer:
    """strace on some processes: start, let them work, `stop`."""

    def __init__(self, pids: Mapping[str, int], folder: Path) -> None:
        self._files = {name: folder / f"{name}.strace" for name in pids}
        self._children = [
            subprocess.Popen(
                ["strace", "-f", "-ttt", "-yy", "-s0", "-o", str(self._files[name]), f"-p{pid}"],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # This process last: it makes the other straces, which its own would follow.
            for name, pid in sorted(pids.items(), key=lambda item: item[1] == os.getpid())
        ]

    @staticmethod
    def is_there() -> bool:
        """True if this machine has strace."""
        return shutil.which("strace") is not None

    def stop(self, since: float, until: float) -> dict[str, Calls]:
        """Detach; the calls that began between two times of the wall clock."""
        for child in self._children:
            child.send_signal(signal.SIGINT)
        for child in self._children:
            child.wait()
        return {
            name: _calls(_whole_lines(file.read_text(errors="replace"), since, until))
            for name, file in self._files.items()
        }


def _whole_lines(text: str, since: float, until: float) -> Iterable[str]:
    """The calls of a trace, each in one line, although threads interrupt one another there."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None or not since <= float(found[2]) < until:
            continue
        thread, call = found[1], found[3]
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>")
        elif (resumed := _RESUMED.match(call)) is not None:
            if thread in begun:
                yield begun.pop(thread) + call[resumed.end() :]
        else:
            yield call


def _calls(lines: Iterable[str]) -> Calls:
    columns = {call: column for column, calls in CALLS.items() for call in calls}
    by_column = Counter[str]()
    sent = idle = 0
    for line in lines:
        call = line.partition("(")[0]
        if not call.isidentifier():
            continue
        by_column[columns.get(call, "other")] += 1
        if (bytes_ := _SENT.match(line)) is not None:
            sent += int(bytes_[1])
        if (wait := _WAIT.match(line)) is not None:
            idle += wait[1] != "0"
    return Calls(by_column, sent, idle)


def stacks(py_spy: str, pids: Mapping[str, int], seconds: int, folder: Path) -> dict[str, Shares]:
    """Samples of processes that work meanwhile; blocks for `seconds`."""
    files = {name: folder / f"{name}.stacks" for name in pids}
    options = ["record", "--nonblocking", "-f", "raw", "-r", "250", "-d", str(seconds)]
    children = [
        subprocess.Popen(
            [py_spy, *options, "-o", str(files[name]), "-p", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, pid in pids.items()
    ]
    for child in children:
        child.wait()
    return {name: _shares(file.read_text()) for name, file in files.items() if file.exists()}


def _shares(text: str) -> Shares:
    counts = Counter[str]()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        counts[_owner(stack.rpartition(";")[2])] += int(count)
    total = counts.total() or 1
    return {owner: count / total for owner, count in counts.items()}


def _owner(frame: str) -> str:
    """The package that a frame of py-spy belongs to: `function (path/of/file.py:line)`."""
    path = frame.rpartition("(")[2]
    for owner in ("anyio", "trio", "raftmq"):
        if path.startswith(f"{owner}/") or f"/{owner}/" in path:
            return owner
    return "other"
