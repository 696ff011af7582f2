"""Nodes as threads of this process, joined by socket pairs: no port, no process, the same broker.

Start reading at `node_thread` (a node and its thread), then `wiring` (how connections are made),
and `cluster` (several of them, for tests).
"""

from .cluster import InProcessCluster, in_process
from .node_thread import NodeThread
from .wiring import ClientWorld, NodeWorld, Switchboard

__all__ = [
    "ClientWorld",
    "InProcessCluster",
    "NodeThread",
    "NodeWorld",
    "Switchboard",
    "in_process",
]
