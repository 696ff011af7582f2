"""Work of clients that is the same in every world with clients: each world only starts it.

Start reading at `registers`; `popping` is about consumer groups that pop, and `audit` about what
they have left to do. Of the simulated world: `claims`, `hand_offs`, `resets`, `topics` (`flows`),
and `administrators` and `group_lives` (`admin`).

Left out: sending messages, and reading logs. In the simulated world its clients try every way to
send (`raftmq.chaos.sim.workloads.log`), in the real one they send as much as they can
(`raftmq.chaos.real.clients.workload`); both worlds' records are judged alike.
"""

from raftmq.chaos.workloads.popping import Popping
from raftmq.chaos.workloads.registers import Registers

__all__ = ["Popping", "Registers"]
