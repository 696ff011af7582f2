"""How long a TCP socket waits for a silent peer before the connection breaks.

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
from typing import Any

PROBES = 3


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
