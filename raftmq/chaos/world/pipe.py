"""A connection of the simulated network: two pipes, with bytes on their way and bytes that wait."""

from collections import deque
from collections.abc import Callable

import trio

from raftmq.chaos.world.link import USER_TIMEOUT_SECONDS, Link
from raftmq.chaos.world.process import Process

WINDOW_BYTES = 256 * 1024
"""Bytes that the buffers of both ends hold together."""


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "arrives", "connection", "has_given_up", "held", "inbox", "is_ended", "is_shut", "link",
        "reader", "record", "reverse", "room", "sent", "serial", "size", "swallowed", "tap",
        "timeout", "unheard_since", "window",
    )  # fmt: skip

    def __init__(self, connection: "Connection", link: Link, reverse: Link, serial: int) -> None:
        self.connection = connection
        """The connection of which this is one direction."""
        self.link = link
        """The link along which its bytes travel."""
        self.reverse = reverse
        """The link along which its acknowledgements travel."""
        self.serial = serial
        """Number of the pipe, for the trace."""
        self.inbox: deque[bytes] = deque()
        """Pieces that arrived and that the reader has not taken."""
        self.held: deque[bytes | None] = deque()
        """Pieces sent while the link was blocked; None: the end of the stream."""
        self.size = 0
        """Bytes sent and not taken by the reader."""
        self.sent = 0
        """Bytes sent in all."""
        self.window = WINDOW_BYTES
        """The most that `size` may be."""
        self.is_ended = False
        """The end of the stream has arrived."""
        self.is_shut = False
        """The reader takes no more bytes."""
        self.arrives = 0.0
        """When the last piece so far arrives."""
        self.reader: trio.lowlevel.Task | None = None
        """The task that waits for bytes."""
        self.room = trio.Event()
        """Set when there is room again."""
        self.swallowed = False
        """Bytes have vanished: the connection can only break."""
        self.unheard_since: float | None = None
        """When the first piece was sent that cannot have been acknowledged; None: there is none."""
        self.timeout = USER_TIMEOUT_SECONDS
        """The sending end gives up when nothing was acknowledged for this long."""
        self.has_given_up = False
        """The sending end has given up: it neither sends nor takes bytes."""
        self.record = bytearray()
        """The first bytes that were sent, if the network records."""
        self.tap: Callable[[bytes], bytes] | None = None
        """Gets all bytes that are sent, and returns the bytes that travel."""

    @property
    def back(self) -> "Pipe":
        """The other direction of its connection."""
        connection = self.connection
        return connection.back if self is connection.out else connection.out

    @property
    def is_heard(self) -> bool:
        """Bytes that are sent arrive, and so do their acknowledgements."""
        link, reverse = self.link, self.reverse
        return not (
            link.blocks or link.swallows or reverse.blocks or reverse.swallows
            or self.connection.is_silent
        )  # fmt: skip

    def wake(self) -> None:
        """Wake the task that waits for bytes, and the tasks that wait for room."""
        reader, self.reader = self.reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)
        self.room.set()


class Connection:
    """Two pipes between two processes."""

    def __init__(
        self,
        near: Process,
        far: str,
        serial: int,
        *,
        there: Link,
        home: Link,
        forget: Callable[["Connection"], None],
    ) -> None:
        """`forget` is called when the connection breaks, before both ends learn it."""
        self.near = near
        """The process that opened the connection."""
        self.far: Process | None = None
        """The process that listens at the other end."""
        self.ends = near.machine.name, far
        """Names of the machines of both ends."""
        self.out = Pipe(self, there, home, 2 * serial)
        """From the process that opened the connection."""
        self.back = Pipe(self, home, there, 2 * serial + 1)
        """To the process that opened the connection."""
        self.is_accepted = False
        """The process that listens has taken its far end out of the backlog."""
        self.is_broken = False
        """The connection was reset, and both ends know."""
        self.is_silent = False
        """One end lost power: no bytes come, and no reset comes."""
        self._forget = forget

    def reset(self) -> None:
        """Break it: both ends learn at once."""
        if not self.is_broken:
            self.is_broken = True
            self._forget(self)
            self.out.wake()
            self.back.wake()
