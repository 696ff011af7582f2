"""TCP connections as a node's streams, plain or under TLS, and the listener that accepts them.

Reads bypass trio's socket, which tries to read before it waits: nearly always in vain, and the
exception with its layers costs a fifth of the work for a small message.

Under TLS a connection that was accepted is plain until its first byte comes (`TlsStream.secure`):
an open connection without a handshake costs no more than a socket.

Invariants:
- No byte of a stream under TLS is received before the handshake. Plain bytes are sent only to an
  end that itself began without one.
"""

import socket
import ssl
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

import trio

from raftmq.tls.contexts import NodeContexts
from raftmq.tls.names import CertificateName, names_in
from raftmq.tls.sockets import (
    Awaits,
    TlsSocket,
    begin_tls,
    client_hello_follows,
    handshake_step,
)
from raftmq.wire.streams import set_patience

from .world import PlainText

RECEIVE_BYTES = 64 * 1024
"""Bytes of one read if the reader names no limit."""

SMALL_BYTES = 16 * 1024
"""Bytes of one read while little comes at once. A buffer of 256 KiB for each small frame is mapped,
cut down and unmapped by the C library: three system calls and a page fault."""


class TcpStream(trio.abc.Stream):
    """A connection that can also send without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket: socket.socket | TlsSocket = sock
        self._has_more = False
        # True: the last read brought much.
        self._is_busy = False
        self.address = _address_of(sock)
        """See `raftmq.broker.world.Located`."""

    def send_nowait(self, data: bytes) -> int:
        """Send the bytes that the socket takes now; their number.

        A broken connection takes nothing: the next `send_all` or `receive_some` reports it.
        """
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    def give_up_after(self, seconds: float) -> None:
        """See `raftmq.broker.world.Lasting`."""
        set_patience(self._socket, seconds)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio says."""
        await trio.lowlevel.wait_writable(self._open())

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio says."""
        await trio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._open().send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._open())
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As trio says."""
        size = RECEIVE_BYTES if max_bytes is None else max_bytes
        if not self._is_busy:
            size = min(size, SMALL_BYTES)
        while True:
            if self._has_more:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._open())
            try:
                data = self._open().recv(size)
            except BlockingIOError:
                self._has_more = False
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error
            # A short read has emptied the socket.
            self._has_more = len(data) == size
            self._is_busy = len(data) >= SMALL_BYTES
            return data

    async def aclose(self) -> None:
        """Close the connection."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()

    def _open(self) -> socket.socket | TlsSocket:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this stream was closed")
        return self._socket


class NodeTls:
    """The TLS of a node: its contexts, and the line in which handshakes stand."""

    def __init__(self, contexts: NodeContexts) -> None:
        self.contexts = contexts
        """The certificates and authorities."""
        self.turns = trio.Lock()
        """Held for one step of a handshake."""


class TlsStream(TcpStream):
    """A connection between this node and another process under TLS; plain before `secure`."""

    def __init__(self, sock: socket.socket, tls: NodeTls, *, is_server: bool) -> None:
        super().__init__(sock)
        self._plain = sock
        self._tls = tls
        self._is_server = is_server
        self._may_send = self._may_receive = False

    def send_nowait(self, data: bytes) -> int:
        """As `TcpStream`; nothing before `secure`."""
        return super().send_nowait(data) if self._may_send else 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio says, after `secure`; after `PlainText` the bytes go out plain."""
        if not self._may_send:
            raise trio.BrokenResourceError("there was no TLS handshake")
        await super().send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As trio says, after `secure`."""
        if not self._may_receive:
            raise trio.BrokenResourceError("there was no TLS handshake")
        return await super().receive_some(max_bytes)

    async def secure(self) -> frozenset[CertificateName]:
        """See `raftmq.broker.world.Secured`."""
        if self._is_server:
            await self._await_client_hello()
        pair = self._tls.contexts.pair
        try:
            names = await self._shake_hands(pair.accepting if self._is_server else pair.connecting)
        # A certificate of a strange authority may hold a name that is no text.
        except (OSError, ValueError) as error:
            raise trio.BrokenResourceError(f"the TLS handshake failed: {error}") from error
        if pair is not self._tls.contexts.pair:
            # The certificate was judged by the lists before: it may be on the new one.
            raise trio.BrokenResourceError("the certificates changed during the TLS handshake")
        self._may_send = self._may_receive = True
        return names

    async def _shake_hands(self, context: ssl.SSLContext) -> frozenset[CertificateName]:
        sock = begin_tls(self._plain, context, host=None, is_server=self._is_server)
        self._socket = TlsSocket(sock)
        while True:
            # A step takes up to a millisecond. All steps of a node stand in line, so that one turn
            # of the loop has one of them, however many strangers begin a handshake at once.
            async with self._tls.turns:
                awaits = handshake_step(sock)
            match awaits:
                case Awaits.READABLE:
                    await trio.lowlevel.wait_readable(sock)
                case Awaits.WRITABLE:
                    await trio.lowlevel.wait_writable(sock)
                case Awaits.NOTHING:
                    return names_in(self._socket.certificate)

    async def _await_client_hello(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._plain)
            try:
                if client_hello_follows(self._plain):
                    return
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error
            # Bytes that were not read would turn the close into a reset, which may overtake the
            # answer.
            with suppress(OSError):
                self._plain.recv(RECEIVE_BYTES)
            self._may_send = True
            raise PlainText


class TcpListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections; with `tls` they are to be under TLS."""

    def __init__(self, listener: trio.SocketListener, tls: NodeTls | None) -> None:
        self._listener = listener
        self._tls = tls

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        sock = plain_socket(await self._listener.accept())
        return TcpStream(sock) if self._tls is None else TlsStream(sock, self._tls, is_server=True)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()


def _address_of(sock: socket.socket) -> str:
    """The address of the other end, which stands for one machine; empty: it is this machine.

    A machine has 2^64 addresses of IPv6, so those that differ in the last 64 bits are one.
    """
    try:
        name = sock.getpeername()
    except OSError:
        return ""  # The other end is gone already.
    if not isinstance(name, tuple):
        return ""  # A pair of sockets.
    address = ip_address(name[0].partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return ""
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


def plain_socket(stream: trio.SocketStream) -> socket.socket:
    """The socket of a stream, with the options that trio sets: small frames leave at once."""
    return socket.socket(fileno=stream.socket.detach())
