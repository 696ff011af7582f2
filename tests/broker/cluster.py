"""Three whole brokers in a made-up world, and a raw client that speaks frames to them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import msgspec
import trio

from raftmq.batch import encode
from raftmq.broker.node import Node
from raftmq.broker.settings import Limits, Log, NodeSettings, Peer, Raft, Settings
from raftmq.log.files import RealFiles
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ClusterView,
    ErrorReply,
    Fetch,
    Fetched,
    FetchFrom,
    FrameKind,
    Hello,
    Metadata,
    Produced,
    Welcome,
)
from tests.broker.made_up import MadeUpWorld, Network

S = TypeVar("S", bound=msgspec.Struct)


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(f"{reply.code}: {reply.message}")
        self.reply = reply


class RawClient:
    """One connection to one node; requests may overlap."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._parser = FrameParser(64 * 1024 * 1024)
        self._correlation = count(1)
        self._answers: dict[int, Frame] = {}
        self._came = trio.Event()

    async def read(self) -> None:
        """Receive answers until the stream ends."""
        while data := await self._stream.receive_some(65536):
            self._parser.feed(bytes(data))
            for frame in self._parser.frames():
                self._answers[frame.correlation] = frame
                came, self._came = self._came, trio.Event()
                came.set()

    async def request(self, kind: int, header: bytes = b"", body: Sequence[bytes] = ()) -> Frame:
        """Send a request and wait for its answer. Raises `Refused` for an error."""
        correlation = next(self._correlation)
        await self._stream.send_all(b"".join(encode_frame(kind, correlation, header, body)))
        while correlation not in self._answers:
            await self._came.wait()
        frame = self._answers.pop(correlation)
        if frame.kind == FrameKind.ERROR:
            raise Refused(unpack(ErrorReply, frame.header))
        assert frame.kind == kind | REPLY
        return frame

    async def ask(self, kind: int, request: msgspec.Struct, answer: type[S]) -> S:
        """The same with structs."""
        return unpack(answer, (await self.request(kind, pack(request))).header)

    async def view(self) -> ClusterView:
        """The routing table."""
        return await self.ask(FrameKind.METADATA, Metadata(), ClusterView)

    async def admin(self, *command: Any) -> Any:
        """A catalog command."""
        return (await self.ask(FrameKind.ADMIN, Admin(list(command)), AdminDone)).result

    async def produce(
        self, queue: int, bodies: list[bytes], first: int, producer: int = 1
    ) -> Produced:
        """One batch."""
        batch = encode(bodies).to_bytes(queue=queue, producer=producer, first_sequence=first)
        return unpack(Produced, (await self.request(FrameKind.PRODUCE, b"", [batch])).header)

    async def fetch(self, queue: int, offset: int, wait_ms: int = 0) -> tuple[Fetched, bytes]:
        """One queue, as it comes."""
        request = Fetch([FetchFrom(queue, offset)], wait_ms, 1 << 20)
        frame = await self.request(FrameKind.FETCH, pack(request))
        return unpack(Fetched, frame.header), frame.body


class Cluster:
    """Nodes 1 to n of one cluster, each in a world of its own on a shared network."""

    def __init__(self, nursery: trio.Nursery, *, size: int = 3, seed: int = 0, **log: int) -> None:
        self._nursery = nursery
        self._seed = seed
        self.network = Network()
        self.peers = [Peer(n, f"node{n}", 7400) for n in range(1, size + 1)]
        self.files = {peer.id: RealFiles() for peer in self.peers}
        self.nodes: dict[int, Node] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20)
        self._starts = count()

    def settings(self, number: int) -> Settings:
        """A node's settings."""
        own = self.peers[number - 1]
        node = NodeSettings(
            number, "test", f"/tmp/x/{own.id}", own.host, own.port, peers=self.peers
        )
        return Settings(node, Raft(tick_ms=50), self._log, Limits()).validate()

    async def start(self, *numbers: int) -> None:
        """Start nodes, all if none is named, and wait until they serve."""
        chosen = numbers or tuple(peer.id for peer in self.peers)
        async with trio.open_nursery() as starting:
            for number in chosen:
                starting.start_soon(self._start, number)

    async def _start(self, number: int) -> None:
        seed = self._seed * 1000 + next(self._starts)
        world = MadeUpWorld(self.network, self.files[number], seed=seed)
        self.nodes[number] = Node(self.settings(number), world)
        await self._nursery.start(self._live, number)

    async def _live(self, number: int, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scopes[number]:
            await self.nodes[number].run(task_status=task_status)

    def kill(self, number: int) -> None:
        """Stop a node at once, as a crash of its process does."""
        self._scopes.pop(number).cancel()
        del self.nodes[number]

    @asynccontextmanager
    async def client(self, number: int) -> AsyncIterator[RawClient]:
        """A connection to a node."""
        peer = self.peers[number - 1]
        stream = await self.network.connect(peer.host, peer.port)
        client = RawClient(stream)
        async with trio.open_nursery() as nursery, stream:
            nursery.start_soon(client.read)
            hello = Hello(PROTOCOL, "", 0, "", "test")
            await client.ask(FrameKind.HELLO, hello, Welcome)
            yield client
            nursery.cancel_scope.cancel()

    def leader(self, group: int) -> int:
        """The node that leads a partition group; 0: none."""
        leading = [
            (node.groups[group].raft.term, number)
            for number, node in self.nodes.items()
            if group in node.groups and node.groups[group].is_leader
        ]
        return max(leading)[1] if leading else 0

    async def wait_led(self, *groups: int) -> None:
        """Wait until all these groups have a leader."""
        while not all(self.leader(group) for group in groups):
            await trio.sleep(0.01)
