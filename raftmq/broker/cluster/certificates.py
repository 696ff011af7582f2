"""The rules for certificates: whom a node takes for a node of its cluster.

| the certificate of the other end names | it is taken for |
|---|---|
| node N of this cluster | node N, and no other |
| holders in other clusters only | a stranger: it is refused before any frame is read |
| a user of this cluster, no holder, or there is no certificate | a client: see `access.gate` |
"""

from raftmq.broker.serve.connection import Refusal
from raftmq.errors import Reason
from raftmq.tls.names import CertificateName, node_name
from raftmq.wire.messages import ErrorReply


def check_cluster(names: frozenset[CertificateName], cluster: str) -> None:
    """Raises `Refusal` if the names are of other clusters only."""
    if names and all(name.cluster != cluster for name in names):
        others = ", ".join(sorted({repr(name.cluster) for name in names}))
        message = f"this is cluster {cluster!r}, and the certificate is for {others}"
        raise Refusal(ErrorReply(Reason.WRONG_CLUSTER.value, message))


def check_node(names: frozenset[CertificateName], cluster: str, node: int) -> None:
    """Raises `Refusal` if the names are not those of a node."""
    name = node_name(cluster, node)
    if name not in names:
        message = (
            f"no certificate of node {node} of cluster {cluster!r}: it does not name {name.urn}"
        )
        raise Refusal(ErrorReply(Reason.TLS.value, message))
