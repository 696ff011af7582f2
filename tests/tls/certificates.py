"""Certificates for tests: authorities in folders, and contexts of nodes."""

from pathlib import Path

from raftmq.tls.authority import Authority
from raftmq.tls.contexts import Files, NodeContexts
from raftmq.tls.local_cluster import tls_settings
from raftmq.tls.names import node_name

HOST = "127.0.0.1"


def make_node(folder: Path, number: int, *, cluster: str = "c", days: float = 1.0) -> Files:
    """A node's certificate, by the authority in the folder."""
    Authority(folder).issue(node_name(cluster, number), [HOST], days=days)
    return Files(**tls_settings(folder, number))


def contexts(folder: Path, number: int, *, cluster: str = "c", days: float = 1.0) -> NodeContexts:
    """The contexts of a node with a new certificate."""
    return NodeContexts(make_node(folder, number, cluster=cluster, days=days))
