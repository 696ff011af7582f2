"""Events made by hand, and a trace of them without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from raftmq.pipeline.source.events import COLUMNS
from raftmq.pipeline.trace.event_ingest import noted, notes_of
from raftmq.pipeline.trace.files import HourFiles
from raftmq.pipeline.trace.folder import EVENTS, TIMELINES, State, built, save, writing
from raftmq.pipeline.trace.hour_build import blocks_of
from raftmq.pipeline.trace.timelines import timelines

KINDS = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def event(index: int, what: str, first: int, count: int | None, **rest: Any) -> dict[str, Any]:
    """A row of the source, of queue 1 of orders; times are 1 s and 10 ms a record."""
    row: dict[str, Any] = {
        "partition_group": 1,
        "index": index,
        "step": 0,
        "term": 1,
        "timestamp": 1_000_000 + index * 10_000,
        "what": what,
        "topic": "orders",
        "topic_id": 3,
        "queue": 1,
        "offset": first,
        "count": count,
        "group": None,
        "attachment": None,
        "producer": None,
        "consumer": None,
        "token": None,
        "attempt": 0,
        "until": None,
    }
    return row | rest


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the source has them."""
    return pa.table(
        {name: pa.array([row[name] for row in rows], KINDS[kind]) for name, kind in COLUMNS.items()}
    )


def kept(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A trace of these events."""
    events = table(rows)
    with writing(folder):
        state = State()
        with HourFiles(folder / EVENTS, run=0, part=0, column="timestamp") as files:
            for batch in events.to_batches():
                files.write(batch)
                state = noted(state, notes_of(batch, {}))
        with HourFiles(folder / TIMELINES, run=1, part=0, column="stored") as files:
            for hour in state.stale:
                for _, _, low, high in blocks_of(state, hour):
                    for batch in timelines(events, low, high).to_batches():
                        files.write(batch)
        save(folder, built(built(state, []), list(state.stale)))
