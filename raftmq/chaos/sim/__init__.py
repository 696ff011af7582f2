"""Whole brokers and clients in the simulated world: a cluster, its nemesis, its clients, one run.

Start reading at `cluster`, then `run` (one run), `faults.nemesis` (what goes wrong) and
`checks.watch` (what is looked at).
"""

from raftmq.chaos.sim.cluster import Cluster

__all__ = ["Cluster"]
