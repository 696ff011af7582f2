"""Chaos on real processes: `raftmq serve` three times, on real sockets, files and disks.

| part | makes |
|---|---|
| `network.proxy`, `.rules` | faults of the network: every connection goes through a proxy |
| `network.namespaces`, `.packets` | the same below TCP, for root: every packet goes through us |
| `nodes` | faults of processes: signals, limits |
| `fault_injection`, `failpoints` | faults inside the process: failpoints, clocks, held-up loops |
| `disk` | faults of disks, through a file system of our own (FUSE) |
| `faults.damage` | edits of a stopped node's files |
| `arena`, `faults.nemesis` | the verbs of faults; a schedule, played |
| `clients` | clients, and the history of their calls |
| `play` | one run, from a schedule to an `Outcome` |

Start reading at `play`, then `faults.nemesis`.

Invariants:
- No process, mount, folder or port outlives a run, however it ends.
- A fault that this machine cannot make is skipped, counted, and named with a remedy.
"""

from raftmq.chaos.real.disk.disks import why_no_overlay
from raftmq.chaos.real.network.namespaces import why_no_namespaces

from .play import NETWORKS, WORKLOADS, run

__all__ = ["NETWORKS", "WORKLOADS", "run", "why_no_namespaces", "why_no_overlay"]
