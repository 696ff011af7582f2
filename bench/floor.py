"""The floor: the same bytes through bare replication, in this language.

Three `floor_server` processes, and the load in this process: it keeps a window of frames in flight,
or one frame, or reads the log back. A frame's body stands for a whole batch: 100 messages of 100
bytes are one body of 10,000 opaque bytes, and one record of its log.

The ratio of a broker's rate to the floor's shows the cost of all that the broker adds (records,
checksums, consensus, queues, offsets).

Left out: encoding and decoding of messages. The floor's client sends one prepared body and, when
reading back, walks the frames without looking into them.
"""

import os
import platform
import socket
import sys
import time
from collections import deque

import trio

from bench.floor_server import (
    HEADER,
    READ,
    RECEIVE_BYTES,
    WRITE,
    FrameWalker,
    Outbox,
    positions,
    prepared,
)
from bench.processes import Clustered
from bench.system import Meter, Sample, Unsupported


class Floor(Clustered):
    """`System` of bare replication."""

    name = "floor"
    version = f"python {platform.python_version()}, trio {trio.__version__}"
    settings = "3 processes, fdatasync on a majority before the ack, no broker logic"

    def available(self) -> str | None:
        """None: the floor needs only trio."""
        return None

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("the floor has no keys: compare with its consume")

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("the floor has no groups: compare with its consume")

    def _start(self) -> None:
        followers = [self._start_server(f"follower{number}") for number in (1, 2)]
        self._port = self._start_server("leader", *followers)

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Frames of `size * batch` bytes, `window` in flight."""
        return trio.run(self._produce, size, batch, window, seconds)

    def single(self, *, size: int, seconds: float) -> Sample:
        """One frame in flight."""
        return trio.run(self._single, size, seconds)

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Read back the log."""
        return trio.run(self._read_back, size, batch, seconds)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Unsupported."""
        raise Unsupported("the floor has no leases: compare with its consume")

    def _start_server(self, name: str, *follower_ports: str) -> str:
        path = self._cluster.folder / f"{name}.bytes"
        command = [sys.executable, "-m", "bench.floor_server", str(path), *follower_ports]
        child = self._cluster.start(command, name=name, is_piped=True)
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the floor's {name} did not start: {self._cluster.log_tail(name)}")
        return port

    def connect(self, kind: bytes) -> socket.socket:
        """A connection to the leader, of one of the kinds of `floor_server`."""
        sock = socket.create_connection(("127.0.0.1", int(self._port)))
        sock.sendall(kind)
        return prepared(sock)

    async def _produce(self, size: int, batch: int, window: int, seconds: float) -> Sample:
        with self.connect(WRITE) as sock:
            load = _Window(sock, os.urandom(size * batch), window)
            return await load.run(Meter(size=size, seconds=seconds), batch)

    async def _single(self, size: int, seconds: float) -> Sample:
        meter = Meter(size=size, seconds=seconds)
        with self.connect(WRITE) as sock:
            stream = trio.socket.from_stdlib_socket(sock)
            answers = positions(stream)
            frame = HEADER.pack(size, 0) + os.urandom(size)
            while not meter.is_over():
                sent_at = time.perf_counter()
                sock.send(frame)
                await anext(answers)
                meter.on_ack(1, sent_at)
        return meter.sample()

    async def _read_back(self, size: int, batch: int, seconds: float) -> Sample:
        meter = Meter(size=size, seconds=seconds, warm_up_seconds=0.0)
        with self.connect(READ) as sock:
            stream = trio.socket.from_stdlib_socket(sock)
            walker, buffer = FrameWalker(), memoryview(bytearray(RECEIVE_BYTES))
            while count := await stream.recv_into(buffer):
                meter.on_delivery(batch * len(walker.feed(buffer[:count])))
                if meter.is_over():
                    break
        return meter.sample(until_last=True)


class _Window:
    """Keeps `window` frames in flight on one connection."""

    def __init__(self, sock: socket.socket, body: bytes, window: int) -> None:
        self._outbox = Outbox(sock)
        self._stream = trio.socket.from_stdlib_socket(sock)
        self._body = body
        self._window = window
        self._sent_at: deque[float] = deque()
        self._sent = 0

    async def run(self, meter: Meter, batch: int) -> Sample:
        """Send until the meter is over, then wait for the outstanding answers."""
        answered = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.run)
            self._send(self._window)
            async for count in positions(self._stream):
                for _ in range(count - answered):
                    meter.on_ack(batch, self._sent_at.popleft())
                if not meter.is_over():
                    self._send(count - answered)
                answered = count
                if answered == self._sent:
                    break
            nursery.cancel_scope.cancel()
        return meter.sample()

    def _send(self, count: int) -> None:
        now = time.perf_counter()
        pieces: list[bytes] = []
        for _ in range(count):
            pieces += (HEADER.pack(len(self._body), self._sent), self._body)
            self._sent += 1
            self._sent_at.append(now)
        self._outbox.put_nowait(*pieces)
