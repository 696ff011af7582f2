"""The bound of a producer's buffer, in bytes and in messages. Room is given in order of asking."""

from collections import deque

import anyio

from .settings import ProducerSettings


class _Waiting:
    __slots__ = ("count", "event", "size")

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count
        self.event = anyio.Event()


class SendBuffer:
    """Two budgets taken together. A request larger than a budget fits when the buffer is empty."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._bytes_max = settings.buffer_bytes
        self._messages_max = settings.buffer_messages
        self._waiting: deque[_Waiting] = deque()
        self.bytes_used = 0
        """Bytes taken and not given back."""
        self.messages_used = 0
        """Messages taken and not given back."""

    @property
    def why_full(self) -> str:
        """Error text for a caller without room."""
        used = f"{self.messages_used} messages, {self.bytes_used} bytes"
        return f"the buffer is full ({used}): await flush() first"

    def take_nowait(self, size: int, count: int) -> bool:
        """Take room if it is free and no caller waits for room; else False."""
        if self._waiting or not self._fits(size, count):
            return False
        self.bytes_used += size
        self.messages_used += count
        return True

    async def take(self, size: int, count: int) -> None:
        """Wait for room and take it. Cancelling takes nothing."""
        if self.take_nowait(size, count):
            return
        waiting = _Waiting(size, count)
        self._waiting.append(waiting)
        try:
            await waiting.event.wait()
        except BaseException:
            # Cancelled after `_admit` took the room, which the caller will not use.
            if waiting.event.is_set():
                self.give(size, count)
            else:
                self._waiting.remove(waiting)
                self._admit()
            raise

    def give(self, size: int, count: int) -> None:
        """Give room back, and admit the next callers."""
        self.bytes_used -= size
        self.messages_used -= count
        assert self.bytes_used >= 0
        assert self.messages_used >= 0
        self._admit()

    def _fits(self, size: int, count: int) -> bool:
        if self.messages_used == 0:
            return True
        return (
            self.bytes_used + size <= self._bytes_max
            and self.messages_used + count <= self._messages_max
        )

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size, self._waiting[0].count):
            waiting = self._waiting.popleft()
            self.bytes_used += waiting.size
            self.messages_used += waiting.count
            waiting.event.set()
