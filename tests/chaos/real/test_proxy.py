"""The proxy on real sockets, with small echoing servers in the place of nodes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import pytest
import trio

from raftmq.chaos.faults.arena import CLIENTS
from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real.network.proxy import HOST, Proxy, Splitter
from raftmq.chaos.real.network.rules import Kind, Rules
from raftmq.testing import free_ports
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, FrameKind, Hello

pytestmark = pytest.mark.anyio

QUICK, SLOW = 0.15, 5.0


class Net:
    """Two echoing nodes behind a proxy."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.proxy = Proxy(self.rules, Random(1))
        self.public = dict(zip((1, 2), free_ports(2), strict=True))
        self.callers: list[Caller] = []
        self.heard: list[tuple[int, Frame]] = []

    async def serve(self, node: int, stream: trio.SocketStream) -> None:
        parser = FrameParser(FRAME_BYTES_MAX)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                while data := await stream.receive_some():
                    parser.feed(bytes(data))
                    for frame in parser.frames():
                        self.heard.append((node, frame))
                        await stream.send_all(frame_of(frame.kind, frame.header))

    def kinds(self, node: int) -> list[int]:
        return [frame.kind for other, frame in self.heard if other == node]


def frame_of(kind: int, header: bytes = b"") -> bytes:
    return b"".join(encode_frame(kind, 7, header))


class Caller:
    """The client's end of a connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._parser = FrameParser(FRAME_BYTES_MAX)
        self._frames: list[Frame] = []

    async def say(self, kind: int, header: bytes = b"") -> None:
        await self.stream.send_all(frame_of(kind, header))

    async def hear(self, seconds: float = SLOW) -> Frame:
        with trio.fail_after(seconds):
            while not self._frames:
                data = await self.stream.receive_some()
                if not data:
                    raise trio.BrokenResourceError
                self._parser.feed(bytes(data))
                self._frames += self._parser.frames()
        return self._frames.pop(0)


@asynccontextmanager
async def net() -> AsyncIterator[Net]:
    made = Net()
    async with trio.open_nursery() as nursery:
        await nursery.start(made.proxy.run)
        for node, public in made.public.items():

            async def serve(stream: trio.SocketStream, node: int = node) -> None:
                await made.serve(node, stream)

            listeners: Sequence[trio.SocketListener]
            listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host=HOST))
            private = listeners[0].socket.getsockname()[1]
            made.proxy.add(node, public=public, private=private)
            await made.proxy.open(node)
        yield made
        for caller in made.callers:
            await trio.aclose_forcefully(caller.stream)
        nursery.cancel_scope.cancel()


async def call(made: Net, node: int, *, source: int = CLIENTS) -> Caller:
    """Connect to a node and greet it."""
    stream = await trio.open_tcp_stream(HOST, made.public[node])
    caller = Caller(stream)
    made.callers.append(caller)
    hello = Hello(PROTOCOL, "", source, "", "test", HOST, 9 if source else 0)
    await caller.say(FrameKind.HELLO, pack(hello))
    return caller


async def test_frames_pass_both_ways_and_nobody_learns_a_private_port() -> None:
    async with net() as made:
        caller = await call(made, 2, source=1)
        greeted = unpack(Hello, (await caller.hear()).header)
        assert (greeted.node, greeted.port) == (1, made.public[1])
        await caller.say(FrameKind.STATUS, b"x")
        assert (await caller.hear()).header == b"x"


async def test_blocked_flow_holds_frames_until_it_is_open_again() -> None:
    async with net() as made:
        caller = await call(made, 2, source=1)
        await caller.hear()
        rule = made.rules.add(Kind.BLOCK, {(1, 2)})
        await caller.say(FrameKind.STATUS)
        with pytest.raises(trio.TooSlowError):
            await caller.hear(QUICK)
        other = await call(made, 2)
        await other.hear()
        made.rules.remove(rule)
        assert (await caller.hear()).kind == FrameKind.STATUS


async def test_node_that_is_down_refuses_connections() -> None:
    async with net() as made:
        made.proxy.close(1)
        with trio.move_on_after(SLOW):
            while True:
                await trio.sleep(0.01)
                try:
                    stream = await trio.open_tcp_stream(HOST, made.public[1])
                    await stream.aclose()
                except OSError:
                    break
        with pytest.raises(OSError, match="onnect"):
            await trio.open_tcp_stream(HOST, made.public[1])
        await made.proxy.open(1)
        await (await call(made, 1)).hear()


async def test_lost_frame_breaks_its_connection() -> None:
    async with net() as made:
        caller = await call(made, 1)
        await caller.hear()
        made.rules.add(Kind.LOSS, None, 1.0)
        await caller.say(FrameKind.STATUS)
        with pytest.raises(trio.BrokenResourceError):
            await caller.hear()
        assert made.kinds(1) == [FrameKind.HELLO]


async def test_connection_cut_inside_a_frame_delivers_no_whole_one() -> None:
    async with net() as made:
        caller = await call(made, 2, source=1)
        await caller.hear()
        made.rules.add(Kind.CUT, {(1, 2)})
        await caller.say(FrameKind.STATUS, bytes(500))
        with pytest.raises(trio.BrokenResourceError):
            await caller.hear()
        assert made.kinds(2) == [FrameKind.HELLO]


async def test_half_open_connection_takes_everything_and_answers_nothing() -> None:
    async with net() as made:
        caller = await call(made, 2, source=1)
        await caller.hear()
        rule = made.rules.add(Kind.SWALLOW, between([1], [2]))
        await caller.say(FrameKind.STATUS)
        with pytest.raises(trio.TooSlowError):
            await caller.hear(QUICK)
        made.rules.remove(rule)
        assert made.proxy.break_connections(set(between([1], [2]))) == 1
        with pytest.raises(trio.BrokenResourceError):
            await caller.hear()


async def test_duplicated_frame_arrives_on_another_connection_after_a_greeting() -> None:
    async with net() as made:
        caller = await call(made, 1)
        await caller.hear()
        made.rules.add(Kind.DUPLICATE, None, 1.0)
        await caller.say(FrameKind.PRODUCE, b"batch")
        await caller.hear()
        with trio.fail_after(SLOW):
            while made.kinds(1).count(FrameKind.PRODUCE) < 2:
                await trio.sleep(0.01)
        assert made.kinds(1).count(FrameKind.HELLO) == 2


REQUESTS = (FrameKind.COMMIT, FrameKind.SETTLE, FrameKind.POP, FrameKind.CANCEL, FrameKind.END)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_any_request_of_a_client_arrives_again_at_once_and_late(kind: FrameKind) -> None:
    async with net() as made:
        caller = await call(made, 1)
        await caller.hear()
        rule = made.rules.add(Kind.DUPLICATE, None, 1.0)
        await caller.say(kind, b"once")
        await caller.hear()
        with trio.fail_after(SLOW):
            while made.kinds(1).count(kind) < 2:
                await trio.sleep(0.01)
        made.rules.remove(rule)
        assert made.proxy.repeat_old((CLIENTS, 1), 30) == 1
        with trio.fail_after(SLOW):
            while made.kinds(1).count(kind) < 3:
                await trio.sleep(0.01)


async def test_change_of_nodes_arrives_once_and_answers_are_no_requests() -> None:
    async with net() as made:
        caller = await call(made, 2, source=1)
        await caller.hear()
        made.rules.add(Kind.DUPLICATE, None, 1.0)
        await caller.say(FrameKind.CHANGE_NODE)
        await caller.say(FrameKind.SETTLE | REPLY)
        await caller.say(FrameKind.STATUS)
        for _ in range(3):
            await caller.hear()
        with trio.fail_after(SLOW):
            while made.kinds(2).count(FrameKind.STATUS) < 2:
                await trio.sleep(0.01)
        assert made.kinds(2).count(FrameKind.CHANGE_NODE) == 1
        assert made.kinds(2).count(FrameKind.SETTLE | REPLY) == 1


async def test_delayed_frames_come_later_and_in_order() -> None:
    async with net() as made:
        caller = await call(made, 1)
        await caller.hear()
        made.rules.add(Kind.DELAY, {(CLIENTS, 1)}, 100)
        began = trio.current_time()
        for header in (b"a", b"b", b"c"):
            await caller.say(FrameKind.STATUS, header)
        heard = [(await caller.hear()).header for _ in range(3)]
        assert heard == [b"a", b"b", b"c"]
        assert trio.current_time() - began > 0.04


def test_splitter_cuts_a_stream_into_frames_wherever_it_is_broken() -> None:
    frames = [frame_of(3, b"h" * size) for size in (0, 1, 300)]
    stream = b"".join(frames)
    for step in (1, 7, len(stream)):
        splitter = Splitter()
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        assert [frame for piece in pieces for frame in splitter.feed(piece)] == frames
