"""Attempts of tasks, as Spark makes them, without Spark."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raftmq.blocking import BlockingClient
from raftmq.pipeline.sink.options import Options
from raftmq.pipeline.sink.task import Work, Written, write


class Died(Exception):
    """The task was killed."""


def rows_of(numbers: Sequence[int], **more: Any) -> pa.RecordBatch:
    """Rows with a body and a key for each number."""
    columns: dict[str, Any] = {
        "body": [b"%d" % n for n in numbers],
        "key": [f"k{n % 5}" for n in numbers],
    }
    return pa.RecordBatch.from_pydict(columns | more)


def dying(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These rows, and then the task is killed."""
    yield from batches
    raise Died


def attempt(
    mq: BlockingClient, batches: Any, *, name: str = "q", partition: int = 0, label: int = 1,
    topic: str = "orders", partitions: int = 0,
) -> Written:  # fmt: skip
    """One attempt of one task: of a stream, or, with `partitions`, of a named write."""
    named = "named" if partitions else ""
    options = Options(topic, "", timeout=20, write_id=named, partitions=partitions)
    return write(mq, Work(name, partition, label, is_cut_once=False), options, batches)


def stored(mq: BlockingClient, topic: str = "orders") -> list[bytes]:
    """All bodies, sorted."""
    ends = {q.queue: q.end for q in mq.admin.describe_topic(topic).queues}
    bodies: list[bytes] = []
    with mq.consumer(topic) as consumer:
        while len(bodies) < sum(ends.values()):
            bodies += consumer.fetch(10_000, wait=10).bodies
    return sorted(bodies)
