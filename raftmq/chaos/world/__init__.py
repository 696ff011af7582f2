"""A simulated world for whole brokers: network, disk, clock and processes, all from one seed.

Start reading at `agenda` (time), then `process` (programs that run or stand still), `disk` (with
power losses), `network` (how bytes travel), `simulated` (the world as a node or a client sees it).

    one seed ─> agenda ─> machines (disk, wall clock) ─> processes (tasks, workers, streams)

Invariants:
- Nothing here knows what a broker says or stores; `raftmq.chaos.sim` does.
- The same seed gives the same run, in every process and on every machine.
"""

from raftmq.chaos.world.agenda import Agenda, TimeStandsStill, run
from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.chaos.world.network import Network
from raftmq.chaos.world.process import Machine, Process, WallClock
from raftmq.chaos.world.simulated import SimulatedClientWorld, SimulatedWorld

__all__ = [
    "Agenda",
    "Machine",
    "MemoryFiles",
    "Network",
    "PowerLoss",
    "Process",
    "SimulatedClientWorld",
    "SimulatedWorld",
    "TimeStandsStill",
    "WallClock",
    "run",
]
