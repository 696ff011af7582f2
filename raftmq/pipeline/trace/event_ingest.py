"""Events of the logs into Parquet, and the hours that they concern.

The workers write the rows as they read them, and send the driver notes of what the rows were about
(`Note`). The driver makes the next `State` from the notes.

Invariants:
- A file depends on the records alone; a task that is repeated writes the same file again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raftmq.client.admin.events import SWEEPING
from raftmq.client.message import QUEUE_BITS, QUEUE_MASK
from raftmq.pipeline.source.events import COLUMNS, Span, to_json

from .files import HourFiles, hours_in
from .folder import EVENTS, Hour, State
from .timelines import ends_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

STORED, TOUCHED, SWEPT, TRIMMED, COUNTED = "stored", "touched", "swept", "trimmed", "counted"


class Note(NamedTuple):
    """A worker's note about the rows that it wrote."""

    kind: str
    """One of the words above."""
    hour: str
    """The hour of the messages that were stored or touched; empty for other kinds."""
    place: str
    """`topic id/queue`, of trims `topic id/queue/attachment`."""
    low: int
    """The first offset; of `counted`, the number of rows."""
    high: int
    """The offset after the last one."""


NOTE = "kind string, hour string, place string, low bigint, high bigint"
"""A note as Spark's schema."""

Ranges = dict[str, list[tuple[int, int, str]]]
"""By `topic id/queue`: which messages were stored in which hour, in order."""


def gather(
    spark: "SparkSession", url: str, folder: Path, state: State, wanted: list[Span]
) -> tuple[State, int]:
    """Read these records, and write their events; returns the next state, and the rows written.

    The files count once that state is saved.
    """
    start = {span.partition_group: span.start for span in wanted}
    end = {span.partition_group: span.end for span in wanted}
    source = spark.read.format("raftmq").option("table", "events").option("url", url)
    source = source.option("startingOffsets", _json(start)).option("endingOffsets", _json(end))
    cores = spark.sparkContext.defaultParallelism
    rows = source.option("minPartitions", str(cores)).load()
    known, run = ranges_of(state), state.runs

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        notes: set[Note] = set()
        count = 0
        root = folder / EVENTS
        with HourFiles(root, run=run, part=context.partitionId(), column="timestamp") as files:
            for batch in batches:
                files.write(batch)
                notes.update(notes_of(batch, known))
                count += batch.num_rows
        yield _batch([*sorted(notes), Note(COUNTED, "", "", count, 0)])

    found = [Note(*row) for row in rows.mapInArrow(write, NOTE).collect()]
    count = sum(note.low for note in found if note.kind == COUNTED)
    after = {**state.next, **to_json(end)}
    return replace(noted(state, found), runs=run + 1, next=after), count


def _json(indexes: dict[int, int]) -> str:
    import json

    return json.dumps(to_json(indexes))


def _batch(notes: list[Note]) -> "pa.RecordBatch":
    import pyarrow as pa

    columns: dict[str, Any] = dict(zip(Note._fields, zip(*notes, strict=True), strict=True))
    kinds = [pa.string()] * 3 + [pa.int64()] * 2
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], kind) for name, kind in zip(Note._fields, kinds, strict=True)],
        names=list(Note._fields),
    )


def ranges_of(state: State) -> Ranges:
    """Which messages were stored when, by queue."""
    found: Ranges = {}
    for hour, known in state.hours.items():
        for place, (low, high) in known.ranges.items():
            found.setdefault(place, []).append((low, high, hour))
    for each in found.values():
        each.sort()
    return found


def notes_of(batch: "pa.RecordBatch", known: Ranges) -> Iterator[Note]:
    """Notes of what the events of a batch are about."""
    import pyarrow.compute as pc

    assert batch.schema.names == list(COLUMNS)
    topic_ids, queues = batch["topic_id"].to_numpy(), batch["queue"].to_numpy()
    starts = batch["offset"].to_numpy()
    ends = ends_of(batch)
    stored = np.asarray(pc.equal(batch["what"], "stored"))
    sweeping = np.asarray(pc.is_in(batch["what"], value_set=_words(SWEEPING)))
    for place, rows in _by_queue(topic_ids, queues, np.flatnonzero(~stored & ~sweeping)):
        yield from _touched(place, starts[rows], ends[rows], known.get(place, []))
    hours = hours_in(batch, "timestamp").dictionary_encode()
    codes = hours.indices.to_numpy()
    for place, rows in _by_queue(topic_ids, queues, np.flatnonzero(stored)):
        for code in np.unique(codes[rows]).tolist():
            some = rows[codes[rows] == code]
            hour = hours.dictionary[code].as_py()
            yield Note(STORED, hour, place, int(starts[some].min()), int(ends[some].max()))
    for row in np.flatnonzero(sweeping).tolist():
        # Sweeping events are rare, so a loop will do: a reset, or a segment that retention drops.
        place = f"{topic_ids[row]}/{queues[row]}"
        if batch["what"][row].as_py() == "trimmed":
            place = f"{place}/{batch['attachment'][row].as_py()}"
            yield Note(TRIMMED, "", place, 0, int(ends[row]))
        else:
            yield Note(SWEPT, "", place, int(starts[row]), int(ends[row]))


def _words(words: tuple[str, ...]) -> "pa.Array":
    import pyarrow as pa

    return pa.array(words)


def _by_queue(topic_ids: Any, queues: Any, rows: Any) -> Iterator[tuple[str, Any]]:
    """Rows by queue."""
    numbers = topic_ids[rows] << QUEUE_BITS | queues[rows]
    for number in np.unique(numbers).tolist():
        yield f"{number >> QUEUE_BITS}/{number & QUEUE_MASK}", rows[numbers == number]


def _touched(place: str, starts: Any, ends: Any, known: list[tuple[int, int, str]]) -> list[Note]:
    """A note for each hour whose messages these runs are about."""
    lows = np.array([low for low, _, _ in known], np.int64)
    highs = np.array([high for _, high, _ in known], np.int64)
    first = np.searchsorted(highs, starts, side="right")
    last = np.searchsorted(lows, ends, side="left")
    marks = np.bincount(first, minlength=len(known) + 1) - np.bincount(
        np.maximum(first, last), minlength=len(known) + 1
    )
    hours = np.flatnonzero(np.cumsum(marks)[: len(known)] > 0).tolist()
    return [Note(TOUCHED, known[at][2], place, 0, 0) for at in hours]


def noted(state: State, notes: Iterable[Note]) -> State:
    """The state with these notes: new hours and messages, and hours to be built."""
    hours = {hour: dict(known.ranges) for hour, known in state.hours.items()}
    trims, stale = dict(state.trims), set(state.stale)
    notes = list(notes)
    for note in notes:
        if note.kind == STORED:
            ranges = hours.setdefault(note.hour, {})
            low, high = ranges.get(note.place, [note.low, note.high])
            ranges[note.place] = [min(low, note.low), max(high, note.high)]
            stale.add(note.hour)
        elif note.kind == TOUCHED:
            stale.add(note.hour)
    found = {
        hour: replace(state.hours.get(hour, Hour()), ranges=ranges)
        for hour, ranges in sorted(hours.items())
    }
    known = ranges_of(replace(state, hours=found))
    for note in notes:
        place, low = note.place, note.low
        if note.kind == TRIMMED:
            # Messages below an earlier trim were over already: their hours need no building.
            place, low = place.rpartition("/")[0], trims.get(note.place, 0)
            trims[note.place] = max(low, note.high)
        if note.kind in (TRIMMED, SWEPT):
            stale |= {
                hour
                for first, after, hour in known.get(place, [])
                if first < note.high and low < after
            }
    return replace(state, hours=found, trims=trims, stale=sorted(stale))
