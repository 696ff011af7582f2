"""Random batches and random changes of subscriptions."""

from collections.abc import Sequence
from random import Random
from typing import Any

from raftmq.batch import Batch, encode
from tests.filters.expressions import row

TAGS = ["paid", "shipped", "lost", "x", "it's"]


def batch_of(rows: Sequence[dict[str, Any]], tags: Sequence[str | None] | None = None) -> Batch:
    """A batch of messages with these properties and tags."""
    sealed = encode([b""] * len(rows), props=rows, tags=tags)
    return Batch.decode(sealed.to_bytes(queue=1))


def random_batch(
    random: Random, count: int
) -> tuple[Batch, list[tuple[dict[str, Any], str | None]]]:
    """A batch, and its messages one by one."""
    rows = [row(random) for _ in range(count)]
    if random.random() < 0.3:
        # All messages have it, so the column has no bitmap.
        for each in rows:
            each["a"] = random.choice([1, 2, 5])
    tags = [random.choice([None, *TAGS]) for _ in range(count)]
    return batch_of(rows, tags), list(zip(rows, tags, strict=True))
