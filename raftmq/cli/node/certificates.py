"""The certificate of a node: its files, and until when it is valid."""

import time
from typing import TYPE_CHECKING

from raftmq.cli.exits import Failure
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.broker.settings import Settings
    from raftmq.tls.contexts import NodeContexts

DAY_SECONDS = 86_400
WARN_DAYS = 30
"""Days before its end from which on a certificate is spoken of."""


def contexts_of(settings: "Settings") -> "NodeContexts | None":
    """The node's TLS; None: its connections are plain.

    Raises:
        Failure: a file cannot be used, or holds the certificate of another node.
    """
    from raftmq.tls.contexts import Files, NodeContexts
    from raftmq.tls.names import node_name

    tls = settings.tls
    if not tls.cert:
        return None
    files = Files(tls.cert, tls.key, tls.ca, tls.crl)
    try:
        holder = node_name(settings.node.cluster, settings.node.id)
        return NodeContexts(files, holder=holder, clients_need_certificates=tls.client_certs)
    except OSError as error:
        fix = "correct the table [tls] of the settings; `raftmq cert make` makes such files"
        raise Failure(f"TLS cannot begin: {error}", fix=fix) from error


def certificate_text(ends_ms: int) -> str:
    """A warning that a node's certificate ends soon, or has ended; empty: neither."""
    days = (ends_ms / 1000 - time.time()) / DAY_SECONDS
    if not ends_ms or days > WARN_DAYS:
        return ""
    fix = "`raftmq cert make` makes another, which a running node takes up by itself"
    if days <= 0:
        return f"it has ended: clients and other nodes can no longer connect; {fix}"
    left = counted(int(days), "day") if days >= 1 else "less than a day"
    return f"it ends in {left}, and then clients and other nodes can no longer connect; {fix}"
