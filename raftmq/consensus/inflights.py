"""The window of append messages that were sent and not yet acknowledged.

Each one is remembered by the index of its last record and its bytes. An acknowledgement
of index i frees all windows that end at or below i, since a follower acknowledges prefixes.

Invariants:
- Indexes are added in rising order.
- The window is full when it holds `messages_max` messages, or `bytes_max` bytes or more.

Sources: etcd-io/raft's tracker.Inflights; TCP's sliding window.
"""

from collections import deque


class Inflights:
    """A bounded queue of (last index, bytes). It is state: one per follower."""

    __slots__ = ("_queue", "bytes", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._queue: deque[tuple[int, int]] = deque()
        self.bytes = 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, index: int, size_bytes: int) -> None:
        """Remember a sent message that ends at `index`. The window must not be full."""
        assert not self.is_full(), "an append was sent past the in-flight limit"
        assert not self._queue or self._queue[-1][0] < index, "in-flight indexes must rise"
        self._queue.append((index, size_bytes))
        self.bytes += size_bytes

    def free_to(self, index: int) -> None:
        """Forget the messages that end at or below `index`."""
        queue = self._queue
        while queue and queue[0][0] <= index:
            self.bytes -= queue.popleft()[1]
        assert queue or not self.bytes, f"an empty window of {self.bytes} bytes"

    def is_full(self) -> bool:
        """Whether no further records may be sent for now."""
        return len(self._queue) >= self.messages_max or self.bytes >= self.bytes_max

    def clear(self) -> None:
        """Forget all."""
        self._queue.clear()
        self.bytes = 0
