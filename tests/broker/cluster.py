"""Three whole brokers in a made-up world, and a raw client that speaks frames to them."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any, TypeVar

import msgspec
import trio

from raftmq.batch import Batch, encode
from raftmq.broker.node import Node, NodeStopped
from raftmq.broker.settings import Limits, Log, NodeSettings, Peer, Raft, Settings
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ChangeMember,
    ClusterView,
    Done,
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
from tests.log.memory_files import MemoryFiles

S = TypeVar("S", bound=msgspec.Struct)


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(f"{reply.code}: {reply.message}")
        self.reply = reply


class Disk(MemoryFiles):
    """A disk whose every sync can be made to fail."""

    sync_error = 0
    """The `errno` of all syncs from now on; 0: they succeed."""

    def used(self) -> int:
        """Bytes in all files."""
        return self._used()

    def enter(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Count a changing call; refuse it if it is a sync and syncs are to fail."""
        super().enter(operation, path, partly, size)
        if operation == "datasync" and self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)


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
        self,
        queue: int,
        bodies: list[bytes],
        first: int,
        *,
        producer: int = 1,
        keys: list[str] | None = None,
    ) -> Produced:
        """One batch."""
        sealed = encode(bodies, keys=keys)
        batch = sealed.to_bytes(queue=queue, producer=producer, first_sequence=first)
        return unpack(Produced, (await self.request(FrameKind.PRODUCE, b"", [batch])).header)

    async def fetch(self, queue: int, offset: int, wait_ms: int = 0) -> tuple[Fetched, bytes]:
        """One queue, as it comes."""
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
        """Ask for much, many times at once, and read no answer."""
        fetch = pack(Fetch([FetchFrom(queue, 0)], 0, 1 << 24))
        parts = encode_frame(FrameKind.HELLO, 0, pack(hello))
        for correlation in range(1, requests + 1):
            parts += encode_frame(FrameKind.FETCH, correlation, fetch)
        await self._stream.send_all(b"".join(parts))

    @property
    def answer_count(self) -> int:
        """Answers that have come and were not asked for by `request`."""
        return len(self._answers)


class Cluster:
    """Nodes 1 to n of one cluster, each in a world of its own on a shared network."""

    def __init__(self, nursery: trio.Nursery, *, size: int = 3, seed: int = 0) -> None:
        self._nursery = nursery
        self._seed = seed
        self.network = Network()
        self.peers = [Peer(n, f"node{n}", 7400) for n in range(1, size + 1)]
        self.files = {peer.id: Disk(Random(seed)) for peer in self.peers}
        self.worlds: dict[int, MadeUpWorld] = {}
        self.nodes: dict[int, Node] = {}
        self.stopped: dict[int, NodeStopped] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self.log = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
        self._starts = count()

    def settings(self, number: int) -> Settings:
        """A node's settings."""
        own = Peer(number, f"node{number}", 7400)
        is_founder = own in self.peers
        node = NodeSettings(
            number,
            "test",
            "/data",
            own.host,
            own.port,
            peers=self.peers if is_founder else [],
            join=[] if is_founder else self.peers[:1],
        )
        return Settings(node, Raft(tick_ms=50), self.log, Limits()).validate()

    async def start(self, *numbers: int) -> None:
        """Start nodes, all if none is named, and wait until they serve."""
        chosen = numbers or tuple(peer.id for peer in self.peers)
        async with trio.open_nursery() as starting:
            for number in chosen:
                starting.start_soon(self._start, number)

    async def _start(self, number: int) -> None:
        seed = self._seed * 1000 + next(self._starts)
        self.files.setdefault(number, Disk(Random(seed)))
        world = MadeUpWorld(self.network, self.files[number], seed=seed)
        self.worlds[number] = world
        self.nodes[number] = Node(self.settings(number), world)
        await self._nursery.start(self._live, number)

    async def _live(self, number: int, task_status: trio.TaskStatus[None]) -> None:
        is_started = False

        class Started:
            """Notes that the node serves, so that a node that gives up earlier is noticed too."""

            def started(self, value: None = None) -> None:
                nonlocal is_started
                is_started = True
                task_status.started()

        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                await self.nodes[number].run(task_status=Started())
            except NodeStopped as stopped:
                self.stopped[number] = stopped
                self.nodes.pop(number, None)
                self.files[number].kill()
                if not is_started:
                    task_status.started()
        self._scopes.pop(number, None)

    def kill(self, number: int, *, power: bool = False) -> None:
        """Stop a node at once: the process crashes, or its machine loses power."""
        self._scopes.pop(number).cancel()
        del self.nodes[number]
        if power:
            self.files[number].power_loss()
        else:
            self.files[number].kill()

    def wipe(self, number: int) -> None:
        """Give a node that is down an empty disk."""
        self.files[number] = Disk(Random(self._seed))

    async def stop(self, number: int) -> None:
        """Stop a node gracefully."""
        self.nodes[number].stop()
        while number in self._scopes:
            await trio.sleep(0.01)
        del self.nodes[number]

    @asynccontextmanager
    async def connection(
        self, number: int, *, is_lockstep: bool = False
    ) -> AsyncIterator[RawClient]:
        """A connection to a node, before any word. In lockstep nothing is buffered in between."""
        own = self.settings(number).node
        stream = await self.network.connect(own.host, own.port, is_lockstep=is_lockstep)
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
    async def client(self, number: int) -> AsyncIterator[RawClient]:
        """A connection to a node that was welcomed."""
        async with self.connection(number) as client:
            hello = Hello(PROTOCOL, "", 0, "", "test")
            await client.ask(FrameKind.HELLO, hello, Welcome)
            yield client

    def leader(self, group: int) -> int:
        """The node that leads a partition group; 0: none."""
        leading = [
            (node.groups[group].raft.term, number)
            for number, node in self.nodes.items()
            if group in node.groups and node.groups[group].is_leader
        ]
        return max(leading)[1] if leading else 0

    async def found(self, *topic: Any) -> None:
        """Start all nodes, wait for the cluster's founding, and create a topic if one is given."""
        await self.start()
        await self.wait_led(0)
        while not self.nodes[self.leader(0)].catalog.is_bootstrapped:
            await trio.sleep(0.05)
        # Each node shall lead one data group: wait until the leadership has been handed round.
        while [self.leader(group) for group in (1, 2, 3)] != [1, 2, 3]:
            await trio.sleep(0.05)
        if topic:
            async with self.client(self.leader(0)) as client:
                await client.admin("create_topic", *topic)
            await self.wait_known(topic[0])

    async def wait_known(self, topic: str) -> None:
        """Wait until every node that runs knows a topic."""
        while not all(topic in node.catalog.topics for node in self.nodes.values()):
            await trio.sleep(0.05)

    def leader_of(self, queue: int) -> int:
        """The node that leads a queue's partition group."""
        node = next(iter(self.nodes.values()))
        group = node.catalog.group_of(queue)
        assert group is not None
        return self.leader(group)

    async def wait_until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until something is so."""
        with trio.fail_after(seconds):
            while not holds():
                await trio.sleep(0.05)

    async def change(self, action: str, node: int, **to: Any) -> None:
        """Add, remove or replace a node."""
        async with self.client(self.leader(0)) as client:
            await client.ask(FrameKind.MEMBER, ChangeMember(action, node, **to), Done)

    def members(self, group: int) -> set[int]:
        """The voters of a partition group, as its leader sees them."""
        return set(self.nodes[self.leader(group)].groups[group].conf_state.voters)

    async def wait_led(self, *groups: int) -> None:
        """Wait until all these groups have a leader."""
        while not all(self.leader(group) for group in groups):
            await trio.sleep(0.01)
