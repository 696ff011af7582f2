"""Rows made up for the tests of archives."""

import pyarrow as pa

from raftmq.pipeline.rows import arrow_schema

NOON = 1_795_262_400_000_000
"""2026-11-21 12:00 UTC, in microseconds."""
HOUR = 3_600_000_000


def rows(
    start: int,
    end: int,
    *,
    queue: int = 0,
    topic: str = "orders",
    first: int = NOON,
    step: int = 1000,
) -> pa.RecordBatch:
    """Rows of offsets [start, end); offset 0 was stored at `first`, the others `step` µs apart."""
    offsets = range(start, end)
    moments = pa.array([first + step * n for n in offsets]).cast(pa.timestamp("us", "UTC"))
    columns = {
        "topic": [topic] * len(offsets),
        "queue": pa.array([queue] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "key": [None if n % 5 == 0 else f"key {n % 7}" for n in offsets],
        "tag": [None if n % 2 else "even" for n in offsets],
        "body": [f"message {n} of {topic} {queue}".encode() for n in offsets],
        "props": pa.array(
            [[("n", str(n)), ("city", "Łódź")] if n % 3 else [] for n in offsets],
            pa.map_(pa.string(), pa.string()),
        ),
        "created": moments,
        "timestamp": moments,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in arrow_schema()]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema())
