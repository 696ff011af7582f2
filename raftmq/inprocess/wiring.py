"""Connections inside one process: the caller gets one end of a socket pair, the listener the other.

    client's loop ── dial ──> Switchboard ── the other end ──> the node's loop ── accept

Addresses are mere names: no port is bound, no other process can connect, and no firewall asks.
Each end belongs to one event loop; bytes go through the kernel, so that a loop can sleep until some
come.

Invariants:
- An end that is not accepted is closed, so that its caller gets an error.
- An address without a listener refuses, as a closed port does.
"""

import socket
import threading

import anyio
import anyio.lowlevel
import trio

from raftmq.broker.system_world import RealWorld
from raftmq.broker.tcp_stream import TcpStream
from raftmq.client.socket_stream import SocketStream
from raftmq.client.world import RealWorld as RealClientWorld
from raftmq.log.files import RealFiles, RealLock

BACKLOG_MAX = 1024
"""The most connections that wait to be accepted; further ones are refused."""

Address = tuple[str, int]
"""Host and port."""


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections at one address; made on the loop that accepts."""

    def __init__(self, switchboard: "Switchboard", address: Address) -> None:
        self._switchboard = switchboard
        self._token = trio.lowlevel.current_trio_token()
        self._send, self._receive = trio.open_memory_channel[socket.socket](BACKLOG_MAX)
        self.address = address
        """The address at which it listens."""

    def hand_over(self, end: socket.socket) -> None:
        """Take an end of a pair; from any thread. Raises `ConnectionRefusedError`."""
        try:
            self._token.run_sync_soon(self._arrived, end)
        except trio.RunFinishedError as error:
            end.close()
            raise ConnectionRefusedError(f"no node listens at {self.address}") from error

    def _arrived(self, end: socket.socket) -> None:
        try:
            self._send.send_nowait(end)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            end.close()

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return stream_of(await self._receive.receive())

    async def aclose(self) -> None:
        """Stop listening; connections that wait to be accepted are closed."""
        self._switchboard.unplug(self)
        self._send.close()
        try:
            while True:
                self._receive.receive_nowait().close()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            self._receive.close()
        await trio.lowlevel.checkpoint()


class Switchboard:
    """The listeners of this process, by address. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[Address, Listener] = {}

    def listen(self, address: Address) -> Listener:
        """Listen at an address; to be called on the loop that accepts. Raises `OSError`."""
        listener = Listener(self, address)
        with self._lock:
            if address in self._listeners:
                raise OSError(f"a node listens at {address} already")
            self._listeners[address] = listener
        return listener

    def unplug(self, listener: Listener) -> None:
        """Remove a listener; its address refuses from then on."""
        with self._lock:
            if self._listeners.get(listener.address) is listener:
                del self._listeners[listener.address]

    def dial(self, address: Address) -> socket.socket:
        """An end of a new connection. Raises `ConnectionRefusedError`."""
        with self._lock:
            listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"no node listens at {address}")
        ours, theirs = socket.socketpair()
        try:
            listener.hand_over(theirs)
        except ConnectionRefusedError:
            ours.close()
            raise
        return ours


def stream_of(end: socket.socket) -> TcpStream:
    """An end of a pair as a node's stream, on the node's loop."""
    return TcpStream(end)


class _Files(RealFiles):
    """The real files. Locks are remembered: the system frees them only when the process ends."""

    def __init__(self) -> None:
        self.locks: list[RealLock] = []

    def lock(self, folder: str) -> RealLock:
        """As `RealFiles.lock`."""
        self.locks.append(super().lock(folder))
        return self.locks[-1]


class NodeWorld(RealWorld):
    """The world of a node in a thread: the real disk and clock, and a switchboard."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__()
        self._switchboard = switchboard
        self.files = self._files = _Files()

    def release(self) -> None:
        """Release the locks of a node that has ended."""
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
    """The world of a client of nodes in threads, on trio and asyncio."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__()
        self._switchboard = switchboard

    async def connect(self, host: str, port: int) -> SocketStream:
        """Dial."""
        await anyio.lowlevel.checkpoint()
        return SocketStream(self._switchboard.dial((host, port)))
