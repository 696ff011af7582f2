"""A cluster of threads for tests: starts in a fraction of a second, needs no port, runs anywhere.

    async with raftmq.testing.in_process() as nodes:
        async with nodes.connect() as mq:
            await mq.admin.create_topic("orders")
            await nodes.kill(await nodes.leader(1))

The nodes are those that `raftmq serve` runs, each on a thread and in a folder of its own, with real
files and fsyncs. The cluster runs on trio and on asyncio. The nodes share one interpreter, so the
cluster serves tests of behaviour, not of speed.

| call | the node |
|---|---|
| `kill` | ends at once, as in a crash |
| `stop` | hands over what it leads, and ends |
| `start`, `restart` | goes on with its folder |

Invariants:
- No thread outlives the block.
- No node is restarted by itself.

Left out: nodes that are paused, and faults of network, disk and clock: `raftmq.testing.cluster`
has the first, `raftmq.chaos` the others.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from raftmq.broker.local_nodes import node_settings
from raftmq.broker.settings import Settings
from raftmq.client.client import Client
from raftmq.client.connecting import connect
from raftmq.errors import RaftmqError, Unavailable

from .leaders import are_led, wait_leader
from .node_thread import NodeThread
from .wiring import ClientWorld, NodeWorld, Switchboard

HOST = "in-process"
LOOK_SECONDS = 0.02
STATUS_SECONDS_MAX = 2.0

Tables = Mapping[str, Mapping[str, int | str]]
"""Tables of settings: `{"raft": {"tick_ms": 20}}`."""


class InProcessCluster:
    """A cluster of threads. Made by `in_process`. Nodes are numbered from 1."""

    folder: Path
    """The folder of all files: `node-1/` and so on."""

    def __init__(self, folder: Path, count: int, settings: Tables) -> None:
        self.folder = folder
        self.nodes = list(range(1, count + 1))
        """All nodes, also those that are down."""
        self._settings = settings
        self._switchboard = Switchboard()
        self._threads: dict[int, NodeThread] = {}

    def connect(self, *, timeout: float = 30.0) -> AbstractAsyncContextManager[Client]:
        """As `raftmq.connect`; no URL leads here."""
        url = ",".join(f"{HOST}:{node}" for node in self.nodes)
        world = ClientWorld(self._switchboard)
        return connect(f"raftmq://{url}", timeout=timeout, wait_refused=None, world=world)

    def data(self, node: int) -> Path:
        """A node's data folder."""
        return self.folder / f"node-{node}"

    def is_running(self, node: int) -> bool:
        """True if the node's thread lives."""
        return node in self._threads and self._threads[node].is_running

    def start(self, node: int) -> None:
        """Start a node that is down. It does not serve yet on return."""
        assert not self.is_running(node), f"node {node} runs already"
        thread = NodeThread(self._settings_of(node), NodeWorld(self._switchboard))
        self._threads[node] = thread
        thread.start()

    async def kill(self, node: int) -> None:
        """End a node at once. Does nothing to a node that is down."""
        await self._end(node, is_kind=False)

    async def stop(self, node: int) -> None:
        """Ask a node to end, and wait for it."""
        await self._end(node, is_kind=True)

    async def restart(self, node: int, *, timeout: float = 30.0) -> None:
        """Start a node that is down, and wait until it serves.

        Raises:
            Unavailable: the node does not serve in time, or ended; the message says why.
        """
        self.start(node)
        await self._wait_serving(node, timeout)

    async def wait_ready(self, *, timeout: float = 30.0) -> None:
        """Wait until each partition group has a leader among the running nodes.

        Raises:
            Unavailable: the time ran out.
        """
        with anyio.move_on_after(timeout):
            while True:
                if are_led(await self.statuses()):
                    return
                await anyio.sleep(LOOK_SECONDS)
        raise Unavailable(f"no leaders for every group within {timeout:g} s")

    async def leader(self, group: int, *, timeout: float = 30.0) -> int:
        """Wait for a leader of a partition group (0: the system group), and return its node.

        Raises:
            Unavailable: no node leads it in time.
        """
        return await wait_leader(self.statuses, group, timeout=timeout, pace=LOOK_SECONDS)

    async def statuses(self) -> dict[int, dict[str, Any]]:
        """The status of each running node that answers; see `raftmq.broker.status`."""
        found: dict[int, dict[str, Any]] = {}
        for node in filter(self.is_running, self.nodes):
            try:
                async with connect(
                    f"raftmq://{HOST}:{node}",
                    timeout=STATUS_SECONDS_MAX,
                    world=ClientWorld(self._switchboard),
                ) as mq:
                    found[node] = await mq.admin.status(node)
            except RaftmqError:
                continue
        return found

    async def close(self) -> None:
        """Kill every node. A second call does nothing."""
        for node in self.nodes:
            await self.kill(node)

    async def _end(self, node: int, *, is_kind: bool) -> None:
        thread = self._threads.pop(node, None)
        if thread is None:
            return
        if is_kind:
            thread.stop()
        else:
            thread.kill()
        with anyio.CancelScope(shield=True):
            await thread.wait_ended()

    async def _wait_serving(self, node: int, timeout: float) -> None:
        try:
            with anyio.move_on_after(timeout):
                await self._threads[node].wait_serving()
                return
        except (RaftmqError, OSError) as error:
            raise Unavailable(f"node {node} ended: {error}") from error
        raise Unavailable(f"node {node} does not serve within {timeout:g} s")

    def _settings_of(self, node: int) -> Settings:
        own = node_settings(
            node,
            (HOST, node),
            cluster="in-process",
            data=self.data(node),
            founders=len(self.nodes),
            others={each: (HOST, each) for each in self.nodes},
        )
        # One process has no use for a directory; tests may want one.
        tables = {"directory": {"is_on": False}, **self._settings}
        tables["node"] = {**own, **self._settings.get("node", {})}
        return msgspec.convert(tables, Settings).validate()


@asynccontextmanager
async def in_process(
    nodes: int = 3,
    *,
    folder: Path | None = None,
    settings: Tables | None = None,
    timeout: float = 30.0,
) -> AsyncIterator[InProcessCluster]:
    """`async with in_process() as nodes:` runs a cluster of threads, which is ready on entering.

    It has as many data groups as nodes, numbered from 1. Leaving kills every node.

    Args:
        nodes: the number of nodes.
        folder: the folder of all files, which is kept; a cluster of as many nodes that is in it
            goes on. None: a temporary folder, removed at the end.
        settings: tables that replace defaults of `raftmq serve`, the same for all nodes.
        timeout: seconds until the cluster must be ready.

    Raises:
        Unavailable: the cluster was not ready in time.
        ValueError: the settings ask for TLS, which has no use within a process.
    """
    if settings and "tls" in settings:
        raise ValueError("nodes within a process have no TLS: leave the table `tls` out")
    place = folder or Path(tempfile.mkdtemp(prefix="raftmq-testing-"))
    made = InProcessCluster(place, nodes, settings or {})
    try:
        for node in made.nodes:
            made.start(node)
        await made.wait_ready(timeout=timeout)
        yield made
    finally:
        await made.close()
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
