"""A local cluster's folder: `raftmq up` makes it and finds it again, `raftmq down` reads it.

| in the folder | what |
|---|---|
| `node-1.toml` ... | the settings of each node, written once; a person may edit them |
| `certs/` | with `--secure`: an authority, and certificates of the nodes and of the user `admin` |
| `node-1/` ... | each node's data, unless its settings name another folder |
| `node-1.log` ... | what each node wrote to stderr |
| `up.json` | the running nodes, as `State`; rewritten whenever one is started |
| `up.lock` | locked by the supervisor as long as it runs |

Invariants:
- `up.json` is believed only while the lock is held: the process id of a dead supervisor may belong
  to another process by now.
- A folder found in the temporary folder is believed only if it is this user's.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.broker.local_nodes import node_settings, toml_text
from raftmq.cli.exits import Failure
from raftmq.tls.local_cluster import certify, cluster_url, secure_settings

if TYPE_CHECKING:
    from raftmq.client import Client

PREFIX = f"raftmq-up-{os.getuid()}-"
"""Begins the name of a temporary cluster's folder."""

HOST = "127.0.0.1"

PORT = 7400
"""The first node's port by default."""

ASK_SECONDS_MAX = 1.0
"""Seconds for each request to a node that listens at a wanted port."""


@dataclass(slots=True)
class RunningNode:
    """One node of a running local cluster."""

    id: int
    address: str
    """`host:port` of the native protocol."""
    pid: int
    """The node's process id; 0: it is down and will be restarted."""
    data: str
    role: str
    """`starting`, `leads group ...`, `follows`, or `down`."""


@dataclass(slots=True)
class State:
    """The contents of `up.json`."""

    pid: int
    """The supervisor's process id."""
    is_ready: bool = False
    """True once every node has served."""
    nodes: list[RunningNode] = field(default_factory=list)
    """By number."""
    certs: str = ""
    """The folder of the certificates; empty: connections are plain."""

    @property
    def url(self) -> str:
        """The value for `RAFTMQ_URL`."""
        return cluster_url([node.address for node in self.nodes], self.certs or None)


class Playground:
    """The folder of one local cluster."""

    def __init__(self, folder: Path, *, is_temporary: bool) -> None:
        self.folder = folder
        """The folder of all files."""
        self.is_temporary = is_temporary
        """True if the folder is removed when the cluster stops."""

    @property
    def down(self) -> str:
        """The command that stops the cluster."""
        return f"raftmq down --data {self.folder}"

    def config(self, node: int) -> Path:
        """The node's settings file."""
        return self.folder / f"node-{node}.toml"

    def data(self, node: int) -> Path:
        """The node's data folder, as its settings say."""
        with suppress(FileNotFoundError):
            match = re.search(r"^data = (\".*\")$", self.config(node).read_text(), re.MULTILINE)
            if match:
                return Path(json.loads(match[1]))
        return self._own_data(node)

    def _own_data(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def check_data(self) -> None:
        """See that the nodes' data is where a person who looks into the folder would think.

        Raises:
            Failure: the folder was moved or copied. Its nodes would write to the folder before.
        """
        for node, _ in enumerate(self.ports(), 1):
            told, own = self.data(node), self._own_data(node)
            if told != own and own.exists():
                raise Failure(
                    f"{self.config(node)} says that the data is in {told}, and {own} is there, "
                    "too: the folder was moved or copied",
                    fix=f"`sed -i 's|{told.parent}/|{self.folder}/|' {self.folder}/node-*.toml` "
                    f"takes the data in {self.folder}; if the settings are right, move {own} away",
                )

    @property
    def certs(self) -> str:
        """The folder of the certificates; empty: connections are plain."""
        folder = self.folder / "certs"
        return str(folder) if folder.exists() else ""

    def log(self, node: int) -> Path:
        """The file with the node's stderr."""
        return self.folder / f"node-{node}.log"

    def ports(self) -> list[int]:
        """The ports of the nodes in the folder, in the order of the nodes; empty: no cluster."""
        ports: dict[int, int] = {}
        for path in self.folder.glob("node-*.toml"):
            match = re.search(r"^port = (\d+)$", path.read_text(), re.MULTILINE)
            if match:
                ports[int(path.stem.removeprefix("node-"))] = int(match[1])
        return [port for _, port in sorted(ports.items())]

    def found(self, ports: Sequence[int], *, is_secure: bool = False) -> None:
        """Write the settings of a new cluster's nodes, and their certificates if they use TLS."""
        cluster = f"up-{secrets.token_hex(4)}"
        addresses = {node: (HOST, port) for node, port in enumerate(ports, 1)}
        certs = self.folder / "certs"
        if is_secure:
            certify(certs, cluster, addresses, HOST, "localhost")
        for node, address in addresses.items():
            own = node_settings(
                node,
                address,
                cluster=cluster,
                data=self._own_data(node),
                founders=len(ports),
                others=addresses,
            )
            tables = {"node": own, **(secure_settings(certs, node) if is_secure else {})}
            heading = (
                "# Written by `raftmq up`; docs/reference/settings.md explains all settings.\n"
            )
            self.config(node).write_text(heading + toml_text(tables))

    def lock(self) -> int | None:
        """Take the folder's lock: a descriptor to keep open; None: another process holds it."""
        return self._locked(os.O_RDWR | os.O_CREAT)

    def is_running(self) -> bool:
        """True while a supervisor holds the lock."""
        with suppress(FileNotFoundError):
            descriptor = self._locked(os.O_RDWR)
            if descriptor is None:
                return True
            os.close(descriptor)
        return False

    def _locked(self, flags: int) -> int | None:
        descriptor = os.open(self.folder / "up.lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def write_state(self, state: State) -> None:
        """Replace `up.json`."""
        # Renamed into place, so that a reader never sees half a file.
        new = self.folder / "up.json.new"
        new.write_text(json.dumps(asdict(state), indent=2) + "\n")
        new.rename(self.folder / "up.json")

    def read_state(self) -> State | None:
        """The last state of the running supervisor; None: none written yet, or none runs."""
        with suppress(FileNotFoundError):
            if self.is_running():
                plain = json.loads((self.folder / "up.json").read_text())
                nodes = [RunningNode(**node) for node in plain.pop("nodes")]
                return State(**plain, nodes=nodes)
        return None


def temporary() -> Playground:
    """A new folder in the system's temporary folder."""
    return Playground(Path(tempfile.mkdtemp(prefix=PREFIX)), is_temporary=True)


def running() -> list[Playground]:
    """This user's running clusters in temporary folders."""
    return [
        Playground(path, is_temporary=True)
        for path in sorted(Path(tempfile.gettempdir()).glob(PREFIX + "*"))
        if path.stat().st_uid == os.getuid() and Playground(path, is_temporary=True).is_running()
    ]


def listening(port: int) -> Playground | None:
    """The running cluster of `up` of which a node listens at the port, by the node's own word.

    None: another process listens there, or the node does not answer within a second or two.
    """
    from raftmq.cli.session import Session

    async def folder_of(mq: "Client") -> Path | None:
        for node in (await mq.admin.cluster(is_latest=False)).nodes:
            if node.port == port:
                return Path((await mq.admin.status(node.id))["data"]).parent
        return None

    try:
        folder = Session(f"raftmq://{HOST}:{port}", ASK_SECONDS_MAX).run(folder_of)
    except Failure:
        return None
    if folder is None:
        return None
    # With `--data` its folder stops a temporary cluster as well.
    playground = Playground(folder, is_temporary=False)
    return playground if playground.is_running() else None


def choose_ports(count: int, first: int, *, any_port: bool) -> list[int]:
    """`count` free ports: `first` and those after it, or any.

    Raises:
        Failure: one of them is taken.
    """
    if first + count > 65_536:
        fix = "choose a smaller --port"
        raise Failure(f"ports {first} to {first + count - 1} do not exist", fix=fix)
    wanted = [0] * count if any_port else list(range(first, first + count))
    with ExitStack() as held:
        return [_free_port(port, held) for port in wanted]


def _free_port(port: int, held: ExitStack) -> int:
    probe = held.enter_context(socket.socket())
    # As servers do: a port whose old connections are still in TIME_WAIT counts as free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
        probe.listen()
    except OSError as error:
        others = "--port P takes P and the ones after it, --any-port takes free ones"
        if error.errno != errno.EADDRINUSE:
            raise Failure(f"port {port}: {error.strerror}", fix=others) from error
        found = listening(port)
        who = f"the cluster in {found.folder}" if found else "another process"
        stop = f"`{found.down}` stops it; " if found else ""
        raise Failure(f"port {port} is taken by {who}", fix=f"{stop}{others}") from error
    chosen: int = probe.getsockname()[1]
    return chosen
