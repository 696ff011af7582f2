"""Chaos on real processes: `raftmq serve` three times, on real sockets, files and disks.

| part | makes |
|---|---|
| `proxy`, `rules` | faults of the network: every connection goes through us |
| `namespaces`, `packets` | the same below TCP, where root is given: every packet does |
| `nodes` | faults of processes: signals, limits |
| `armed`, `points`, `clocks` | crash points, wrong clocks, held-up loops: inside a node's process |
| `overlay`, `overlay_model`, `disks` | faults of disks, through a file system of our own (FUSE) |
| `damage` | edits of a stopped node's files |
| `nemesis` and the handlers beside it | a schedule, played |
| `workload` | clients, and what they were told |
| `play` | one run, from a schedule to an `Outcome` |

Start reading at `play`, then `nemesis`.

Invariants:
- No process, mount, folder or port outlives a run, however it ends.
- A fault that this machine cannot make is skipped, counted, and named with a remedy.
"""

from .disks import why_no_overlay
from .namespaces import why_no_namespaces
from .play import NETWORKS, WORKLOADS, run

__all__ = ["NETWORKS", "WORKLOADS", "run", "why_no_namespaces", "why_no_overlay"]
