"""One direction of a connection of the simulated network: bytes on their way, bytes that wait."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from raftmq.chaos.world.link import USER_TIMEOUT_SECONDS, Link

if TYPE_CHECKING:
    from raftmq.chaos.world.network import Connection

WINDOW_BYTES = 256 * 1024
"""What the buffers of both ends hold together."""


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "arrives", "connection", "has_given_up", "held", "inbox", "is_ended", "is_shut", "link",
        "reader", "record", "reverse", "room", "sent", "serial", "size", "swallowed", "tap",
        "timeout", "unheard_since", "window",
    )  # fmt: skip

    def __init__(self, connection: "Connection", link: Link, reverse: Link, serial: int) -> None:
        self.connection = connection
        """Whose."""
        self.link = link
        """How it travels."""
        self.reverse = reverse
        """How its acknowledgements travel."""
        self.serial = serial
        """Number of the pipe, for the trace."""
        self.inbox: deque[bytes] = deque()
        """Arrived and not taken."""
        self.held: deque[bytes | None] = deque()
        """Sent while the link was blocked; None: the end."""
        self.size = 0
        """Bytes sent and not taken."""
        self.sent = 0
        """Bytes sent in all."""
        self.window = WINDOW_BYTES
        """The most that `size` may be."""
        self.is_ended = False
        """The end has arrived."""
        self.is_shut = False
        """Its reader takes nothing more."""
        self.arrives = 0.0
        """When the last piece so far arrives."""
        self.reader: trio.lowlevel.Task | None = None
        """Who waits for bytes."""
        self.room = trio.Event()
        """Set when there is room again."""
        self.swallowed = False
        """Bytes have vanished: it can only break."""
        self.unheard_since: float | None = None
        """When the first piece was sent that no acknowledgement can have come for."""
        self.timeout = USER_TIMEOUT_SECONDS
        """The sending end gives up when nothing was acknowledged for this long."""
        self.has_given_up = False
        """The sending end has: it neither sends nor takes anything."""
        self.record = bytearray()
        """The first bytes that were sent, if the network records."""
        self.tap: Callable[[bytes], bytes] | None = None
        """Sees all bytes that are sent and says which of them are to travel."""

    @property
    def back(self) -> "Pipe":
        """The other direction of its connection."""
        connection = self.connection
        return connection.back if self is connection.out else connection.out

    @property
    def is_heard(self) -> bool:
        """What is sent arrives, and so does its acknowledgement."""
        link, reverse = self.link, self.reverse
        return not (
            link.blocks or link.swallows or reverse.blocks or reverse.swallows
            or self.connection.is_silent
        )  # fmt: skip

    def wake(self) -> None:
        """Somebody may be waiting for bytes, or for room."""
        reader, self.reader = self.reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)
        self.room.set()
