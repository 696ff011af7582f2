"""Connections inside one process: dialler and listener each get one end of a socket pair.

    client's loop ── dial ──> Switchboard ── the other end ──> the node's loop ── accept

Addresses are names without meaning: nothing is bound, no other process can connect,
and no firewall asks. Each end belongs to one event loop; bytes go through the kernel, which is what
lets a loop sleep until there are some.

Invariants:
- An end that was dialled and not accepted is closed, so that the dialler finds out.
- An address without a listener refuses, as a closed port does.
"""

import socket
import threading

import anyio
import anyio.lowlevel
import trio

from raftmq.broker.system_world import RealWorld, TcpStream
from raftmq.client.world import RealWorld as RealClientWorld
from raftmq.log.files import RealFiles, RealLock

BACKLOG_MAX = 1024
"""Connections that may wait to be accepted; then dialling is refused."""

Address = tuple[str, int]
"""Host and port."""


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections to one address; made on the loop that accepts."""

    def __init__(self, switchboard: "Switchboard", address: Address) -> None:
        self._switchboard = switchboard
        self._token = trio.lowlevel.current_trio_token()
        self._send, self._receive = trio.open_memory_channel[socket.socket](BACKLOG_MAX)
        self.address = address
        """Where it listens."""

    def hand_over(self, end: socket.socket) -> None:
        """Take an end of a pair; from any thread. Raises `ConnectionRefusedError`."""
        try:
            self._token.run_sync_soon(self._arrived, end)
        except trio.RunFinishedError as error:
            end.close()
            raise ConnectionRefusedError(f"{self.address} no longer listens") from error

    def _arrived(self, end: socket.socket) -> None:
        try:
            self._send.send_nowait(end)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            end.close()

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return stream_of(await self._receive.receive())

    async def aclose(self) -> None:
        """Stop listening; what waits to be accepted is closed."""
        self._switchboard.unplug(self)
        self._send.close()
        try:
            while True:
                self._receive.receive_nowait().close()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            self._receive.close()
        await trio.lowlevel.checkpoint()


class Switchboard:
    """Who listens where, within this process. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[Address, Listener] = {}

    def listen(self, address: Address) -> Listener:
        """Listen at an address; to be called on the loop that accepts. Raises `OSError`."""
        listener = Listener(self, address)
        with self._lock:
            if address in self._listeners:
                raise OSError(f"{address} is in use already")
            self._listeners[address] = listener
        return listener

    def unplug(self, listener: Listener) -> None:
        """Stop listening there."""
        with self._lock:
            if self._listeners.get(listener.address) is listener:
                del self._listeners[listener.address]

    def dial(self, address: Address) -> socket.socket:
        """An end of a new connection. Raises `ConnectionRefusedError`."""
        with self._lock:
            listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"nothing listens at {address}")
        ours, theirs = socket.socketpair()
        try:
            listener.hand_over(theirs)
        except ConnectionRefusedError:
            ours.close()
            raise
        return ours


def stream_of(end: socket.socket) -> TcpStream:
    """An end of a pair as a node's stream, on the node's loop."""
    return TcpStream(trio.SocketStream(trio.socket.from_stdlib_socket(end)))


class _Files(RealFiles):
    """The real files. Locks are remembered: the system only frees those of a process that ends."""

    def __init__(self) -> None:
        self.locks: list[RealLock] = []

    def lock(self, folder: str) -> RealLock:
        """As `RealFiles.lock`."""
        self.locks.append(super().lock(folder))
        return self.locks[-1]


class NodeWorld(RealWorld):
    """What lies outside a node in a thread: the real disk and clock, and a switchboard."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__()
        self._switchboard = switchboard
        self.files = self._files = _Files()

    def release(self) -> None:
        """Free the folders of a node that is gone."""
        for lock in self._files.locks:
            lock.close()

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """Listen on the switchboard."""
        await trio.lowlevel.checkpoint()
        return self._switchboard.listen((host, port))

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Dial."""
        await trio.lowlevel.checkpoint()
        return stream_of(self._switchboard.dial((host, port)))


class ClientWorld(RealClientWorld):
    """What lies outside a client of nodes in threads; on trio and asyncio alike."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__()
        self._switchboard = switchboard

    async def connect(self, host: str, port: int) -> "End":
        """Dial."""
        await anyio.lowlevel.checkpoint()
        return End(self._switchboard.dial((host, port)))


class End:
    """An end of a pair as a client's stream; see `raftmq.client.world.Stream`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._has_more = False

    async def send(self, item: bytes) -> None:
        """Send all of it. Cancelling leaves a part of it sent."""
        rest = memoryview(item)
        while True:
            try:
                rest = rest[self._open().send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._open())
            except OSError as error:
                raise anyio.BrokenResourceError from error
            else:
                if not rest:
                    return

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """At least one byte. Cancelling loses nothing."""
        while True:
            if self._has_more:
                await anyio.lowlevel.checkpoint()
            else:
                # It would nearly always try in vain if it did not wait first.
                await anyio.wait_readable(self._open())
            try:
                data = self._open().recv(max_bytes)
            except BlockingIOError:
                self._has_more = False
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            # A short read has emptied the socket.
            self._has_more = len(data) == max_bytes
            return data

    async def aclose(self) -> None:
        """Close it; a waiting `send` or `receive` ends with an error."""
        if self._end.fileno() >= 0:
            anyio.notify_closing(self._end)
            self._end.close()
        await anyio.lowlevel.checkpoint()

    def _open(self) -> socket.socket:
        if self._end.fileno() < 0:
            raise anyio.ClosedResourceError
        return self._end
