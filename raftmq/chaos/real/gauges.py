"""What each node's process takes of its machine, measured from outside, and the limits of that.

| name | what | measured |
|---|---|---|
| `B4` | resident memory, at its peak | `VmHWM` of `/proc/PID/status` |
| `B5` | open descriptors | entries of `/proc/PID/fd`, at each look |
| `B6` | longest hold of the event loop, processor time | in the process: see `holds` |

The limits are for the small logs, caches and limits of this harness (`nodes.SETTINGS`), and well
above what its runs were seen to take: 69 MiB, 42 descriptors and 30 ms; with strangers 107 MiB, 592
descriptors and 70 ms. They find what grows without a bound.

Invariants:
- A process that ended between two looks is no error; its peak until the last look counts.
- A limit that is exceeded is told once for each node.

Left out: systems without `/proc`, where nothing is measured, and the counts are not there.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from .holds import longest_hold_ms
from .stage import Stage

MIB = 1 << 20
PROC = Path("/proc")


class Limits(NamedTuple):
    """What a node may take."""

    resident_bytes_max: int = 256 * MIB
    descriptors_max: int = 1_000
    hold_ms_max: float = 500.0
    """Processor time of one pass of the loop."""


LIMITS = Limits()


class Use(NamedTuple):
    """What a process takes."""

    resident_bytes: int
    """At its peak."""
    descriptors: int
    hold_ms: float
    """At its longest."""


COMPARED = "limits of memory, descriptors and holds of the loop"
"""What the looks are counted as."""


class Gauges:
    """The most that the nodes of a run have taken."""

    def __init__(self, stage: Stage, limits: Limits | None = None) -> None:
        self._stage = stage
        self._limits = LIMITS if limits is None else limits
        self._told: set[tuple[int, str]] = set()
        self.most: Counter[str] = Counter()
        """By name of the count: of all nodes and processes."""

    def look(self) -> None:
        """Measure every process."""
        nodes = self._stage.nodes
        for node in nodes.nodes:
            process = nodes.pid(node)
            use = use_of(process, nodes.holds_path(node)) if process else None
            if use is not None:
                self._stage.compared[COMPARED] += 1
                self._note("most resident memory of a node, MiB", use.resident_bytes // MIB)
                self._note("most open descriptors of a node", use.descriptors)
                self._note("longest hold of a loop, CPU-ms", int(use.hold_ms))
                self._judge(node, use)

    def _note(self, name: str, count: int) -> None:
        self.most[name] = max(self.most[name], count)

    def _judge(self, node: int, use: Use) -> None:
        bytes_max, descriptors_max, hold_ms_max = self._limits
        if use.resident_bytes > bytes_max:
            text = f"{use.resident_bytes:,} bytes of memory; at most {bytes_max:,}"
            self._complain("B4", node, text)
        if use.descriptors > descriptors_max:
            text = f"{use.descriptors:,} open descriptors; at most {descriptors_max:,}"
            self._complain("B5", node, text)
        if use.hold_ms > hold_ms_max:
            text = f"its loop for {use.hold_ms:,.0f} ms of processor time; at most {hold_ms_max:,g}"
            self._complain("B6", node, text)

    def _complain(self, name: str, node: int, text: str) -> None:
        if (node, name) not in self._told:
            self._told.add((node, name))
            self._stage.complain(name, f"node {node} held {text}")


def use_of(process: int, holds: Path) -> Use | None:
    """What a process takes now; None: it has ended, or there is no `/proc`."""
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
        descriptors = len(os.listdir(PROC / str(process) / "fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    peak = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    # A process that has ended and was not waited for has no memory.
    if peak is None:
        return None
    return Use(int(peak) * 1024, descriptors, longest_hold_ms(holds, process))
