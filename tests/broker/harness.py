"""A cluster with a raw client that speaks frames to its nodes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import msgspec
import trio

from raftmq.batch import Batch, encode
from raftmq.chaos import sim
from raftmq.chaos.sim.cluster import CLUSTER
from raftmq.chaos.world import Machine, MemoryFiles, Process
from raftmq.chaos.world.pipe import WINDOW_BYTES
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ChangeNode,
    ClusterView,
    Done,
    ErrorReply,
    FrameKind,
    Hello,
    Metadata,
    Produced,
    Welcome,
)

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

    async def receive(self) -> None:
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

    async def request_all(self, *requests: tuple[int, bytes, Sequence[bytes]]) -> list[Frame]:
        """Send requests as one piece and wait for all answers."""
        parts: list[bytes] = []
        numbers: list[int] = []
        for kind, header, body in requests:
            numbers.append(next(self._correlation))
            parts += encode_frame(kind, numbers[-1], header, body)
        await self._stream.send_all(b"".join(parts))
        while not all(number in self._answers for number in numbers):
            await self._came.wait()
        return [self._answers.pop(number) for number in numbers]

    async def ask(self, kind: int, request: msgspec.Struct, answer: type[S]) -> S:
        """As `request`, with structs."""
        return unpack(answer, (await self.request(kind, pack(request))).header)

    async def view(self) -> ClusterView:
        """The routing table."""
        return await self.ask(FrameKind.METADATA, Metadata(), ClusterView)

    async def admin(self, *command: Any) -> Any:
        """A catalog command."""
        return (await self.ask(FrameKind.ADMIN, Admin(list(command)), AdminDone)).result

    async def produce(
        self,
        queue: int,
        bodies: list[bytes],
        first: int,
        *,
        producer: int = 1,
        **columns: Any,
    ) -> Produced:
        """One batch; `columns` as `raftmq.batch.encode` takes them."""
        sealed = encode(bodies, **columns)
        batch = sealed.to_bytes(queue=queue, producer=producer, first_sequence=first)
        return unpack(Produced, (await self.request(FrameKind.PRODUCE, b"", [batch])).header)

    async def fetch(self, queue: int, offset: int, wait_ms: int = 0) -> tuple[Fetched, bytes]:
        """Fetch one queue; the raw answer."""
        request = Fetch([FetchFrom(queue, offset)], wait_ms, 1 << 20)
        frame = await self.request(FrameKind.FETCH, pack(request))
        return unpack(Fetched, frame.header), frame.body

    async def read(self, queue: int, offset: int) -> list[tuple[int, Batch]]:
        """The batches of a queue from the one that holds an offset on, with their offsets."""
        fetched, body = await self.fetch(queue, offset)
        batches, position = [], 0
        for item in fetched.queues:
            assert item.error is None, item.error
            columns = zip(
                memoryview(item.bases).cast("Q"),
                memoryview(item.timestamps).cast("q"),
                memoryview(item.sizes).cast("I"),
                strict=True,
            )
            for base, timestamp, size in columns:
                data = body[position : position + size]
                batches.append((base, Batch.decode(data, base_offset=base, timestamp=timestamp)))
                position += size
        return batches

    async def last_words(self, data: bytes) -> ErrorReply:
        """Send bytes and wait for the error with which the other side closes."""
        await self._stream.send_all(data)
        with trio.fail_after(60):
            while 0 not in self._answers:
                await self._came.wait()
        return unpack(ErrorReply, self._answers.pop(0).header)

    async def flood(self, hello: Hello, queue: int, *, requests: int) -> None:
        """Send many large requests at once, and read no answer."""
        fetch = pack(Fetch([FetchFrom(queue, 0)], 0, 1 << 24))
        parts = encode_frame(FrameKind.HELLO, 0, pack(hello))
        for correlation in range(1, requests + 1):
            parts += encode_frame(FrameKind.FETCH, correlation, fetch)
        await self._stream.send_all(b"".join(parts))

    @property
    def answer_count(self) -> int:
        """Answers that have come and were not asked for by `request`."""
        return len(self._answers)


class Cluster(sim.Cluster):
    """A simulated cluster that tests can connect to frame by frame."""

    user = ""
    """The user of clients that name none, where nodes know their users."""
    whole_clients = 0
    """Processes with the real client that were started: each draws from a seed of its own."""

    @asynccontextmanager
    async def connection(
        self, number: int, *, is_lockstep: bool = False, user: str = ""
    ) -> AsyncIterator[RawClient]:
        """A connection to a node, before any word. In lockstep little is buffered in between. With
        `user` its certificate names one."""
        own = self.settings(number).node
        machine = Machine("client", self.agenda, MemoryFiles())
        window = 4096 if is_lockstep else WINDOW_BYTES
        process = Process(machine, self.agenda, seed=0)
        if user:
            process.names = frozenset((CertificateName(CLUSTER, USER, user),))
        stream = await self.network.connect(process, own.host, own.port, window_bytes=window)
        client = RawClient(stream)
        error: Exception | None = None
        async with stream, trio.open_nursery() as nursery:
            if not is_lockstep:
                nursery.start_soon(client.receive)
            try:
                yield client
            except Exception as caught:
                error = caught
            nursery.cancel_scope.cancel()
        if error is not None:
            # Raised here, as a nursery would wrap it in a group.
            raise error

    @asynccontextmanager
    async def client(self, number: int, *, user: str = "") -> AsyncIterator[RawClient]:
        """A connection to a node that was welcomed."""
        async with self.connection(number, user=user or self.user) as client:
            hello = Hello(PROTOCOL, "", 0, "", "test")
            await client.ask(FrameKind.HELLO, hello, Welcome)
            yield client

    async def found(self, *topic: Any) -> None:
        """Start all nodes, wait for the cluster's founding, and create a topic if one is given."""
        await super().found()
        if topic:
            async with self.client(self.leader(0)) as client:
                await client.admin("create_topic", *topic)
            await self.wait_known(topic[0])

    async def change(self, action: str, node: int, **to: Any) -> None:
        """Add, remove or replace a node."""
        async with self.client(self.leader(0)) as client:
            await client.ask(FrameKind.CHANGE_NODE, ChangeNode(action, node, **to), Done)
