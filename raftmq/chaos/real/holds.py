"""Holds of a node's event loop, in processor time: measured in the process, read by the harness.

A pass of the loop runs every task that can run, then asks the system for events. During a pass the
node hears no heartbeat and no client. A pass is measured by the processor time of its thread, so
that a busy machine, which takes the processor away, does not lengthen the pass.

The node's process writes the longest pass so far into a file whenever there is a longer one, and
the harness reads the file.

Invariants:
- A pass costs two readings of a clock, and the file is written for a new longest pass only.

Left out: a pass that never ends is in no file; a cluster with such a node breaks other promises.
"""

import os
import time
from pathlib import Path

import trio

MEASURED_NS = 1_000_000
"""Shortest pass that is noted."""


class Holds(trio.abc.Instrument):
    """Measures the passes of the loop that it is added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_ns = time.thread_time_ns()
        self.longest_ns = MEASURED_NS
        """The longest pass so far."""

    def after_io_wait(self, timeout: float) -> None:
        """A pass begins."""
        self._began_ns = time.thread_time_ns()

    def before_io_wait(self, timeout: float) -> None:
        """A pass is over."""
        pass_ns = time.thread_time_ns() - self._began_ns
        if pass_ns > self.longest_ns:
            self.longest_ns = pass_ns
            new = self._path.with_name(self._path.name + ".new")
            new.write_text(f"{os.getpid()} {pass_ns}\n")
            new.replace(self._path)


def longest_hold_ms(path: Path, process: int) -> float:
    """The longest pass that a process has written down, in milliseconds; 0: none yet.

    The file of an earlier process of the node counts as none.
    """
    try:
        pid, pass_ns = map(int, path.read_text().split())
    except FileNotFoundError:
        return 0.0
    return pass_ns / 1e6 if pid == process else 0.0
