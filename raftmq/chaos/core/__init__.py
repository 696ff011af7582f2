"""The core simulator: consensus cores over real logs on simulated disks, in virtual time, no trio.

Start reading at `world` (one run), then `cluster`, `replica` (one process), `checks.safety` (what
is checked at every event), `arena` (the verbs of faults).

| module | what it is |
|---|---|
| `world` | a run: schedule, heal, drain, verdict |
| `settings`, `faults.themes` | what a seed decides beside the faults, and together with them |
| `cluster`, `node`, `replica`, `writing` | machines, their processes, their disk threads |
| `network`, `transfers`, `clock`, `disk` | what lies between and below them |
| `clients`, `operator` | who asks something of them |
| `checks` | what must hold |
| `arena`, `faults` | the verbs of faults, and what goes wrong |

Sources: TigerBeetle's VOPR, FoundationDB's simulation, etcd's data-driven tests.
"""

from raftmq.chaos.core.settings import STEADY, Settings, draw_settings
from raftmq.chaos.core.world import Run, draw_schedule, run

__all__ = ["STEADY", "Run", "Settings", "draw_schedule", "draw_settings", "run"]
