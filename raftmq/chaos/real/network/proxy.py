"""The network between real processes: a TCP proxy that knows frames and obeys `rules`.

Each node listens on a private port; the proxy listens on the node's public port, which the node
announces. The first frame of a connection (`Hello`) names the sender, so one public port for each
node is enough: frames from node 1 to node 2 are flow (1, 2), the answers on the same connection are
flow (2, 1).

    node 1 ──> public port of 2 ─┐ proxy ┌─> private port of 2
    client ──> public port of 2 ─┘ rules └─> private port of 2

Frames are forwarded whole, in order, when they are due. The proxy stops reading a blocked flow when
some frames are buffered, so that the sender's socket fills up as in a real partition.

Invariants:
- Within a connection and direction frames never overtake each other.
- A node that is down refuses connections, as a machine without a listener does: the public port is
  closed while the private one is.
- The port in a node's `Hello` is replaced by its public one: no node learns a private port.

Under TLS the proxy ends the encryption on both sides: see `trust`.
"""

import socket
import struct
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random

import msgspec
import trio

from raftmq.chaos.faults.arena import CLIENTS
from raftmq.consensus import MessageKind
from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FIXED_BYTES, FRAME_BYTES_MAX, FrameParser, encode_frame
from raftmq.wire.messages import FrameKind, Hello
from raftmq.wire.raft import RaftHeader

from .rules import Flow, Kind, Rules
from .trust import Trust

HOST = "127.0.0.1"
KIND_AT = 9
"""Position of the kind in a frame."""
BUFFERED_FRAMES_MAX = 64
"""Frames buffered for one direction of a connection; at the limit the proxy stops reading."""
KEPT_FRAMES = 200
"""Newest frames of each flow that are kept, to be repeated later."""
REPEATS_MAX = 32
"""Frames that are repeated at the same time, at most."""
REPEAT_SECONDS = 1.0
"""Longest wait for the answer to a repeated frame."""
REPEATED_KINDS = frozenset(FrameKind) - {FrameKind.HELLO, FrameKind.CHANGE_NODE, FrameKind.ERROR}
"""Requests that may be repeated, at once or late, without breaking a promise. A change of nodes has
no number: an `add_node` repeated after a `remove_node` would add the node again."""


class Broken(Exception):
    """The connection must break now."""


class Splitter:
    """Cuts a stream into whole frames, without parsing the frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Add data; returns the frames that are complete now."""
        self._buffer += data
        frames = []
        start, end = 0, len(self._buffer)
        while end - start >= 4:
            size = 4 + int.from_bytes(self._buffer[start : start + 4], "little")
            if size > end - start:
                break
            frames.append(bytes(self._buffer[start : start + size]))
            start += size
        del self._buffer[:start]
        return frames


class Proxy:
    """All connections of a cluster: a `raftmq.chaos.real.network.protocol.Network`."""

    is_proxy = True
    observer = HOST

    def __init__(self, rules: Rules, random: Random) -> None:
        self.rules = rules
        """Faults of the network; they change while it runs."""
        self.frames = 0
        """Frames that arrived."""
        self.broken = 0
        """Connections that broke because a rule said so."""
        self.trust: Trust | None = None
        """The certificates of the nodes; None: connections are plain."""
        self._random = random
        self._changed = trio.Event()
        rules.on_change = self._rules_changed
        self._ports: dict[int, tuple[int, int]] = {}
        self._listening: dict[int, trio.CancelScope] = {}
        self._connections: dict[trio.CancelScope, tuple[int, int]] = {}
        self._kept: dict[Flow, deque[bytes]] = {}
        self._hellos: dict[int, bytes] = {}
        self._repeats = trio.CapacityLimiter(REPEATS_MAX)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, which breaks all connections."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @property
    def counts(self) -> dict[str, int]:
        """Empty: the proxy has no further counts."""
        return {}

    def host(self, node: int) -> str:
        """The loopback address, for every node."""
        return HOST

    def place(self, node: int) -> AbstractContextManager[None]:
        """A context without effect: all processes share one network."""
        return nullcontext()

    def add(self, node: int, *, public: int, private: int) -> None:
        """Add a node; connections to it are refused until `open`."""
        self._ports[node] = (public, private)

    async def open(self, node: int) -> None:
        """A node's process runs: listen on its public port."""
        assert self._nursery is not None, "the proxy does not run"
        if node not in self._listening:
            await self._nursery.start(self._listen, node)

    def close(self, node: int) -> None:
        """A node's process has ended, and its connections with it: close its public port."""
        scope = self._listening.pop(node, None)
        if scope is not None:
            scope.cancel()

    def unplug(self, node: int) -> None:
        """Nothing: a proxy cannot keep the connections of an ended process open."""

    def shut(self) -> None:
        """Nothing: no socket outlives `run`."""

    def break_connections(self, flows: set[Flow]) -> int:
        """Break the open connections of these flows; returns their number."""
        hit = [scope for scope, flow in self._connections.items() if flow in flows]
        for scope in hit:
            scope.cancel()
        self.broken += len(hit)
        return len(hit)

    def repeat_old(self, flow: Flow, count: int) -> int:
        """Send up to `count` of the oldest kept frames of a flow again; returns their number."""
        old = list(self._kept.get(flow, ()))[: KEPT_FRAMES // 2]
        chosen = self._random.sample(old, min(count, len(old)))
        for frame in chosen:
            self._repeat(flow, frame)
        return len(chosen)

    def resend(self, to: int) -> bool:
        """Send a kept batch of some client to a node, which may be another node than the batch was
        sent to; False: no batch is kept."""
        frames = [
            frame
            for (source, _), kept in self._kept.items()
            if source == CLIENTS
            for frame in kept
            if frame[KIND_AT] == FrameKind.PRODUCE
        ]
        if not frames or CLIENTS not in self._hellos:
            return False
        self._repeat((CLIENTS, to), self._random.choice(frames))
        return True

    # -- inside ----------------------------------------------------------------------------------

    async def _listen(
        self, node: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.CancelScope() as scope:
            listeners = await trio.open_tcp_listeners(self._ports[node][0], host=HOST, backlog=256)
            self._listening[node] = scope
            task_status.started()

            async def serve(stream: trio.SocketStream) -> None:
                await self._serve(stream, node)

            await trio.serve_listeners(serve, listeners, handler_nursery=self._nursery)

    async def _serve(self, stream: trio.SocketStream, node: int) -> None:
        """One connection to a node, from its first byte to its last."""
        ends = [stream]
        with trio.CancelScope() as scope:
            try:
                await self._relay(ends, node, scope)
            except* (OSError, Broken, ProtocolError, trio.BrokenResourceError):
                pass
            except* trio.ClosedResourceError:
                pass
            finally:
                self._connections.pop(scope, None)
                for end in ends:
                    _reset(end)

    async def _relay(
        self, ends: list[trio.SocketStream], node: int, scope: trio.CancelScope
    ) -> None:
        """Relay frames between the connecting party, the first of `ends`, and the node, whose
        connection is appended to `ends`."""
        splitter = Splitter()
        caller: trio.abc.Stream = ends[0]
        if self.trust is not None:
            caller = await self.trust.accepted(ends[0], node)
        first = await _first_frames(caller, splitter)
        source, hello = self._introduced(first[0])
        self._connections[scope] = (source, node)
        # A connect to the node would cross the partition of a blocked flow.
        await self.wait_open((source, node))
        ends.append(await trio.open_tcp_stream(HOST, self._ports[node][1]))
        sink: trio.abc.Stream = ends[1]
        if self.trust is not None:
            sink = await self.trust.connected(ends[1], source)
        forth = Pipe(self, (source, node), caller, sink)
        back = Pipe(self, (node, source), sink, caller)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forth.run, [hello, *first[1:]], splitter, scope)
            nursery.start_soon(back.run, [], Splitter(), scope)

    def _introduced(self, frame: bytes) -> tuple[int, bytes]:
        """The connecting party's number, and its `Hello` with the public port."""
        parser = FrameParser(FRAME_BYTES_MAX)
        parser.feed(frame)
        (parsed,) = parser.frames()
        hello = unpack(Hello, parsed.header)
        if hello.node in self._ports:
            hello = msgspec.structs.replace(hello, port=self._ports[hello.node][0])
            frame = b"".join(encode_frame(parsed.kind, parsed.correlation, pack(hello)))
        self._hellos[hello.node] = frame
        return hello.node, frame

    async def wait_open(self, flow: Flow) -> None:
        """Wait until a flow is not blocked."""
        while self.rules.is_blocked(flow):
            await self._changed.wait()

    def _rules_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def keep(self, flow: Flow, frame: bytes) -> None:
        """Remember a frame that may be repeated later."""
        if frame[KIND_AT] in REPEATED_KINDS:
            kept = self._kept.get(flow)
            if kept is None:
                kept = self._kept[flow] = deque(maxlen=KEPT_FRAMES)
            kept.append(frame)
            if self.rules.strikes(Kind.DUPLICATE, flow, self._random):
                self._repeat(flow, frame)

    def _repeat(self, flow: Flow, frame: bytes) -> None:
        hello = self._hellos.get(flow[0])
        if hello is not None and self._nursery is not None and self._repeats.available_tokens > 0:
            self._nursery.start_soon(self._send_again, flow[0], flow[1], hello + frame)

    async def _send_again(self, source: int, node: int, data: bytes) -> None:
        """Send a `Hello` and a frame on a new connection; the answers are read and ignored."""
        async with self._repeats:
            with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(REPEAT_SECONDS):
                splitter, answers = Splitter(), 0
                async with await trio.open_tcp_stream(HOST, self._ports[node][1]) as plain:
                    stream: trio.abc.Stream = plain
                    if self.trust is not None:
                        stream = await self.trust.connected(plain, source)
                    await stream.send_all(data)
                    # The first answer is the one to `Hello`.
                    while answers < 2 and (got := await stream.receive_some()):
                        answers += len(splitter.feed(got))


class Pipe:
    """One direction of one connection."""

    def __init__(
        self, proxy: Proxy, flow: Flow, source: trio.abc.Stream, sink: trio.abc.Stream
    ) -> None:
        self._proxy = proxy
        self._rules = proxy.rules
        self._random = Random(proxy._random.getrandbits(64))
        self._flow = flow
        self._source = source
        self._sink = sink
        self._due = 0.0
        self._keeps = flow[1] != CLIENTS
        send, self._waiting = trio.open_memory_channel[tuple[float, bytes]](BUFFERED_FRAMES_MAX)
        self._send = send

    async def run(self, frames: list[bytes], splitter: Splitter, scope: trio.CancelScope) -> None:
        """Forward frames until an end closes; then the whole connection breaks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, scope)
            for frame in frames:
                await self._take(frame)
            while data := await self._source.receive_some(65_536):
                for frame in splitter.feed(data):
                    await self._take(frame)
            # The frames that were taken are still written; then `_write` breaks the connection.
            self._send.close()

    async def _take(self, frame: bytes) -> None:
        rules, flow = self._rules, self._flow
        if rules.rules:
            if rules.strikes(Kind.LOSS, flow, self._random):
                self._break()
            if any(rules.of(Kind.SWALLOW, flow)) or self._is_dropped(frame):
                return
        if self._keeps:
            self._proxy.keep(flow, frame)
        now = trio.current_time()
        self._due = max(self._due, now + rules.delay_seconds(flow, self._random))
        await self._send.send((self._due, frame))

    async def _write(self, scope: trio.CancelScope) -> None:
        async for due, frame in self._waiting:
            await trio.sleep_until(due)
            await self._proxy.wait_open(self._flow)
            rate = self._rules.rate_bytes(self._flow)
            if rate:
                await trio.sleep(len(frame) / rate)
            if self._rules.rules:
                frame = await self._mangled(frame)
            await self._sink.send_all(frame)
            self._proxy.frames += 1
        scope.cancel()

    async def _mangled(self, frame: bytes) -> bytes:
        if self._rules.strikes_once(Kind.CORRUPT, self._flow):
            at = self._random.randrange(4, len(frame))
            changed = bytes([frame[at] ^ 1 << self._random.randrange(8)])
            return frame[:at] + changed + frame[at + 1 :]
        if self._rules.strikes_once(Kind.CUT, self._flow):
            await self._sink.send_all(frame[: self._random.randrange(1, len(frame))])
            self._break()
        return frame

    def _is_dropped(self, frame: bytes) -> bool:
        rules = list(self._rules.of(Kind.DROP, self._flow))
        if not rules:
            return False
        kinds = rules[0].kinds
        if frame[KIND_AT] == FrameKind.SNAPSHOT:
            is_hit = MessageKind.SNAPSHOT in kinds
        elif frame[KIND_AT] == FrameKind.RAFT:
            size = int.from_bytes(frame[12:16], "little")
            header = unpack(RaftHeader, frame[FIXED_BYTES : FIXED_BYTES + size])
            is_hit = header.kind in kinds
        else:
            is_hit = False
        rules[0].struck += is_hit
        self._rules.effects += is_hit
        return is_hit

    def _break(self) -> None:
        self._proxy.broken += 1
        raise Broken


async def _first_frames(stream: trio.abc.Stream, splitter: Splitter) -> list[bytes]:
    while True:
        data = await stream.receive_some(65_536)
        if not data:
            raise Broken
        frames = splitter.feed(data)
        if frames:
            return frames


def _reset(stream: trio.SocketStream) -> None:
    """Close with a reset, so that the other end sees a broken connection, not an orderly end."""
    with suppress(OSError, trio.ClosedResourceError):
        linger = struct.pack("ii", 1, 0)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    with suppress(OSError):
        stream.socket.close()
