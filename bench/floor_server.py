"""The floor's server: replicate bytes to a majority's disks, and nothing else.

One of three processes. The *leader* takes frames from a client, passes what it received at once
to its disk thread and to both followers, and answers when a frame is on two disks. A *follower*
writes what it receives and answers with the position it has made durable.

    client --frames--> leader --the same bytes--> follower 1, follower 2
                         |  disk thread               | disk thread
    client <--count----- 2 of 3 durable <--position---+

The log is one stream of bytes, and every state is a position in the stream: no frame is copied,
joined or parsed, the leader only walks the length prefixes to find the ends of frames.

| field of a frame | bytes | meaning |
|---|---|---|
| length | 4 | of the body |
| sequence | 8 | the client's, opaque here |
| body | length | opaque |

All integers are little-endian. An answer to a client is eight bytes: frames durable so far on
this connection. A follower's answer is eight bytes: bytes durable in all.

Why the floor is fast, the largest gain first: large receives, one write and one fdatasync for all
waiting data, sends tried at once on the socket before any task is woken, cumulative answers, one
long-lived disk thread that reports through `run_sync_soon`.

Invariants:
- A frame is answered only when fdatasyncs on two of the three disks cover the frame.
- A failed write or fdatasync ends the process.

Left out: terms, elections, CRCs, catching up, more than one client at a time, bounds on what a
client may send (ours keeps a window). The floor is the limit that a broker's logic is measured
against, so it has no such logic.
"""

import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import trio

HEADER = struct.Struct("<IQ")
POSITION = struct.Struct("<Q")
RECEIVE_BYTES = 1 << 20
READ_BYTES = 1 << 20
WRITE = b"W"
READ = b"R"
# The kernel refuses more pieces in one writev or sendmsg (IOV_MAX).
_PIECES_MAX = 1024


class FrameWalker:
    """Finds where frames end in a stream that arrives in arbitrary pieces.

    >>> walker = FrameWalker()
    >>> frame = HEADER.pack(3, 1) + b"abc"
    >>> walker.feed(frame + frame[:2]), walker.feed(frame[2:])
    ([15], [30])
    """

    def __init__(self) -> None:
        self._position = 0
        self._frame_left = 0
        self._header = b""

    def feed(self, piece: bytes | memoryview) -> list[int]:
        """The stream positions, from its start, of all frame ends within `piece`."""
        ends: list[int] = []
        base = self._position
        self._position += len(piece)
        at = self._frame_left
        if self._header:
            taken = HEADER.size - len(self._header)
            self._header += bytes(piece[:taken])
            if len(self._header) < HEADER.size:
                return ends
            at = taken + HEADER.unpack(self._header)[0]
            self._header = b""
            if at <= len(piece):
                ends.append(base + at)
        elif 0 < at <= len(piece):
            ends.append(base + at)
        self._frame_left = self._walk(piece, at, base, ends)
        return ends

    def _walk(self, piece: bytes | memoryview, at: int, base: int, ends: list[int]) -> int:
        size = len(piece)
        unpack, header_bytes = HEADER.unpack_from, HEADER.size
        while at + header_bytes <= size:
            at += header_bytes + unpack(piece, at)[0]
            if at <= size:
                ends.append(base + at)
        if at < size:
            self._header = bytes(piece[at:])
            return 0
        return at - size


class Outbox:
    """Bytes to send on one socket: offered to the kernel at once, queued if the socket is full.

    Offering first saves a task switch for each send, a third of a small message's latency.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[bytes | memoryview] = deque()
        self._is_full = trio.Event()

    def put_nowait(self, *pieces: bytes | memoryview) -> None:
        """Send these pieces after all earlier ones."""
        is_idle = not self._queue
        self._queue.extend(pieces)
        if is_idle:
            self._offer()

    async def run(self) -> None:
        """Send the queued bytes when the socket is writable. Cancelled when the connection ends."""
        while True:
            await self._is_full.wait()
            self._is_full = trio.Event()
            while self._queue:
                await trio.lowlevel.wait_writable(self._sock)
                self._offer()

    def _offer(self) -> None:
        queue = self._queue
        while queue:
            pieces = [queue[i] for i in range(min(len(queue), _PIECES_MAX))]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                self._is_full.set()
                return
            while sent:
                size = len(queue[0])
                if sent < size:
                    queue[0] = memoryview(queue[0])[sent:]
                    break
                queue.popleft()
                sent -= size


class Disk:
    """An append-only file behind one thread: all waiting data goes into one write and one sync.

    `on_durable(position)` runs in the trio loop after each sync.
    """

    def __init__(self, path: Path, on_durable: Callable[[int], None]) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        self._on_durable = on_durable
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self.append_nowait = self._queue.put
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        position = 0
        while True:
            pieces = [self._queue.get()]
            try:
                while len(pieces) < _PIECES_MAX:
                    pieces.append(self._queue.get_nowait())
            except Empty:
                pass
            try:
                written = os.writev(self.file, pieces)
                os.fdatasync(self.file)
            except OSError as error:
                print(f"floor: the disk failed: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            assert written == sum(map(len, pieces)), "short write: the disk is full"
            position += written
            self._token.run_sync_soon(self._on_durable, position)


class Leader:
    """Takes frames, replicates them, answers when two of three disks hold them."""

    def __init__(self, path: Path, followers: list[socket.socket]) -> None:
        self._disk = Disk(path, lambda position: self._on_durable(0, position))
        self._durable = [0] * (len(followers) + 1)
        self._followers = followers
        self._links = [Outbox(each) for each in followers]
        self._received = 0
        self._ends: deque[int] = deque()
        self._answered = 0
        self._client: Outbox | None = None

    async def run_links(self) -> None:
        """Move bytes to the followers and positions back, until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, (sock, link) in enumerate(zip(self._followers, self._links, strict=True)):
                nursery.start_soon(link.run)
                nursery.start_soon(self._hear_follower, number + 1, sock)

    async def serve(self, sock: socket.socket) -> None:
        """Serve one client until it closes the connection; its first byte is `WRITE` or `READ`."""
        stream = trio.socket.from_stdlib_socket(sock)
        kind = await stream.recv(1)
        if kind == WRITE:
            await self._take_frames(sock, stream)
        elif kind == READ:
            await self._read_back(stream)

    async def _take_frames(self, sock: socket.socket, stream: trio.socket.SocketType) -> None:
        client = Outbox(sock)
        walker, start = FrameWalker(), self._received
        self._ends.clear()
        self._answered, self._client = 0, client
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            while data := await stream.recv(RECEIVE_BYTES):
                self._ends.extend(start + end for end in walker.feed(data))
                self._received += len(data)
                self._disk.append_nowait(data)
                for link in self._links:
                    link.put_nowait(data)
            nursery.cancel_scope.cancel()
        self._client = None

    def _on_durable(self, member: int, position: int) -> None:
        self._durable[member] = position
        committed = sorted(self._durable)[len(self._durable) // 2]
        ends, answered = self._ends, self._answered
        while ends and ends[0] <= committed:
            ends.popleft()
            answered += 1
        if answered > self._answered and self._client is not None:
            self._answered = answered
            self._client.put_nowait(POSITION.pack(answered))

    async def _hear_follower(self, member: int, sock: socket.socket) -> None:
        stream = trio.socket.from_stdlib_socket(sock)
        async for position in positions(stream):
            self._on_durable(member, position)

    async def _read_back(self, stream: trio.socket.SocketType) -> None:
        # A page-cached pread of this size takes 0.1 ms: cheaper than a switch to a thread.
        at, end = 0, sorted(self._durable)[len(self._durable) // 2]
        while at < end:
            data = memoryview(os.pread(self._disk.file, min(READ_BYTES, end - at), at))
            at += len(data)
            while data:
                data = data[await stream.send(data) :]


async def positions(stream: trio.socket.SocketType):  # type: ignore[no-untyped-def]
    """The last eight-byte count of each receive: counts are cumulative, so the last is enough."""
    rest = b""
    while data := await stream.recv(65536):
        rest += data
        whole = len(rest) // POSITION.size * POSITION.size
        if whole:
            yield POSITION.unpack_from(rest, whole - POSITION.size)[0]
            rest = rest[whole:]


async def follow(path: Path, sock: socket.socket) -> None:
    """Follow the leader at the other end of `sock` until it closes the connection."""
    leader = Outbox(sock)
    disk = Disk(path, lambda position: leader.put_nowait(POSITION.pack(position)))
    stream = trio.socket.from_stdlib_socket(sock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        while data := await stream.recv(RECEIVE_BYTES):
            disk.append_nowait(data)
        nursery.cancel_scope.cancel()


def prepared(sock: socket.socket) -> socket.socket:
    """The same socket, non-blocking and without Nagle's delay."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def main(path: Path, follower_ports: list[int]) -> None:
    """Run a leader of the followers at these ports, or a follower if there are none.

    Prints the loopback port once the process listens on it.
    """
    listener = trio.socket.from_stdlib_socket(socket.create_server(("127.0.0.1", 0)))
    print(listener.getsockname()[1], flush=True)
    if not follower_ports:
        connection, _ = await listener.accept()
        await follow(path, prepared(_detached(connection)))
        return
    followers = [prepared(socket.create_connection(("127.0.0.1", p))) for p in follower_ports]
    leader = Leader(path, followers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run_links)
        while True:
            connection, _ = await listener.accept()
            nursery.start_soon(leader.serve, prepared(_detached(connection)))


def _detached(connection: trio.socket.SocketType) -> socket.socket:
    return socket.socket(fileno=connection.detach())


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
