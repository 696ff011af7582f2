"""Connections of strangers: bounds of memory, time and places."""

import errno
import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import trio
import trio.testing

from raftmq.batch import encode
from raftmq.batch.compression import Compression
from raftmq.broker.host import Source
from raftmq.broker.serve.connection import (
    FRAME_SECONDS_MAX,
    HELLO_BYTES_MAX,
    Connection,
)
from raftmq.broker.serve.load import (
    FINISH_SECONDS_MAX,
    NODE_PLACES,
    Load,
    places_for_connections,
)
from raftmq.broker.serve.requests import LARGE_BYTES
from raftmq.broker.settings import Limits, Log
from raftmq.chaos.world import MemoryFiles
from raftmq.log.faults import NoDescriptor
from raftmq.log.segment import HardState
from raftmq.tls.names import CertificateName
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, ErrorReply, FrameKind, Hello, Metadata, Welcome
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE, in_cluster
from tests.log.building import Chain, open_store, write

from .early_leavers import CACHE_BYTES, ask_for_events, resume

Leave = Callable[[Cluster, RawClient, Consumer], Awaitable[None]]

CLIENT = Hello(PROTOCOL, "", 0, "", "stranger")
HELLO = b"".join(encode_frame(FrameKind.HELLO, 0, pack(CLIENT)))
MIB = 1 << 20


def unfinished(size: int) -> bytes:
    """All of a frame but its last byte."""
    return b"".join(encode_frame(FrameKind.PRODUCE, 1, b"", [bytes(size)]))[:-1]


def test_bytes_of_frames_that_are_not_whole_count_and_go_when_nothing_follows() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        load = cluster.nodes[1].load
        before = load.request_bytes
        async with cluster.connection(1) as one, cluster.connection(1) as two:
            for client in (one, two):
                await client._stream.send_all(HELLO + unfinished(3 * MIB))
            await trio.sleep(1)
            assert load.request_bytes - before > 2 * (3 * MIB - 100)
            await trio.sleep(FRAME_SECONDS_MAX)
            words = await one.last_words(b"")
            assert "bytes came in 30 s" in words.message
            assert load.request_bytes == before

    in_cluster(scenario)


def test_connection_that_was_closed_holds_no_bytes() -> None:
    """The garbage collector may not come for hours: a node that is idle makes little garbage."""

    def held() -> int:
        found = [each for each in gc.get_objects() if isinstance(each, FrameParser)]
        return sum(parser.buffered_bytes for parser in found)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        before = held()
        for _ in range(3):
            async with cluster.connection(1) as client:
                await client._stream.send_all(HELLO + unfinished(3 * MIB))
                await trio.sleep(1)
                assert held() - before >= 3 * MIB - 100
                await trio.sleep(FRAME_SECONDS_MAX + 2)
            assert held() == before

    gc.collect()
    gc.disable()
    try:
        in_cluster(scenario)
    finally:
        gc.enable()


def test_connection_that_was_closed_leaves_nothing_to_the_garbage_collector() -> None:
    """A full collection may not come for hours, and a client may connect each second."""

    def living() -> int:
        return sum(isinstance(each, Connection) for each in gc.get_objects())

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        await trio.sleep(1)
        before = living()
        for _ in range(3):
            async with cluster.client(cluster.leader(1)) as client:
                await client.view()
                assert living() == before + 1
            await trio.sleep(1)
        assert living() == before

    gc.collect()
    gc.disable()
    try:
        in_cluster(scenario)
    finally:
        gc.enable()


@pytest.mark.parametrize("leave", [ask_for_events, resume])
def test_bytes_that_are_read_for_a_client_that_has_left_do_not_count(leave: Leave) -> None:
    """They stayed counted until the node was restarted, and so filled its limit."""

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        load = cluster.nodes[cluster.leader_of(QUEUE)].load
        await leave(cluster, client, alice)
        assert load.request_bytes == 0

    with_group(job, log=Log(cache_bytes=CACHE_BYTES))


def test_frames_beyond_the_limit_are_read_one_after_the_other() -> None:
    """Each of eight clients is in the middle of a frame; together they are far above the limit."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        load = cluster.nodes[1].load
        load.bytes_max = 2 * MIB
        worst, answered = 0, 0

        async def ask(client: RawClient) -> None:
            nonlocal answered
            request = b"".join(encode_frame(FrameKind.PRODUCE, 1, b"", [bytes(2 * MIB)]))
            await client._stream.send_all(HELLO)
            for at in range(0, len(request), 100_000):
                await client._stream.send_all(request[at : at + 100_000])
                await trio.sleep(0.01)
            while 1 not in client._answers:
                await client._came.wait()
            answered += 1

        async def watch() -> None:
            nonlocal worst
            while True:
                worst = max(worst, load.request_bytes)
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with connections(cluster, 8) as clients, trio.open_nursery() as asking:
                for client in clients:
                    asking.start_soon(ask, client)
            nursery.cancel_scope.cancel()
        assert answered == 8
        assert worst < 2 * MIB + 2 * MIB + 8 * 300_000
        assert load.finisher is None

    in_cluster(scenario)


def test_frames_that_come_slowly_hold_up_others_for_seconds() -> None:
    """Each brings 64 KiB in 25 s, so it has its time again and again."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        node = cluster.leader_of(QUEUE)
        load = cluster.nodes[node].load
        load.bytes_max = 4 * MIB
        request = b"".join(encode_frame(FrameKind.PRODUCE, 1000, b"", [bytes(8 * MIB)]))
        ended = 0

        async def send(client: RawClient) -> None:
            nonlocal ended
            at = 2 * MIB
            with suppress(trio.BrokenResourceError):
                await client._stream.send_all(request[:at])
                while True:
                    await trio.sleep(25)
                    await client._stream.send_all(request[at : at + 65_536])
                    at += 65_536
            ended += 1

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(cluster.client(node)) for _ in range(5)]
            other, *slow = clients
            nursery = await stack.enter_async_context(trio.open_nursery())
            for client in slow:
                nursery.start_soon(send, client)
            await trio.sleep(5)
            assert load.request_bytes >= load.bytes_max
            began = trio.current_time()
            await other.produce(QUEUE, [bytes(MIB // 2)], 0)
            assert trio.current_time() - began < 2 * FINISH_SECONDS_MAX
            # A slow connection goes on as long as no other one waits.
            await trio.sleep(100)
            assert ended < 4
            nursery.cancel_scope.cancel()

    in_cluster(scenario)


class Refusing:
    """A handler that welcomes every client and refuses every request."""

    is_serving = True
    handled = 0

    def check_certificate(self, names: frozenset[CertificateName]) -> None:
        """Every certificate is welcome."""

    def greet(self, connection: Connection, hello: Hello) -> Welcome:
        """Every client is welcome."""
        return Welcome(PROTOCOL, "test", 1, "x", "test", 16 * MIB, 16 * MIB)

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Refuse the request."""
        self.handled += 1
        connection.refuse(frame.correlation, ErrorReply("busy", "no"))

    def settle(self) -> None:
        """Nothing waits."""

    def closed(self, connection: Connection) -> None:
        """Nothing is kept."""


def test_large_frames_that_come_slowly_one_behind_the_other_are_all_read() -> None:
    """The second one begins in the read that ends the first: its bytes are counted from there."""
    frames = (encode_frame(FrameKind.PRODUCE, n, b"", [bytes(2 * MIB)]) for n in (1, 2, 3))
    data = b"".join(part for frame in frames for part in frame)
    handler, limits = Refusing(), Limits()

    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        load = Load(bytes_max=limits.requests_bytes_max, places=100, address_places=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Connection(there, handler, limits, load).serve)
            await here.send_all(HELLO)
            for at in range(0, len(data), 25_000):
                await here.send_all(data[at : at + 25_000])
                await trio.sleep(0.5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert handler.handled == 3


class MostHeld(Load):
    """Remembers the peak of held bytes."""

    most = 0

    def add(self, size: int) -> None:
        """As `Load.add`; also note the peak."""
        super().add(size)
        self.most = max(self.most, self.request_bytes)


def test_many_unfinished_frames_hold_little_beyond_the_limit_and_small_requests_pass() -> None:
    """Each new connection had a share of its own, so that all held the limit many times over."""
    handler, limits = Refusing(), Limits()
    load = MostHeld(bytes_max=4 * MIB, places=256, address_places=256)
    piece, strangers = 16 * 1024, 50
    requests = [b"".join(encode_frame(FrameKind.STATUS, n, b"")) for n in (1, 2)]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for data in (*[HELLO + unfinished(2 * MIB)] * strangers, HELLO + b"".join(requests)):
                here, there = trio.testing.memory_stream_pair()
                nursery.start_soon(Connection(there, handler, limits, load).serve)
                for at in range(0, len(data), piece):
                    await here.send_all(data[at : at + piece])
                    await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert handler.handled == 2
    # The limit, the finisher's frame, and of each other one a share and a read.
    share = load.bytes_max // load.places
    assert load.bytes_max <= load.most
    assert load.most <= load.bytes_max + 2 * MIB + strangers * (share + piece)


class connections:  # used as a function
    """Several connections to node 1."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster, self._count = cluster, count
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> list[RawClient]:
        await self._stack.__aenter__()
        enter = self._stack.enter_async_context
        return [await enter(self._cluster.connection(1)) for _ in range(self._count)]

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


def test_frame_before_the_hello_is_small() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        async with cluster.connection(1) as stranger:
            words = await stranger.last_words(unfinished(HELLO_BYTES_MAX)[:100])
            assert "the limit is 65536" in words.message

    in_cluster(scenario)


def test_silent_connections_keep_no_client_out() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        load = cluster.nodes[1].load
        load.places = load.connections + NODE_PLACES + 4
        async with connections(cluster, 200):
            await trio.sleep(0.1)
            assert load.connections <= load.places
            async with cluster.client(1) as client:
                await client.view()
            async with cluster.connection(1):
                assert load.connections <= load.places

    in_cluster(scenario)


def test_clients_leave_places_for_nodes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found()
        load = cluster.nodes[1].load
        load.places = load.connections + NODE_PLACES + 4
        async with connections(cluster, 200) as clients:
            for client in clients:
                with suppress(trio.BrokenResourceError):
                    await client._stream.send_all(HELLO)
            await trio.sleep(1)
            answers = [client._answers[0] for client in clients if client._answers]
            refused = [one for one in answers if one.kind == FrameKind.ERROR]
            assert refused
            assert {unpack(ErrorReply, one.header).code for one in refused} == {"busy"}
            cluster.kill(2)
            await cluster.start(2)
            link = cluster.nodes[2].links.get(1)
            assert link is not None
            await cluster.wait_until(lambda: link.is_connected, 10)

    in_cluster(scenario)


def test_half_of_the_descriptors_stay_for_files() -> None:
    assert places_for_connections(4096, 65_536) == 4096 + NODE_PLACES
    assert places_for_connections(4096, 1024) == 512
    assert places_for_connections(10, 256) == 10 + NODE_PLACES


def test_descriptors_that_run_out_are_no_fault_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 5)

    def refuse(path: str) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(files, "create", refuse)
        refused = []
        for _ in range(20):
            record = chain.make([bytes(100)])
            try:
                store.append(record, HardState(1, 1, chain.last - 1))
            except NoDescriptor:
                refused += record
                break
    assert refused
    store.append(refused, HardState(1, 1, chain.last - 1))
    assert store.last_index == chain.last


def test_batch_for_a_queue_that_does_not_exist_is_not_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        admitted: list[int] = []
        monkeypatch.setattr(
            "raftmq.broker.serve.requests.admit", lambda body, **_: admitted.append(len(body))
        )
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            with pytest.raises(Refused, match="unknown_topic"):
                await client.produce(7, [bytes(2 * MIB)], 0, compression=Compression.ZSTD)
        assert admitted == []

    in_cluster(scenario)


def test_large_bodies_are_decompressed_beside_the_loop_and_batches_keep_their_order() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        leader = cluster.leader_of(QUEUE)
        requests = []
        for n in range(6):
            bodies = [bytes([n]) * (2 * LARGE_BYTES if n % 2 == 0 else 100)]
            sealed = encode(bodies, compression=Compression.ZSTD)
            batch = sealed.to_bytes(queue=QUEUE, producer=1, first_sequence=n)
            requests.append((FrameKind.PRODUCE, b"", [batch]))
        async with cluster.client(leader) as client:
            frames = await client.request_all(*requests)
            assert [frame.kind & ~0x80 for frame in frames] == [FrameKind.PRODUCE] * 6
            batches = await client.read(QUEUE, 0)
            while len(batches) < 6:
                batches += await client.read(QUEUE, len(batches))
            assert [batch.bodies[0][0] for _, batch in batches] == list(range(6))

    in_cluster(scenario)


def test_large_batch_is_not_stored_once_its_connection_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node ends a connection whose right to write has ended."""
    jobs: list[tuple[Any, Any]] = []
    connections: list[Connection] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        node = cluster.nodes[cluster.leader_of(QUEUE)]
        handle = node.handle

        def handled(connection: Connection, frame: Frame) -> None:
            connections.append(connection)
            handle(connection, frame)

        monkeypatch.setattr(node, "handle", handled)
        monkeypatch.setattr(node._reader, "submit", lambda job, done: jobs.append((job, done)))
        sealed = encode([bytes(2 * LARGE_BYTES)], compression=Compression.ZSTD)
        batch = sealed.to_bytes(queue=QUEUE, producer=1)
        async with cluster.client(node.id) as client:
            await client._stream.send_all(
                b"".join(encode_frame(FrameKind.PRODUCE, 100, b"", [batch]))
            )
            while not jobs:
                await trio.sleep(0.01)
            connections[-1].end()
            await trio.sleep(1)
        (job, done) = jobs[0]
        done(job(), None)
        await trio.sleep(1)
        source = node.source(QUEUE)
        assert isinstance(source, Source)
        assert source.end == 0

    in_cluster(scenario)


def test_step_of_one_connection_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand requests in one read: another connection is served in between."""

    async def scenario(cluster: Cluster) -> tuple[int, int]:
        await cluster.found()
        now = [0.0]
        monkeypatch.setattr("raftmq.broker.serve.connection.trio", SlowClock(now))
        node = cluster.nodes[1]
        steps: list[int] = []
        settle = node.settle
        handled = 0
        handle = node.handle

        def count(*args: object) -> None:
            nonlocal handled
            handled += 1
            now[0] += 0.001
            handle(*args)  # type: ignore[arg-type]

        def settled() -> None:
            steps.append(handled)
            settle()

        monkeypatch.setattr(node, "handle", count)
        monkeypatch.setattr(node, "settle", settled)
        async with cluster.client(1) as client:
            ask: tuple[int, bytes, list[bytes]] = (FrameKind.METADATA, pack(Metadata([])), [])
            await client.request_all(*[ask] * 100)
        longest = max(b - a for a, b in zip([0, *steps], steps, strict=False))
        return handled, longest

    handled, longest = in_cluster(scenario)
    assert handled >= 100
    assert longest <= 10


class SlowClock:
    """trio, with a clock that the test moves."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def current_time(self) -> float:
        """The real time of the run, plus the time that the test added."""
        return trio.current_time() + self._now[0]

    def __getattr__(self, name: str) -> object:
        return getattr(trio, name)
