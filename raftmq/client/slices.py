"""Messages of one call as slices of their decoded batches, by which columns are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from raftmq.batch import Batch
from raftmq.errors import CorruptRecord, UnreadableBatch
from raftmq.machine.queue_numbers import QUEUE_MASK

T = TypeVar("T")


class Slice(NamedTuple):
    """Neighbouring messages of one batch."""

    batch: Batch
    """The batch, decoded and checked."""
    start: int
    """Position of the first message in the batch."""
    stop: int
    """Position after the last one."""
    queue_number: int
    """The cluster-wide number of the queue."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Messages of one topic."""

    topic: str
    """The topic's name."""
    parts: list[Slice]
    """The batches, in order."""

    def __len__(self) -> int:
        return sum(part.stop - part.start for part in self.parts)

    def each(self, read: Callable[[Slice], T]) -> list[T]:
        """The results of `read` for each of `parts`, in order.

        Raises:
            UnreadableBatch: `read` raised `CorruptRecord`.
        """
        results = []
        for part in self.parts:
            try:
                results.append(read(part))
            except CorruptRecord as error:
                base, count = part.batch.base_offset, len(part.batch)
                raise unreadable(error, self.topic, part.queue_number, base, count) from None
        return results


def unreadable(
    error: CorruptRecord, topic: str, queue_number: int, base: int, count: int
) -> UnreadableBatch:
    """The error, with the offset of the batch and the offset after it."""
    queue = queue_number & QUEUE_MASK
    return UnreadableBatch(error, topic=topic, queue=queue, offset=base, next_offset=base + count)
