"""Whole brokers and clients in the made-up world: a cluster, its nemesis, its clients, one run.

Start reading at `cluster`.
"""

from raftmq.chaos.sim.cluster import Cluster

__all__ = ["Cluster"]
