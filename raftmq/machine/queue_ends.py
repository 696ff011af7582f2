"""Where the queues of a data group end, found by queue and by topic."""

from collections.abc import Collection, Iterable

from .queue_numbers import QUEUE_BITS


class QueueEnds(dict[int, int]):
    """Queue → the offset that its next message gets; only queues that had a message.

    It is changed by `place` and `drop` alone. The order is that of the queues' first messages, in
    all and within a topic, so it is alike on every replica.
    """

    def __init__(self, ends: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__(ends)
        self._of_topic: dict[int, dict[int, None]] = {}
        for queue in self:
            self._of_topic.setdefault(queue >> QUEUE_BITS, {})[queue] = None

    def of_topic(self, topic: int) -> Collection[int]:
        """The queues of a topic."""
        return self._of_topic.get(topic, {}).keys()

    def place(self, queue: int, count: int) -> int:
        """Messages are put at the end of a queue; the offset of the first."""
        base = self.get(queue)
        if base is None:
            base = 0
            self._of_topic.setdefault(queue >> QUEUE_BITS, {})[queue] = None
        self[queue] = base + count
        return base

    def drop(self, queue: int) -> None:
        """The queue is deleted."""
        if self.pop(queue, None) is None:
            return
        topic = queue >> QUEUE_BITS
        del self._of_topic[topic][queue]
        if not self._of_topic[topic]:
            del self._of_topic[topic]
