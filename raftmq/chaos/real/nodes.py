"""The processes of a run: a cluster of `raftmq.testing` on a network that can fail.

Behind a proxy each node listens on a private port, and the proxy listens on the node's public port;
in namespaces each node has an address of its own, and one port. A node's data folder may lie on the
overlay, and the node's environment names its file of orders (`fault_injection`).

    <folder>/disks/node-1/      data, on the overlay if there is one
    <folder>/node-1.toml, node-1.log, node-1.orders

Invariants:
- Connections to a node whose process was ended here are refused.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from raftmq.chaos.real.disk.disks import Disks
from raftmq.chaos.real.network.protocol import Network
from raftmq.chaos.real.network.trust import Trust
from raftmq.testing import Cluster, Settings, free_ports

from .ask import ask_status
from .fault_injection import ORDERS_VARIABLE, Orders, holds_file, write_orders

SETTINGS: Settings = {
    "raft": {"tick_ms": 50},
    "log": {"segment_bytes": 64 * 1024, "cache_bytes": 1024 * 1024, "reserve_bytes": 1024 * 1024},
    "limits": {
        "connections_max": 500,
        "connection_bytes_max": 4 * 1024 * 1024,
        "requests_bytes_max": 32 * 1024 * 1024,
    },
}
"""Small segments, so that segment ends, snapshots and indexes are frequent; a short tick; limits
that strangers reach."""


class Nodes(Cluster):
    """The nodes of a run, numbered from 1."""

    def __init__(
        self, folder: Path, count: int, *, network: Network, disks: Disks, is_secure: bool = False
    ) -> None:
        self.network = network
        """The network between the nodes."""
        self.disks = disks
        """The disks under the data folders."""
        self._public: dict[int, int] = {}
        self._orders: dict[int, Orders] = {}
        super().__init__(folder, count, SETTINGS, is_secure=is_secure)
        if self.certs is not None:
            network.trust = Trust(self.certs)
        for node in self.nodes:
            self._route(node)

    def data(self, node: int) -> Path:
        """A node's data folder."""
        return self.disks.folder / f"node-{node}"

    def public_port(self, node: int) -> int:
        """The port that clients and other nodes connect to."""
        if not self.network.is_proxy:
            return self.private_port(node)
        if node not in self._public:
            taken = {*self._public.values(), *map(self.private_port, self._nodes)}
            self._public[node] = next(port for port in free_ports(8) if port not in taken)
        return self._public[node]

    def host(self, node: int) -> str:
        """A node's address."""
        return self.network.host(node)

    def place(self, node: int) -> AbstractContextManager[None]:
        """A context in which a node's process is started: the node's namespace, if it has one."""
        return self.network.place(node)

    def private_port(self, node: int) -> int:
        """The port that a node listens on."""
        return self._nodes[node].port

    def environment(self, node: int) -> dict[str, str] | None:
        """Our environment, and the path of the node's orders."""
        return {**os.environ, ORDERS_VARIABLE: str(self._orders_path(node))}

    def orders(self, node: int) -> Orders:
        """The current orders of a node."""
        return self._orders.get(node, Orders())

    def holds_path(self, node: int) -> Path:
        """The file in which a node's process writes its loop's longest hold."""
        return holds_file(self._orders_path(node))

    def order(self, node: int, **changes: Any) -> None:
        """Change fields of a node's orders; a later process of the node obeys the orders too."""
        self._orders[node] = msgspec.structs.replace(self.orders(node), **changes)
        write_orders(self._orders_path(node), self._orders[node])

    def add(self, node: int) -> None:
        """Prepare a node that joins."""
        super().add(node)
        self._route(node)

    async def up(self, node: int) -> None:
        """Start a node that is down, and open it to connections. Cancelling leaves it half up."""
        self.start(node)
        await self.disks.work_for(node, self.pid(node))
        await self.network.open(node)

    def kill(self, node: int) -> None:
        """End a node at once; connections to it are refused."""
        super().kill(node)
        self.network.close(node)

    def resume_quietly(self, node: int) -> None:
        """Resume a node's process if the process is paused."""
        if self.pid(node) and not self.is_running(node):
            self.resume(node)

    async def status(self, node: int) -> dict[str, Any] | None:
        """A node's status, asked from an address that no rule covers; None: no answer in time."""
        if not self.is_running(node):
            return None
        own = self.network.observer
        address = self.host(node), self.private_port(node)
        return await ask_status(*address, own=own, trust=self.network.trust)

    def last_words(self, node: int, *, lines: int = 3) -> str:
        """The last lines of a node's log: the reason why it ended, or what it waits for."""
        return "\n".join(self.log(node).splitlines()[-lines:])

    def _route(self, node: int) -> None:
        port = self.public_port(node)
        self.network.add(node, public=port, private=self.private_port(node))

    def _orders_path(self, node: int) -> Path:
        return self.folder / f"node-{node}.orders"
