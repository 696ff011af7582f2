"""Reports of a process's state to its starter, in the protocol of systemd's `Type=notify`.

A datagram of `NAME=value` lines goes to the socket that the environment names in `NOTIFY_SOCKET`:
`READY=1` once clients are served, `STATUS=...` for people, `STOPPING=1` at the end. `raftmq up`
listens to its nodes in the same way.

Sources: sd_notify(3), "Standalone Implementations".
"""

import os
import socket
from contextlib import suppress


def notify(*lines: str) -> None:
    """Send the lines; without a listener do nothing. Never blocks, never fails."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    # A leading @ stands for the zero byte of an abstract name.
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto("\n".join([f"MAINPID={os.getpid()}", *lines]).encode(), address)


def parse(datagram: bytes) -> dict[str, str]:
    """The names and values of a datagram.

    >>> parse(b"READY=1\\nSTATUS=leads groups 0, 2")
    {'READY': '1', 'STATUS': 'leads groups 0, 2'}
    """
    pairs = (line.partition("=") for line in datagram.decode(errors="replace").splitlines())
    return {name: value for name, found, value in pairs if found}
