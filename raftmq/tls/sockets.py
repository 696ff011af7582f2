"""An encrypted socket with the calls of a plain one that does not block.

    plain socket ── client_hello_follows ──> begin_tls ── handshake_step ... ──> TlsSocket

OpenSSL reads and writes the socket itself, so that bytes are moved once. It encrypts records of up
to 16 KiB. A record that the socket takes in part has to be given again whole, which no caller
knows, so the socket keeps such a record, and its last byte counts as not sent: the caller comes
back with that byte, and by then the record leaves first.

Invariants:
- `send` sends the bytes that it is given, once each and in order, if the caller goes on with the
  first byte that did not count as sent.
- A short read has emptied what OpenSSL holds, as with a plain socket: whoever got fewer bytes than
  asked for may wait for the socket to become readable.

Left out: the closing alert. Frames have lengths, so an end that was cut off is no end of a message.
"""

import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
W = TypeVar("W")

RECORD_BYTES = 16 * 1024
"""The most plain bytes in one record; OpenSSL encrypts longer writes record by record."""

_TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)

_CLIENT_HELLO = 0x16
"""The first byte of a connection under TLS: a record of the handshake."""


class Awaits(Enum):
    """The next event that a handshake waits for."""

    READABLE = "readable"
    WRITABLE = "writable"
    NOTHING = "nothing"
    """The handshake is done."""


class _ConnectedSocket(ssl.SSLSocket):
    """Closes itself where `wrap_socket` finds that the other end has gone: `ssl` only drops it."""

    def getpeername(self) -> Any:
        """As `socket.socket.getpeername`."""
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, "the other end has gone") from error


def client_hello_follows(sock: socket.socket) -> bool:
    """True if the first byte that came begins a handshake, or the other end has closed.

    Raises:
        BlockingIOError: no byte came yet.
        OSError: the connection broke.
    """
    first = sock.recv(1, socket.MSG_PEEK)
    return not first or first[0] == _CLIENT_HELLO


def begin_tls(
    sock: socket.socket, context: ssl.SSLContext, *, host: str | None, is_server: bool
) -> ssl.SSLSocket:
    """Put a connected socket under TLS; its descriptor moves into the result.

    Args:
        sock: connected, and not blocking.
        context: the versions, certificates and authorities.
        host: for a client: the name that the server's certificate must have, if `context` checks.
        is_server: whether this end accepted the connection.

    Raises:
        OSError: the other end has gone; the descriptor is closed.
    """
    context.sslsocket_class = _ConnectedSocket
    return context.wrap_socket(
        sock, server_side=is_server, server_hostname=host, do_handshake_on_connect=False
    )


def handshake_step(sock: ssl.SSLSocket) -> Awaits:
    """Go on with the handshake as far as possible without waiting.

    Raises:
        OSError: the handshake failed (`ssl.SSLError`), or the connection broke.
    """
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return Awaits.READABLE
    except ssl.SSLWantWriteError:
        return Awaits.WRITABLE
    if sock.session_reused:
        raise ssl.SSLError("a resumed session shows no certificate")
    return Awaits.NOTHING


class TlsSocket:
    """A socket whose handshake is done, with the calls of `socket.socket` that streams use."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._socket = sock
        # A record that the socket has not taken whole.
        self._held = b""

    def send(self, data: bytes | memoryview) -> int:
        """Send as much as possible; the number of bytes that count as sent, at least 1 if there are
        any.

        Raises:
            BlockingIOError: no byte counts as sent.
            OSError: the connection broke.
        """
        view = memoryview(data)
        if not view:
            return 0
        if self._held:
            # `data` begins with the last byte of this record.
            self._write(self._held)
            self._held = b""
            return 1
        if len(view) <= RECORD_BYTES:
            return self._send_records(view)
        # Otherwise each record leaves as packets of its own, and wakes the other end.
        self._cork(is_on=True)
        try:
            return self._send_records(view)
        finally:
            self._cork(is_on=False)

    def _send_records(self, view: memoryview) -> int:
        sent = 0
        while sent < len(view):
            record = view[sent : sent + RECORD_BYTES]
            try:
                self._write(record)
            except BlockingIOError:
                self._held = bytes(record)
                sent += len(record) - 1
                break
            except OSError:
                # Records that went out must count; the next call meets the error again.
                if not sent:
                    raise
                break
            sent += len(record)
        if not sent:
            raise BlockingIOError
        return sent

    def recv(self, size: int) -> bytes:
        """Receive up to `size` bytes; none: the other end closed. Raises as `send`."""
        piece = self._read(self._socket.recv, min(size, RECORD_BYTES))
        # Mostly one record that is not full: nothing to join.
        if len(piece) < RECORD_BYTES or size == RECORD_BYTES:
            return piece
        pieces, received = [piece], len(piece)
        # A record that is not full is the last one that its sender had at hand.
        while len(piece) == RECORD_BYTES and received < size:
            try:
                piece = self._read(self._socket.recv, min(size - received, RECORD_BYTES))
            except OSError:
                # Nothing more is there, or the next call meets the error again.
                break
            pieces.append(piece)
            received += len(piece)
        return b"".join(pieces)

    def recv_into(self, room: memoryview) -> int:
        """Fill the beginning of `room`; the number of bytes; 0: the other end closed. Raises as
        `send`."""
        received = 0
        while received < len(room):
            try:
                count = self._read(self._socket.recv_into, room[received:])
            except OSError:
                if received:
                    break
                raise
            received += count
            # As in `recv`.
            if count < RECORD_BYTES:
                break
        return received

    def fileno(self) -> int:
        """The descriptor; -1: the socket is closed."""
        return self._socket.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As `socket.socket.setsockopt`."""
        self._socket.setsockopt(level, option, value)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The verified certificate of the other end, in the form of `ssl`; None: it has shown
        none."""
        return self._socket.getpeercert() or None

    def _cork(self, *, is_on: bool) -> None:
        """Have the system gather what is sent into full packets, where it can."""
        if _TCP_CORK is not None:
            with suppress(OSError):  # No TCP.
                self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_CORK, is_on)

    def _write(self, record: bytes | memoryview) -> None:
        try:
            self._socket.send(record)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError as error:
            raise OSError("the other end wants to negotiate again") from error

    def _read(self, read: Callable[[W], T], wanted: W) -> T:
        try:
            return read(wanted)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError as error:
            # An answer to a change of keys that the other end does not take. No raftmq asks so.
            raise OSError("the other end changes keys and does not read") from error
