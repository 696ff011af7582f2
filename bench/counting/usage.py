"""Processor time and memory of processes, measured from outside: the kernel's figures in /proc.

    with Usage(pids) as usage:
        ...                              # a load runs
        usage.seconds(began, ended)      # processor seconds of the processes between two moments

A thread notes the processor time ten times a second, so that a load need not know who watches it.
The kernel counts in hundredths of a second; between two notes the time is interpolated.

Invariants:
- Only the processes themselves count, with all their threads; their children do not.
"""

import bisect
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

PERIOD_SECONDS = 0.1
_TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Memory of a process, in MiB."""

    resident: float
    """Resident memory, mapped files included."""
    anonymous: float
    """Resident memory without mapped files, which the kernel may drop at any time."""


class Usage:
    """Notes the processor time of processes while it is entered."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._times: list[float] = []
        self._seconds: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._note()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds(self, began: float, ended: float) -> float:
        """Processor seconds of all processes between two moments of `time.perf_counter`."""
        self._note()
        return self._at(ended) - self._at(began)

    def _watch(self) -> None:
        while not self._is_over.wait(PERIOD_SECONDS):
            self._note()

    def _note(self) -> None:
        seconds = sum(map(cpu_seconds, self._pids))
        self._seconds.append(seconds)
        self._times.append(time.perf_counter())

    def _at(self, moment: float) -> float:
        after = bisect.bisect_left(self._times, moment)
        if after == 0 or after == len(self._times):
            return self._seconds[min(after, len(self._times) - 1)]
        begin, end = self._times[after - 1], self._times[after]
        share = (moment - begin) / (end - begin)
        return self._seconds[after - 1] + share * (self._seconds[after] - self._seconds[after - 1])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process since its start."""
    return sum(cpu_times(pid))


def cpu_times(pid: int) -> tuple[float, float]:
    """Processor seconds of a process since its start, in the program and in the kernel."""
    # The name in the second field may contain blanks: count fields after its closing bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * _TICK_SECONDS, int(fields[12]) * _TICK_SECONDS


def memory(pid: int) -> Memory:
    """Memory of a process now."""
    kib = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            kib[name] = int(value.split()[0])
    return Memory(kib["VmRSS"] / 1024, kib["RssAnon"] / 1024)
