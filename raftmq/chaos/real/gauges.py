"""Memory, descriptors and holds of the event loop of each node's process, and their limits.

| name | what | measured |
|---|---|---|
| `B4` | resident memory, at its peak | `VmHWM` of `/proc/PID/status` |
| `B5` | open descriptors | entries of `/proc/PID/fd`, at each look |
| `B6` | longest hold of the event loop, processor time | in the process: see `holds` |

The limits suit the small logs and caches of this harness (`nodes.SETTINGS`) and leave a margin: its
runs took up to 69 MiB, 42 descriptors and 30 ms; with strangers 107 MiB, 592 descriptors and 70 ms.
The limits find resources that grow without a bound.

Invariants:
- A process that ended between two looks is no error; its peak until the last look counts.
- An exceeded limit is reported once for each node.

Left out: systems without `/proc`; nothing is measured there, and the counts are missing.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from .holds import longest_hold_ms
from .run_state import RunState

MIB = 1 << 20
PROC = Path("/proc")


class Limits(NamedTuple):
    """Limits of one node."""

    resident_bytes_max: int = 256 * MIB
    descriptors_max: int = 1_000
    hold_ms_max: float = 500.0
    """Milliseconds of processor time of one pass of the loop."""


LIMITS = Limits()


class Use(NamedTuple):
    """Resources of one process."""

    resident_bytes: int
    """Peak since the process began."""
    descriptors: int
    hold_ms: float
    """The longest hold since the process began, in milliseconds of processor time."""


COMPARED = "limits of memory, descriptors and holds of the loop"
"""Name under which each measurement of a process counts as a comparison."""


class Gauges:
    """The largest values over all nodes of a run."""

    def __init__(self, state: RunState, limits: Limits | None = None) -> None:
        self._state = state
        self._limits = LIMITS if limits is None else limits
        self._told: set[tuple[int, str]] = set()
        self.most: Counter[str] = Counter()
        """Name of the count → the largest value over all nodes and processes."""

    def look(self) -> None:
        """Measure every process."""
        nodes = self._state.nodes
        for node in nodes.nodes:
            process = nodes.pid(node)
            use = use_of(process, nodes.holds_path(node)) if process else None
            if use is not None:
                self._state.compared[COMPARED] += 1
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
            self._state.complain(name, f"node {node} held {text}")


def use_of(process: int, holds: Path) -> Use | None:
    """Resources of a process; None: the process has ended, or there is no `/proc`."""
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
        descriptors = len(os.listdir(PROC / str(process) / "fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    peak = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    # A zombie has no VmHWM line: it has ended and the harness has not waited for it yet.
    if peak is None:
        return None
    return Use(int(peak) * 1024, descriptors, longest_hold_ms(holds, process))
