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
from typing import TYPE_CHECKING, Any, NamedTuple

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
from raftmq.wire import directory as wire
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import FrameKind

from .leases import Lessor, not_here
from .rates import TopicRates

if TYPE_CHECKING:
    from raftmq.directory.directory import Directory

_NODE, _CLIENT, _LEASE = "node", "client ", "lease "
"""Keys of rows, or their beginnings."""


class _Told(NamedTuple):
    """What a client told on a connection."""

    doing: wire.Doing
    since_ms: int


class Presence(Service):
    """The directory on one node."""

    def __init__(self, node: Host, reader: Worker) -> None:
        self._node = node
        self._reader = reader
        self._told: dict[Connection, _Told] = {}
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
        before = self._told.get(connection)
        since = before.since_ms if before is not None else self._node.now_ms()
        self._told[connection] = _Told(doing, since)

    def closed(self, connection: Connection) -> None:
        """Forget what was told on a connection, and release its leases."""
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
        self._lessor.begin(directory.leases)
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
        names = {topic.id: topic.name for topic in node.catalog.topics.values()}
        rates = {names[t]: rate for t, rate in self._rates.largest().items() if t in names}
        yield _NODE, [SOFTWARE, node.started_ms, node.load.greeted, rates]
        for name, connection in islice(self._lessor.held(), wire.LEASES_TOLD):
            yield f"{_LEASE}{name}", connection.user or connection.address
        for connection, told in self._told.items():
            doing, hello = told.doing, connection.hello
            yield (
                f"{_CLIENT}{doing.client}",
                [
                    doing.name,
                    hello.software if hello is not None else "",
                    connection.user,
                    connection.address,
                    told.since_ms,
                    doing.version,
                    [[use.kind, use.topic, use.group] for use in doing.uses],
                    [[each.node, each.health] for each in doing.avoided],
                ],
            )

    # Requests

    def _clients(self, request: wire.FindClients, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return not_here(self._node)
        sees = (
            self._node.gate.sees(asked.connection, Resource.TOPIC),
            self._node.gate.sees(asked.connection, Resource.GROUP),
        )
        entries = _by_client(directory, request.after)
        views, last = first_page(
            ((client, _client_view(client, entries[client], *sees)) for client in sorted(entries)),
            lambda view: len(pack(view)),
        )
        whole_ms = int(directory.whole_seconds * 1000)
        return wire.FoundClients(views, is_cut=last is not None, whole_ms=whole_ms)

    def _nodes(self, _request: wire.FindDirectoryNodes, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return not_here(self._node)
        sees = self._node.gate.sees(asked.connection, Resource.TOPIC)
        told: dict[int, Any] = {}
        leases: list[wire.LeaseView] = []
        for member, key, value in directory.rows():
            if key == _NODE:
                told[member] = value
            elif key.startswith(_LEASE):
                leases.append(wire.LeaseView(key.removeprefix(_LEASE), member, value))
        views = []
        for member in directory.members:
            software, started_ms, clients, rates = told.get(member, ("", 0, 0, {}))
            shown = {topic: rate for topic, rate in rates.items() if sees(topic)}
            is_present = directory.is_present(member)
            view = (member, is_present, software, started_ms, clients, shown)
            views.append(wire.DirectoryNode(*view))
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


def _by_client(directory: "Directory", after: str) -> dict[str, list[tuple[int, list[Any]]]]:
    """Client → the rows about it, and the nodes that told them."""
    found: dict[str, list[tuple[int, list[Any]]]] = {}
    for member, key, value in directory.rows():
        client = key.removeprefix(_CLIENT)
        if key.startswith(_CLIENT) and client > after:
            found.setdefault(client, []).append((member, value))
    # A client that has closed its producers and consumers says so with no uses.
    return {client: rows for client, rows in found.items() if max(rows, key=_version)[1][6]}


def _version(row: tuple[int, list[Any]]) -> int:
    return int(row[1][5])


def _client_view(
    client: str,
    rows: list[tuple[int, list[Any]]],
    sees_topic: Callable[[str], bool],
    sees_group: Callable[[str], bool],
) -> wire.ClientView:
    connections = [wire.ConnectionView(member, row[3], row[4]) for member, row in sorted(rows)]
    _, newest = max(rows, key=_version)
    name, software, user, _, _, _, uses, avoided = newest
    shown = [
        wire.Use(kind, topic, group)
        for kind, topic, group in uses
        if sees_topic(topic) and (not group or sees_group(group))
    ]
    health = [wire.AvoidedNode(*each) for each in avoided]
    return wire.ClientView(client, name, software, user, connections, shown, health)
