"""The certificates of a run under TLS, for the harness itself.

The proxy stands between nodes that trust no stranger, so it has the certificates of all of them: to
the caller it is the node, and to the node it is the caller. Nodes check certificates as in a
cluster without a proxy. Changed files count for the next connections.
"""

import ssl
from pathlib import Path

import trio

from raftmq.tls.contexts import Files, NodeContexts, client_context
from raftmq.tls.local_cluster import ADMIN, tls_settings


class Trust:
    """The certificates in a folder; see `raftmq.tls.local_cluster.certify`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[int, NodeContexts] = {}
        self._clients: dict[tuple[int, ...], ssl.SSLContext] = {}

    async def accepted(self, stream: trio.SocketStream, node: int) -> trio.abc.Stream:
        """A stream that was accepted in place of a node. Cancelling leaves it of no use."""
        return await _under_tls(stream, self._of(node).pair.accepting, is_server=True)

    async def connected(self, stream: trio.SocketStream, caller: int = 0) -> trio.abc.Stream:
        """A stream to a node, opened in place of another node, or of a client (0). Cancelling
        leaves it of no use."""
        context = self._of(caller).pair.connecting if caller else self._client()
        return await _under_tls(stream, context, is_server=False)

    def _of(self, node: int) -> NodeContexts:
        if node not in self._nodes:
            self._nodes[node] = NodeContexts(Files(**tls_settings(self._folder, node)))
        self._nodes[node].reload()
        return self._nodes[node]

    def _client(self) -> ssl.SSLContext:
        """The context of the administrator, by the files as they are now."""
        paths = [self._folder / "ca.pem", self._folder / f"user-{ADMIN}.pem"]
        stamps = tuple(path.stat().st_ino for path in paths)
        if stamps not in self._clients:
            context = client_context(*map(str, paths))
            # The harness reaches nodes by addresses that a run makes up.
            context.check_hostname = False
            self._clients = {stamps: context}
        return self._clients[stamps]


async def _under_tls(
    stream: trio.SocketStream, context: ssl.SSLContext, *, is_server: bool
) -> trio.abc.Stream:
    encrypted = trio.SSLStream(stream, context, server_side=is_server, https_compatible=True)
    await encrypted.do_handshake()
    return encrypted
