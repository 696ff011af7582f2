"""Whole brokers and clients in the simulated world: a cluster, its nemesis, its clients, one run.

Start reading at `cluster`, then `run` (one run), `faults.nemesis` (the faults) and `checks.watch`
(the observations).
"""

from raftmq.chaos.sim.cluster import Cluster

__all__ = ["Cluster"]
