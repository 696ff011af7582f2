"""A connection in memory, for the client's tests."""

from collections import deque

import anyio
import anyio.lowlevel


class Pipe:
    """One end of a connection in memory."""

    def __init__(self) -> None:
        self.other: Pipe = self
        self._inbox: deque[bytes] = deque()
        self._event = anyio.Event()
        self.is_closed = False

    @classmethod
    def pair(cls) -> tuple["Pipe", "Pipe"]:
        one, two = cls(), cls()
        one.other, two.other = two, one
        return one, two

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.is_closed:
            raise anyio.ClosedResourceError
        if self.other.is_closed:
            raise anyio.BrokenResourceError
        self.other._inbox.append(item)
        self.other._event.set()

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while not self._inbox:
            if self.is_closed:
                raise anyio.ClosedResourceError
            if self.other.is_closed:
                raise anyio.EndOfStream
            self._event = anyio.Event()
            await self._event.wait()
        await anyio.lowlevel.checkpoint()
        data = self._inbox.popleft()
        if len(data) > max_bytes:
            self._inbox.appendleft(data[max_bytes:])
        return data[:max_bytes]

    def close(self) -> None:
        self.is_closed = True
        self._event.set()
        self.other._event.set()

    async def aclose(self) -> None:
        self.close()
        await anyio.lowlevel.checkpoint()
