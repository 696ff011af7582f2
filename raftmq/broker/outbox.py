"""Bytes that wait to be sent on one stream: filled without waiting, emptied by one task.

Whoever answers a request or sends to a peer runs inside a step of the event loop that must not
wait. It puts the frame's parts here; the one task in `run` joins small parts and sends. So many
answers that become ready together leave in one system call.

Invariants:
- Parts leave in the order in which they were put, whole, or the stream is broken.
- `size` counts what was put and is not sent; whoever puts looks at it and stops in time.
"""

from collections.abc import Callable, Sequence

import trio

_JOIN_BYTES_MAX = 256 * 1024
"""Parts are joined up to this size; larger ones go alone, as a copy would cost more than a call."""


class Outbox:
    """The sending half of a connection."""

    def __init__(
        self, stream: trio.abc.SendStream, *, on_sent: Callable[[], None] = lambda: None
    ) -> None:
        self._stream = stream
        self._on_sent = on_sent
        self._parts: list[bytes] = []
        self._wake = trio.Event()
        self._drained = trio.Event()
        self.size = 0
        """Bytes put and not yet sent."""

    def put(self, parts: Sequence[bytes]) -> None:
        """Send these bytes after those put before; never waits."""
        self._parts.extend(parts)
        self.size += sum(map(len, parts))
        self._wake.set()

    async def wait_drained(self) -> None:
        """Wait until all that was put has been sent. Cancelling leaves everything as it was."""
        while self.size:
            if self._drained.is_set():
                self._drained = trio.Event()
            await self._drained.wait()

    async def run(self) -> None:
        """Send until cancelled, or until the stream breaks (`trio.BrokenResourceError`)."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            parts, self._parts = self._parts, []
            for piece in _pieces(parts):
                await self._stream.send_all(piece)
                self.size -= len(piece)
                self._on_sent()
            if not self.size:
                self._drained.set()


def _pieces(parts: list[bytes]) -> list[bytes]:
    """The parts with small neighbours joined."""
    if sum(map(len, parts)) <= _JOIN_BYTES_MAX:
        return [b"".join(parts)]
    pieces: list[bytes] = []
    small: list[bytes] = []
    small_size = 0
    for part in parts:
        if small and small_size + len(part) > _JOIN_BYTES_MAX:
            pieces.append(b"".join(small))
            small, small_size = [], 0
        small.append(part)
        small_size += len(part)
    pieces.append(b"".join(small))
    return pieces
