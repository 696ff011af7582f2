"""A real cluster for tests: processes on loopback that a test may kill, pause and start again.

    async with raftmq.testing.cluster() as nodes:
        async with raftmq.connect(nodes.url) as mq:
            await mq.admin.create_topic("orders")
            nodes.kill(await nodes.leader(1))

Each node is `python -m raftmq serve` with a data folder of its own, and no part is simulated: a
test sees what a deployment would see. The module runs on trio and on asyncio.

| call | the node |
|---|---|
| `kill` | ends at once (SIGKILL), as in a crash of the process |
| `stop` | is asked to end (SIGTERM), and hands over what it leads |
| `pause`, `resume` | does not run for a while (SIGSTOP, SIGCONT), as in a long stall |
| `start`, `restart` | goes on with its folder, on the same port |

`in_process` runs the nodes as threads of the test's own process instead (`raftmq.inprocess`).

Invariants:
- No node outlives the block, nor the process that opened the block, even if that process is killed.
- A node keeps its port for the whole block. Ports lie below those that the system gives to outgoing
  connections, or a connection could take the port of a node while it is down.
- No node is restarted by itself.

Left out: faults of network, disk and clock: see `raftmq.chaos`.
"""

import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from raftmq.broker.local_nodes import node_settings, start_node, toml_text
from raftmq.inprocess.leaders import are_led, wait_leader

from .client import connect
from .errors import RaftmqError, Unavailable
from .inprocess import InProcessCluster, in_process
from .tls.local_cluster import certify, cluster_url, secure_settings

__all__ = ["Cluster", "InProcessCluster", "cluster", "in_process"]

HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_000
PORTS_OF_A_PROCESS = 300
_turns = itertools.count(secrets.randbelow(PORTS_OF_A_PROCESS))
LOOK_SECONDS = 0.05
STATUS_SECONDS_MAX = 2.0

Settings = Mapping[str, Mapping[str, int | str]]
"""Tables of a node's settings file: `{"raft": {"tick_ms": 20}}`."""


@dataclass(slots=True)
class _Node:
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    is_paused: bool = False


class Cluster:
    """A cluster of processes. Made by `cluster`. Nodes are numbered from 1."""

    folder: Path
    """The cluster's files: of node 1 `node-1/` (data), `node-1.toml` (settings), `node-1.log`."""

    def __init__(
        self, folder: Path, count: int, settings: Settings, *, is_secure: bool = False
    ) -> None:
        self.folder = folder
        self.certs: Path | None = folder / "certs" if is_secure else None
        """The folder of the cluster's certificates (`raftmq.tls.authority`); None: connections are
        plain."""
        self._nodes = {node: _Node(port) for node, port in enumerate(free_ports(count), 1)}
        self.named: dict[int, frozenset[int]] = {}
        """By node: the nodes that its settings name; a founder's settings name the founder, too."""
        self._name = f"testing-{secrets.token_hex(4)}"
        self._settings = settings
        self._founders = tuple(self._nodes)
        # A node dies with the thread that started it, so that none outlives this process. The
        # caller's thread may end before the cluster does, so a thread of our own starts them.
        self._starter = ThreadPoolExecutor(1, "raftmq-testing")
        for node in self._founders:
            self._configure(node, "peers", self._founders)

    @property
    def nodes(self) -> list[int]:
        """All nodes, also those that are down."""
        return list(self._nodes)

    @property
    def url(self) -> str:
        """The cluster's URL, for `raftmq.connect`."""
        return self.url_of(self._nodes)

    def url_of(self, nodes: Iterable[int]) -> str:
        """The URL of some nodes."""
        return cluster_url([self.address(node) for node in nodes], self.certs)

    def address(self, node: int) -> str:
        """`host:port` of a node."""
        return f"{self.host(node)}:{self.public_port(node)}"

    def host(self, node: int) -> str:
        """The host on which a node listens."""
        return HOST

    def place(self, node: int) -> AbstractContextManager[None]:
        """The context in which a node's process is started, entered in the starting thread."""
        return nullcontext()

    def public_port(self, node: int) -> int:
        """The port at which others reach a node: its own, unless a proxy stands in between."""
        return self._nodes[node].port

    def environment(self, node: int) -> dict[str, str] | None:
        """The environment variables of a node's process; None: those of this process."""
        return None

    def data(self, node: int) -> Path:
        """A node's data folder."""
        return self.folder / f"node-{node}"

    def config(self, node: int) -> Path:
        """A node's settings file."""
        return self.folder / f"node-{node}.toml"

    def log(self, node: int) -> str:
        """The text that a node has written to stderr, over all its starts."""
        return self._log_path(node).read_text(errors="replace")

    def pid(self, node: int) -> int:
        """The id of a node's process; 0: the node is down."""
        process = self._nodes[node].process
        return process.pid if process is not None and process.poll() is None else 0

    def exit_status(self, node: int) -> int | None:
        """A process's exit status, negative after a signal; None: it runs, or never ran."""
        process = self._nodes[node].process
        return None if process is None else process.poll()

    def is_running(self, node: int) -> bool:
        """True if the node's process exists and is not paused."""
        return self.pid(node) != 0 and not self._nodes[node].is_paused

    def add(self, node: int) -> None:
        """Prepare a node that joins: start it, and tell the cluster by `admin.add_node`."""
        assert node not in self._nodes, f"there is a node {node} already"
        others = self.nodes
        # The port of a stopped node looks free, but the node will start on it again.
        taken = [own.port for own in self._nodes.values()]
        self._nodes[node] = _Node(next(p for p in free_ports(8) if p not in taken))
        self.join(node, others)

    def join(self, node: int, others: Sequence[int]) -> None:
        """Write into a node's settings that it joins the cluster of these nodes, for its next
        start. A node with a blank folder needs this once the nodes that its settings name are gone.
        """
        self._configure(node, "join", others)

    def start(self, node: int) -> None:
        """Start a node that is down. It does not serve yet on return; see `wait_serving`."""
        assert not self.pid(node), f"node {node} runs already"
        own = self._nodes[node]
        own.is_paused = False
        own.process = self._starter.submit(self._popen, node).result()

    def kill(self, node: int) -> None:
        """End a node at once and wait until it is gone. Does nothing to a node that is down."""
        process = self._nodes[node].process
        if process is not None:
            process.kill()
            process.wait()

    def pause(self, node: int) -> None:
        """Stop a node from running: its connections stay open, and it does not answer."""
        self._signal(node, signal.SIGSTOP)
        self._nodes[node].is_paused = True

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        self._signal(node, signal.SIGCONT)
        self._nodes[node].is_paused = False

    async def stop(self, node: int, *, timeout: float = 30.0) -> int:
        """Ask a node to end, and wait for its exit status. Cancelling leaves the node ending.

        Raises:
            TimeoutError: the node did not end in time.
        """
        self._signal(node, signal.SIGTERM)
        return await self.wait_exit(node, timeout=timeout)

    async def wait_exit(self, node: int, *, timeout: float = 30.0) -> int:
        """Wait until a node's process has ended; returns its exit status.

        Raises:
            TimeoutError: the process did not end in time.
        """
        with anyio.fail_after(timeout):
            while True:
                status = self.exit_status(node)
                if status is not None:
                    return status
                await anyio.sleep(LOOK_SECONDS)

    async def restart(self, node: int, *, timeout: float = 30.0) -> None:
        """Start a node that is down, and wait until it serves. Cancelling leaves it starting.

        Raises:
            Unavailable: the node does not serve in time, or ended; the message has the end of its
                log.
        """
        self.start(node)
        await self.wait_serving(node, timeout=timeout)

    async def wait_serving(self, node: int, *, timeout: float = 30.0) -> None:
        """Wait until a node answers clients.

        Raises:
            Unavailable: the node does not answer in time, or its process ended.
        """
        with anyio.move_on_after(timeout):
            while self.exit_status(node) is None:
                if await self.status(node) is not None:
                    return
                await anyio.sleep(LOOK_SECONDS)
        words = "\n".join(self.log(node).splitlines()[-10:])
        status = self.exit_status(node)
        how = "does not serve" if status is None else f"ended with {status}"
        raise Unavailable(f"node {node} {how}; its last words:\n{words}")

    async def wait_ready(self, *, timeout: float = 30.0) -> None:
        """Wait until each running node serves and each partition group has a leader among them.

        Raises:
            Unavailable: the time ran out; the message has the end of each node's log.
        """
        with anyio.move_on_after(timeout):
            while True:
                if await self._is_ready():
                    return
                await anyio.sleep(LOOK_SECONDS)
        logs = "\n".join(f"node {n}: {self.log(n)[-1_000:]}" for n in self._nodes)
        raise Unavailable(f"no cluster with leaders for every group in time\n{logs}")

    async def leader(self, group: int, *, timeout: float = 30.0) -> int:
        """Wait for a leader of a partition group (0: the system group), and return its node.

        The running nodes are asked; of two that believe they lead, the higher term counts.

        Raises:
            Unavailable: no node leads the group in time.
        """
        return await wait_leader(self.statuses, group, timeout=timeout, pace=LOOK_SECONDS)

    async def statuses(self) -> dict[int, dict[str, Any]]:
        """The status of each running node that answers; see `raftmq.broker.status`."""
        found: dict[int, dict[str, Any]] = {}

        async def ask(node: int) -> None:
            status = await self.status(node)
            if status is not None:
                found[node] = status

        async with anyio.create_task_group() as tasks:
            for node in filter(self.is_running, self._nodes):
                tasks.start_soon(ask, node)
        return dict(sorted(found.items()))

    async def status(self, node: int) -> dict[str, Any] | None:
        """The status of one node; None: it does not answer."""
        seconds = STATUS_SECONDS_MAX
        try:
            async with connect(self.url_of([node]), timeout=seconds, wait_refused=None) as mq:
                return await mq.admin.status(node)
        except RaftmqError:
            return None

    def close(self) -> None:
        """Kill every node. A second call does nothing."""
        for own in self._nodes.values():
            if own.process is not None:
                own.process.kill()
        for node in self._nodes:
            self.kill(node)
        self._starter.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _popen(self, node: int) -> "subprocess.Popen[bytes]":
        environment = self.environment(node)
        with self.place(node):
            return start_node(self.config(node), self._log_path(node), environment=environment)

    async def _is_ready(self) -> bool:
        ended = [node for node, own in self._nodes.items() if own.process and not self.pid(node)]
        if ended:
            words = "\n".join(self.log(ended[0]).splitlines()[-10:])
            raise Unavailable(f"node {ended[0]} ended; its last words:\n{words}")
        statuses = await self.statuses()
        is_whole = all(node in statuses for node in filter(self.is_running, self._nodes))
        return is_whole and are_led(statuses)

    def _signal(self, node: int, number: signal.Signals) -> None:
        assert self.pid(node), f"node {node} is down"
        os.kill(self.pid(node), number)

    def _log_path(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _configure(self, node: int, key: str, others: Sequence[int]) -> None:
        """Write a node's settings file, which lists the others under `peers` or `join`."""
        self.named[node] = frozenset(others)
        own = node_settings(
            node,
            (self.host(node), self._nodes[node].port),
            cluster=self._name,
            data=self.data(node),
            founders=len(self._founders),
            others={each: (self.host(each), self.public_port(each)) for each in others},
            key=key,
        )
        tables = {**self._settings, "node": {**own, **self._settings.get("node", {})}}
        if self.certs is not None:
            if not (self.certs / f"node-{node}.pem").exists():
                certify(self.certs, self._name, [node], self.host(node))
            for table, values in secure_settings(self.certs, node).items():
                tables[table] = {**values, **self._settings.get(table, {})}
        self.config(node).write_text(toml_text(tables))


@asynccontextmanager
async def cluster(
    nodes: int = 3,
    *,
    folder: Path | None = None,
    settings: Settings | None = None,
    secure: bool = False,
    timeout: float = 30.0,
) -> AsyncIterator[Cluster]:
    """`async with cluster() as nodes:` runs a new cluster, which is ready on entering.

    The cluster has as many data groups as nodes, numbered from 1. Leaving kills every node.

    Args:
        nodes: the number of nodes.
        folder: the folder of all files, which must hold no cluster yet, and is kept. None: a
            temporary folder, removed at the end.
        settings: tables that replace defaults of `raftmq serve`, the same for all nodes.
        secure: make certificates, and take connections under TLS only (`pip install
            raftmq[cert]`).
        timeout: seconds until the cluster must be ready.

    Raises:
        Unavailable: the cluster was not ready in time; the message has the ends of the nodes' logs.
        ValueError: the folder holds a cluster already.
    """
    place = folder or Path(tempfile.mkdtemp(prefix="raftmq-testing-"))
    place.mkdir(parents=True, exist_ok=True)
    if any(place.glob("node-*.toml")):
        raise ValueError(f"{place} holds a cluster already: give a folder without one")
    made = Cluster(place, nodes, settings or {}, is_secure=secure)
    try:
        for node in made.nodes:
            made.start(node)
        await made.wait_ready(timeout=timeout)
        yield made
    finally:
        made.close()
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def free_ports(number: int) -> Sequence[int]:
    """Ports on which no process listens now, below those of outgoing connections.

    A port must stay free until its node starts. So that two searches at once do not find the same
    port, each process searches a part of the range of its own, and goes on after its last search.

    Raises:
        Unavailable: fewer ports are free in this process's part.
    """
    parts = (PORT_MAX - PORT_MIN) // PORTS_OF_A_PROCESS
    first = PORT_MIN + os.getpid() % parts * PORTS_OF_A_PROCESS
    ports: list[int] = []
    for turn in itertools.islice(_turns, PORTS_OF_A_PROCESS):
        port = first + turn % PORTS_OF_A_PROCESS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == number:
            return ports
    raise Unavailable(f"fewer than {number} ports are free from {first} on: end what uses them")
