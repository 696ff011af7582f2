"""The core simulator: consensus cores over real logs on simulated disks, in virtual time, no trio.

Start reading at `world` (one run), then `cluster`, `replica` (one process), `checks.safety` (what
is checked at every event), `arena` (the verbs of faults).

| module | what it is |
|---|---|
| `world` | a run: schedule, heal, drain, verdict |
| `settings`, `faults.themes` | what a seed decides beside the faults, and together with them |
| `environment`, `loop`, `network` | what all parts share: time, links, counts, checks |
| `host`, `clock`, `disk` | one machine without its process |
| `replica` | one process: its group with watched parts, its disk thread, what the checks see |
| `node`, `roster` | a machine with its process; all of these |
| `transfers` | snapshots between processes |
| `cluster` | the owner of all parts |
| `clients`, `operator` | who asks something of them |
| `checks` | what must hold |
| `arena`, `faults` | the verbs of faults, and what goes wrong |

No part knows its owner: a part gets the environment and its neighbours below when it is made, and
calls that the owner gives it for what the owner has to hear of.

Sources: TigerBeetle's VOPR, FoundationDB's simulation, etcd's data-driven tests.
"""

from raftmq.chaos.core.settings import STEADY, Settings, draw_settings
from raftmq.chaos.core.world import Run, draw_schedule, run

__all__ = ["STEADY", "Run", "Settings", "draw_schedule", "draw_settings", "run"]
