"""This node's member of the directory, and the answers about what the directory holds.

    this node            ──> rows:  node, client ID (each client that told what it does), lease NAME
    CLIENTS, RATES       <── the rows of all nodes, merged

A client tells what it does with each request for settings (`SETTINGS`), and asks another node each
time: so each of its connections soon has a row, and of several the one told last counts.

Invariants:
- No request but CLIENTS, RATES and LEASE needs the directory: without it all else goes on.
- pysyncobj is loaded beside the event loop.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from raftmq.access.rules import Resource
from raftmq.broker.host import SOFTWARE, Host
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import route
from raftmq.broker.serve.pages import first_page
from raftmq.broker.service import Service
from raftmq.broker.world import Worker
from raftmq.wire import directory as wire
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind

from .leases import Lessor
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
            FrameKind.DIRECTORY: route(wire.Directory, self._take),
            FrameKind.CLIENTS: route(wire.FindClients, self._clients),
            FrameKind.RATES: route(wire.FindRates, self._nodes),
            FrameKind.LEASE: route(wire.AskLease, self._lessor.answer),
        }
        if node.settings.directory.is_on:
            node.start_soon(self._run)

    # Calls of the node

    def heard(self, connection: Connection, doing: wire.Doing) -> None:
        """A client told what it does."""
        before = self._told.get(connection)
        since = before.since_ms if before is not None else self._node.now_ms()
        self._told[connection] = _Told(doing, since)

    def closed(self, connection: Connection) -> None:
        """Forget what was told on a connection, and release its leases."""
        self._told.pop(connection, None)
        self._lessor.closed(connection)

    # The member

    async def _run(self) -> None:
        loaded = trio.Event()
        modules: list[Any] = []

        def done(module: Any, error: BaseException | None) -> None:
            if error is not None:
                raise error
            modules.append(module)
            loaded.set()

        self._reader.submit(partial(import_module, "raftmq.directory.directory"), done)
        await loaded.wait()
        (module,) = modules
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

    def _send(self, to: int, message: wire.Directory) -> bool:
        link = self._node.links.get(to)
        if link is None:
            return False
        return link.send(encode_frame(FrameKind.DIRECTORY, 0, pack(message)))

    def _is_connected(self, member: int) -> bool:
        link = self._node.links.get(member)
        return link is not None and link.is_connected

    def _take(self, message: wire.Directory, asked: OpenRequest) -> Answer:
        if self.directory is not None:
            self.directory.take(asked.connection.from_node, message)
        return LATER

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """The rows of this node."""
        node = self._node
        names = {topic.id: topic.name for topic in node.catalog.topics.values()}
        rates = {names[t]: rate for t, rate in self._rates.largest().items() if t in names}
        yield _NODE, [SOFTWARE, node.started_ms, node.load.greeted, rates]
        for name, connection in self._lessor.held():
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
                    [[each.node, each.weight] for each in doing.avoided],
                ],
            )

    # Requests

    def _clients(self, request: wire.FindClients, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return _off(self._node)
        sees = (
            self._node.gate.sees(asked.connection, Resource.TOPIC),
            self._node.gate.sees(asked.connection, Resource.GROUP),
        )
        entries = _by_client(directory, request.after)
        views, last = first_page(
            ((client, _client_view(client, entries[client], *sees)) for client in sorted(entries)),
            lambda view: 200 + 60 * len(view.uses),
        )
        whole_ms = int(directory.whole_seconds * 1000)
        return wire.FoundClients(views, is_cut=last is not None, whole_ms=whole_ms)

    def _nodes(self, _request: wire.FindRates, asked: OpenRequest) -> Answer:
        directory = self.directory
        if directory is None:
            return _off(self._node)
        sees = self._node.gate.sees(asked.connection, Resource.TOPIC)
        told: dict[int, Any] = {}
        leases: dict[str, int] = {}
        for member, key, value in directory.rows():
            if key == _NODE:
                told[member] = value
            elif key.startswith(_LEASE):
                leases[key.removeprefix(_LEASE)] = member
        views = []
        for member in directory.members:
            software, started_ms, clients, rates = told.get(member, ("", 0, 0, {}))
            shown = {topic: rate for topic, rate in rates.items() if sees(topic)}
            is_present = directory.is_present(member)
            view = (member, is_present, software, started_ms, clients, shown)
            views.append(wire.DirectoryNode(*view))
        whole_ms = int(directory.whole_seconds * 1000)
        return wire.FoundRates(views, directory.leader, whole_ms, directory.starts, leases)


def _off(node: Host) -> ErrorReply:
    if node.settings.directory.is_on:
        return ErrorReply("unavailable", "the directory is being opened here", retry_ms=500)
    return ErrorReply("bad_argument", "the nodes keep no directory: set directory.is_on")


def _by_client(directory: "Directory", after: str) -> dict[str, list[tuple[int, list[Any]]]]:
    """Client → the rows about it, and the nodes that told them."""
    found: dict[str, list[tuple[int, list[Any]]]] = {}
    for member, key, value in directory.rows():
        client = key.removeprefix(_CLIENT)
        if key.startswith(_CLIENT) and client > after:
            found.setdefault(client, []).append((member, value))
    return found


def _client_view(
    client: str,
    rows: list[tuple[int, list[Any]]],
    sees_topic: Callable[[str], bool],
    sees_group: Callable[[str], bool],
) -> wire.ClientView:
    connections = [wire.ConnectionView(member, row[3], row[4]) for member, row in sorted(rows)]
    _, newest = max(rows, key=lambda each: each[1][5])
    name, software, user, _, _, _, uses, avoided = newest
    shown = [
        wire.Use(kind, topic, group)
        for kind, topic, group in uses
        if sees_topic(topic) and (not group or sees_group(group))
    ]
    weights = [wire.AvoidedNode(*each) for each in avoided]
    return wire.ClientView(client, name, software, user, connections, shown, weights)
