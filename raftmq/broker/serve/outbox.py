"""Bytes that wait to be sent on one stream: filled without waiting, emptied in few calls.

Code that answers a request or sends to a peer runs inside a step of the event loop that must not
wait, so it puts the frame's parts here. At the end of the step all parts for a stream leave in one
system call, as far as the socket takes them without waiting; the task in `run` sends the rest, and
parts that are put outside of any step.

    step.begin() ... outbox.put(parts), outbox.put(parts) ... step.end()      one send

Invariants:
- Parts leave in the order in which they were put, whole, or the stream is broken.
- `size` counts the bytes that were put and are not sent; callers of `put` check `size` and stop in
  time. Bytes that were sent are not held.
"""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from raftmq.wire.frame import FramePart
from raftmq.wire.streams import SendsNowait

_JOIN_BYTES_MAX = 256 * 1024
"""Parts are joined up to this size; larger ones go alone, as a copy would cost more than a call."""


class Step:
    """A stretch of the event loop during which parts gather in outboxes, to leave at its end."""

    def __init__(self) -> None:
        self.is_open = False
        """True between `begin` and `end`."""
        self.filled: list[Outbox] = []
        """The outboxes that were empty before parts were put in this step."""

    def begin(self) -> None:
        """From now on, parts that are put wait for the end of the step."""
        self.is_open = True

    def end(self) -> None:
        """Send the parts that were put in the step."""
        self.is_open = False
        filled, self.filled = self.filled, []
        for outbox in filled:
            outbox.push()


def _nothing() -> None:
    """The callback of an outbox whose owner counts no bytes."""


class Outbox:
    """The sending half of a connection."""

    def __init__(
        self,
        stream: trio.abc.SendStream,
        step: Step,
        *,
        on_sent: Callable[[], None] = _nothing,
    ) -> None:
        self._stream = stream
        self._nowait = stream if isinstance(stream, SendsNowait) else None
        self._step = step
        self._on_sent = on_sent
        self._parts: deque[FramePart] = deque()
        self._is_sending = False
        self._wake = trio.Event()
        self._drained = trio.Event()
        self.size = 0
        """Bytes put and not yet sent."""

    def put(self, parts: Sequence[FramePart]) -> None:
        """Send these bytes after those put before; never waits."""
        if not self._step.is_open:
            self._wake.set()
        elif not self._parts:
            self._step.filled.append(self)
        self._parts.extend(parts)
        self.size += sum(map(len, parts))

    def push(self) -> None:
        """Send as much as possible without waiting; the task sends the rest."""
        if not self._parts:
            return
        # While the task is in the middle of a piece, bytes sent here would overtake its rest.
        if self._nowait is not None and not self._is_sending and self.size <= _JOIN_BYTES_MAX:
            data = b"".join(self._parts)
            sent = self._nowait.send_nowait(data)
            self._note_sent(sent)
            self._parts = deque([data[sent:]] if sent < len(data) else ())
        if self._parts:
            self._wake.set()

    async def wait_drained(self) -> None:
        """Wait until all that was put has been sent. Cancelling leaves everything as it was."""
        while self.size:
            if self._drained.is_set():
                self._drained = trio.Event()
            await self._drained.wait()

    def drop(self) -> None:
        """Drop the parts that are not sent: the stream is closed. `on_sent` is not called again."""
        self._parts.clear()
        self.size = 0
        # Mostly a method of the outbox's owner: the two would stay for the garbage collector.
        self._on_sent = _nothing

    async def run(self) -> None:
        """Send until cancelled, or until the stream breaks (`trio.BrokenResourceError`)."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._is_sending = True
            while self._parts:
                piece = self._next_piece()
                await self._stream.send_all(piece)
                self._note_sent(len(piece))
            self._is_sending = False

    def _next_piece(self) -> FramePart:
        """The next parts, small ones joined. Only one piece exists at a time: with all of them, a
        slow stream's bytes would be held twice, and after they were sent."""
        parts = self._parts
        piece = [parts.popleft()]
        size = len(piece[0])
        while parts and size + len(parts[0]) <= _JOIN_BYTES_MAX:
            size += len(parts[0])
            piece.append(parts.popleft())
        return piece[0] if len(piece) == 1 else b"".join(piece)

    def _note_sent(self, size: int) -> None:
        if not size:
            return
        self.size -= size
        self._on_sent()
        if not self.size:
            self._drained.set()
