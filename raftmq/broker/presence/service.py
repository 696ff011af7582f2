"""This node's member of the directory, and the answers about what the directory holds.

    this node                 ──> rows: node, client ID (of each that told what it does), lease NAME
    CLIENTS, DIRECTORY_NODES  <── the rows of all nodes, merged

A client tells what it does with each request for settings (`SETTINGS`), and asks another node each
time: so each of its connections soon has a row, and of several the newest version counts.

Invariants:
- No request but CLIENTS, DIRECTORY_NODES and LEASE needs the directory: without it all else goes
  on.
- pysyncobj is loaded beside the event loop.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import trio

from raftmq.access.rules import Resource
from raftmq.broker.host import SOFTWARE, Host
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import route
from raftmq.broker.serve.pages import first_page
from raftmq.broker.service import Service
from raftmq.broker.world import Worker, run_on
from raftmq.machine.names import why_no_name
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire import directory as wire
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import FrameKind

from .leases import Lessor, not_here
from .rates import TopicRates

if TYPE_CHECKING:
    from raftmq.directory.directory import Directory

R = TypeVar("R", bound=msgspec.Struct)

SOFTWARE_CHARACTERS_MAX = 100
"""Characters kept of the software that a client names."""
_NODE, _CLIENT, _LEASE = "node", "client ", "lease "
"""Keys of rows, or their beginnings."""


class NodeRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a node; see `wire.directory.DirectoryNode`."""

    software: str = ""
    started_ms: int = 0
    connections: int = 0
    rates: dict[str, float] = {}


class ClientRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a client at one node; see `wire.directory.ClientView` and `Doing`."""

    name: str
    software: str
    user: str
    address: str
    since_ms: int
    version: int
    uses: list[wire.Use]
    avoided: list[wire.AvoidedNode]


class _Heard(NamedTuple):
    """The newest word of a client on one connection."""

    client: str
    since_ms: int
    row: Any
    """Its row as plain values: made once, as thousands of clients have one."""


class Presence(Service):
    """The directory on one node."""

    def __init__(self, node: Host, reader: Worker) -> None:
        self._node = node
        self._reader = reader
        self._told: dict[Connection, _Heard] = {}
        self._rates = TopicRates()
        self.directory: Directory | None = None
        """This node's member; None: there is none, or not yet."""
        self._lessor = Lessor(node)
        self.routes = {
            FrameKind.DIRECTORY: route(wire.DirectoryMessage, self._receive),
            FrameKind.CLIENTS: route(wire.FindClients, self._clients),
            FrameKind.DIRECTORY_NODES: route(wire.FindDirectoryNodes, self._nodes),
            FrameKind.LEASE: route(wire.AskLease, self._lessor.answer),
        }
        if node.settings.directory.is_on:
            node.start_soon(self._run)

    # Calls of the node

    def heard(self, connection: Connection, doing: wire.Doing) -> None:
        """A client told what it does."""
        if not _has_names(doing):
            # A client can say anything of itself, and all nodes would keep it.
            return
        before, hello = self._told.get(connection), connection.hello
        since_ms = before.since_ms if before is not None else self._node.now_ms()
        software = hello.software[:SOFTWARE_CHARACTERS_MAX] if hello is not None else ""
        who = (doing.name, software, connection.user, connection.address, since_ms)
        row = ClientRow(*who, doing.version, doing.uses, doing.avoided)
        self._told[connection] = _Heard(doing.client, since_ms, msgspec.to_builtins(row))

    def closed(self, connection: Connection) -> None:
        """Forget what was told on a connection, and the leases that it waits for."""
        self._told.pop(connection, None)
        self._lessor.closed(connection)

    # The member

    async def _run(self) -> None:
        module = await run_on(self._reader, partial(import_module, "raftmq.directory.directory"))
        node = self._node
        self.directory = directory = module.Directory(
            node.id,
            boot=max(1, node.now_ms()),
            now=trio.current_time,
            wall=lambda: node.now_ms() / 1000,
            send=self._send,
            is_connected=self._is_connected,
        )
        self._lessor.begin(directory)
        publish_due = 0.0
        try:
            while True:
                directory.follow(list(node.catalog.nodes))
                if trio.current_time() >= publish_due:
                    publish_due = trio.current_time() + module.BEAT_SECONDS
                    self._rates.look(node.groups.values(), trio.current_time())
                    directory.publish(dict(self._rows()))
                directory.tick()
                self._lessor.look()
                await trio.sleep(module.TICK_SECONDS)
        finally:
            directory.close()

    def _send(self, to: int, message: wire.DirectoryMessage) -> bool:
        link = self._node.links.get(to)
        if link is None:
            return False
        return link.send(encode_frame(FrameKind.DIRECTORY, 0, pack(message)))

    def _is_connected(self, member: int) -> bool:
        link = self._node.links.get(member)
        return link is not None and link.is_connected

    def _receive(self, message: wire.DirectoryMessage, asked: OpenRequest) -> Answer:
        if self.directory is not None:
            self.directory.receive(asked.connection.from_node, message)
        return LATER

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """The rows of this node."""
        node = self._node
        rates = {}
        for number, rate in self._rates.largest().items():
            topic = node.catalog.topic_of(number << QUEUE_BITS)
            if topic is not None:
                rates[topic.name] = rate
        row = NodeRow(SOFTWARE, node.started_ms, node.load.greeted, rates)
        yield _NODE, msgspec.to_builtins(row)
        for name, connection in islice(self._lessor.held(), wire.LEASES_TOLD):
            yield f"{_LEASE}{name}", connection.user or connection.address
        for heard in self._told.values():
            yield f"{_CLIENT}{heard.client}", heard.row

    # Requests

    def _clients(self, request: wire.FindClients, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return not_here(self._node)
        sees = (
            self._node.gate.sees(asked.connection, Resource.TOPIC),
            self._node.gate.sees(asked.connection, Resource.GROUP),
        )
        found = rows_by_client(directory, request.after)
        entries = ((client, client_view(client, found[client], *sees)) for client in sorted(found))
        views, last = first_page(entries, lambda view: len(pack(view)))
        whole_ms = int(directory.whole_seconds * 1000)
        return wire.FoundClients(views, is_cut=last is not None, whole_ms=whole_ms)

    def _nodes(self, _request: wire.FindDirectoryNodes, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return not_here(self._node)
        sees = self._node.gate.sees(asked.connection, Resource.TOPIC)
        told: dict[int, NodeRow] = {}
        leases: list[wire.LeaseView] = []
        for member, key, value in directory.rows():
            if key == _NODE and (row := _read(value, NodeRow)) is not None:
                told[member] = row
            elif key.startswith(_LEASE) and isinstance(value, str):
                leases.append(wire.LeaseView(key.removeprefix(_LEASE), member, value))
        views = []
        for member in directory.members:
            row = told.get(member, NodeRow())
            shown = {topic: rate for topic, rate in row.rates.items() if sees(topic)}
            told_of = (row.software, row.started_ms, row.connections, shown)
            views.append(wire.DirectoryNode(member, directory.is_present(member), *told_of))
        whole_ms = int(directory.whole_seconds * 1000)
        return wire.FoundDirectoryNodes(
            views, directory.leader, whole_ms, directory.starts, sorted(leases, key=_name)
        )


def _has_names(doing: wire.Doing) -> bool:
    """Whether all that should be a name can be one."""
    names = [doing.client, *filter(None, [doing.name])]
    for use in doing.uses:
        names += [use.kind, use.topic, *filter(None, [use.group])]
    return not any(why_no_name(name, "client") for name in names)


def _name(lease: wire.LeaseView) -> str:
    return lease.name


def _read(value: Any, kind: type[R]) -> R | None:
    """A row as this kind; None: no node of this software puts such a row."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def rows_by_client(directory: "Directory", after: str) -> dict[str, list[tuple[int, Any]]]:
    """Client → the rows about it, each with the node that tells it. They are read when a page is
    made: there may be many thousands."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for member, key, value in directory.rows():
        client = key.removeprefix(_CLIENT)
        if key.startswith(_CLIENT) and client > after:
            found.setdefault(client, []).append((member, value))
    return found


def client_view(
    client: str,
    rows: list[tuple[int, Any]],
    sees_topic: Callable[[str], bool],
    sees_group: Callable[[str], bool],
) -> wire.ClientView | None:
    """A client for one who sees these topics and groups; None: it does nothing any longer."""
    told = {node: row for node, value in rows if (row := _read(value, ClientRow)) is not None}
    newest = max(told.values(), key=_version, default=None)
    # A client that has closed its producers and consumers says so with no uses.
    if newest is None or not newest.uses:
        return None
    connections = [
        wire.ConnectionView(node, row.address, row.since_ms) for node, row in sorted(told.items())
    ]
    uses = [
        use
        for use in newest.uses
        if sees_topic(use.topic) and (not use.group or sees_group(use.group))
    ]
    who = (client, newest.name, newest.software, newest.user)
    return wire.ClientView(*who, connections, uses, newest.avoided)


def _version(row: ClientRow) -> int:
    return row.version
