"""A made-up world for whole brokers: network, disk, clock and workers, all from one seed.

Start reading at `made_up` (what a node sees of it), then `disk` (what a power loss leaves) and
`network`.
"""

from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.chaos.world.made_up import MadeUpWorld, run
from raftmq.chaos.world.network import Network

__all__ = ["MadeUpWorld", "MemoryFiles", "Network", "PowerLoss", "run"]
