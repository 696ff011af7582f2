"""Streams of a connection, as both ends need them: an ability to look for, and how long a socket
of TCP waits for a silent peer before the connection breaks.

| option | effect |
|---|---|
| `TCP_USER_TIMEOUT` | breaks the connection if sent bytes are not acknowledged for that long |
| `SO_KEEPALIVE` | probes an idle connection after half of that time, three times until its end |

A system that lacks one of the options keeps its own default there; the others are set.

Sources: RFC 5482; tcp(7). On Linux the user timeout also ends a connection whose receiver keeps its
window shut for that long, so it must be longer than a healthy reader ever pauses.
"""

import socket
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

PROBES = 3


@runtime_checkable
class SendsNowait(Protocol):
    """A stream that can also send without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Send as many bytes as possible without waiting; the number of bytes sent."""


def set_patience(sock: Any, seconds: float) -> None:
    """Set the options on a TCP socket; on one of another kind nothing happens.

    Args:
        sock: a socket, or an object with its `setsockopt`.
        seconds: how long to wait for the peer, at least 1.
    """
    idle = max(1, round(seconds / 2))
    options = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", idle),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", max(1, round(seconds / 2 / PROBES))),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", round(seconds * 1000)),
    )
    for level, name, value in options:
        number = getattr(socket, name, None)
        if number is not None:
            with suppress(OSError):
                sock.setsockopt(level, number, value)
