"""Rows out of an archive: as a DataFrame, a queue's in order, or the one of a message's id.

    from raftmq.pipeline import archive
    archive.read(spark, "lake", since=datetime(2026, 11, 20, tzinfo=UTC)).count()
    archive.get("lake", "10003-2a").body

`read` reads only files that the manifest names at the call; a compaction meanwhile leaves these
files in place for its grace. `get` needs no Spark, and reads the row groups that may hold the
message, as a rule one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.client.message import QUEUE_BITS, QUEUE_MASK, parse_id
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import DDL, arrow_schema

from .manifest import File, Range, Version, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Archived(NamedTuple):
    """An archived message; its fields are those of a client's `Message`, with properties as
    text."""

    topic: str
    """The topic's name."""
    queue: int
    """The queue within the topic."""
    offset: int
    """The offset in the queue."""
    id: str
    """The id, as receipts and consumers show it."""
    timestamp: int
    """When the leader stored it, milliseconds since 1970."""
    key: str | None
    """The key; None: it has none."""
    tag: str | None
    """The tag; None: it has none."""
    props: Mapping[str, str]
    """The properties."""
    body: bytes
    """The content."""


def get(archive: str | Path, message_id: str) -> Archived | None:
    """The message of an id; None: the archive does not have it.

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no id.
        PipelineError: there is no archive, no topic of the id in it, or a file can't be read.
    """
    number, offset = parse_id(message_id)
    state, queue = load(Path(archive)), number & QUEUE_MASK
    topics = {id_: name for name, id_ in state.topics.items()}
    topic = topics.get(number >> QUEUE_BITS)
    if topic is None:
        known = ", ".join(f"{name} ({id_ << QUEUE_BITS:x}-...)" for id_, name in topics.items())
        fix = f"it holds {known}" if known else "archive something first"
        raise PipelineError(f"the topic of {message_id} is not in the archive", fix)
    part = Range(queue, offset, offset + 1)
    for batch in rows_of(Path(archive), state.files, topic, part):
        (row,) = batch.to_pylist()
        moment = microseconds(row["timestamp"]) // 1000
        props, place = dict(row["props"]), (topic, queue, offset, message_id, moment)
        return Archived(*place, row["key"], row["tag"], props, row["body"])
    return None


def read(
    spark: "SparkSession",
    archive: str | Path,
    *,
    topics: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "DataFrame":
    """The archive's rows, `raftmq.pipeline.rows`, in no order.

    Args:
        spark: a session; its workers must see the archive's folder.
        archive: the folder.
        topics: only of these; None: of all.
        since: only messages stored then or later; with a zone.
        until: only messages stored before; with a zone.

    Raises:
        PipelineError: there is no archive, or a topic is not in it.
    """
    folder = Path(archive)
    state = load(folder)
    check_known(state, topics)
    files = between(state.files, topics=topics, since=since, until=until)
    paths = [str((folder / file.path).absolute()) for file in files]
    reader = spark.read.schema(DDL)
    frame = reader.parquet(*paths) if paths else spark.createDataFrame([], DDL)
    if since is not None:
        frame = frame.where(frame.timestamp >= since)
    if until is not None:
        frame = frame.where(frame.timestamp < until)
    return frame


def check_known(state: Version, topics: Iterable[str] | None) -> None:
    """Refuse topics that the archive does not have.

    Raises:
        PipelineError: it names the topic, and those that there are.
    """
    for topic in topics or ():
        if topic not in state.topics:
            known = ", ".join(sorted(state.topics))
            fix = f"it holds {known}: name one of these" if known else "archive something first"
            raise PipelineError(f"topic {topic} is not in the archive", fix)


def between(
    files: Iterable[File],
    *,
    topics: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[File]:
    """The files that may hold rows of these topics in [since, until)."""
    first = microseconds(since) if since is not None else -(2**63)
    end = microseconds(until) if until is not None else 2**63
    return [
        file
        for file in files
        if (topics is None or file.topic in topics) and file.last >= first and file.first < end
    ]


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    assert moment.tzinfo is not None, "a time without a zone is ambiguous"
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + moment.microsecond


def rows_of(
    archive: Path, files: Iterable[File], topic: str, part: Range
) -> Iterator[pa.RecordBatch]:
    """A queue's rows of [start, end), in the order of their offsets; a row group at a time.

    Args:
        archive: its folder.
        files: of one state of the archive; their ranges don't overlap.
        topic: the queue's topic.
        part: the queue, and a range of offsets; offsets that no file has are passed over.

    Raises:
        PipelineError: a file can't be read.
    """
    for file, found in files_of(files, topic, part):
        with opened(archive, file) as parquet:
            for group in groups_with(parquet, found):
                rows = parquet.read_row_group(group, columns=arrow_schema().names)
                yield from _only(rows, found)


def files_of(files: Iterable[File], topic: str, part: Range) -> list[tuple[File, Range]]:
    """The files that hold rows of this part, and the ranges in them, in the order of offsets."""
    found = []
    for file in files:
        if file.topic != topic:
            continue
        for queue, start, end in file.ranges:
            start, end = max(start, part.start), min(end, part.end)
            if queue == part.queue and start < end:
                found.append((file, Range(queue, start, end)))
    return sorted(found, key=lambda each: each[1].start)


def opened(archive: Path, file: File) -> pq.ParquetFile:
    """The file, opened for reading.

    Raises:
        PipelineError: it is missing, or is no Parquet file.
    """
    try:
        return pq.ParquetFile(archive / file.path)
    except FileNotFoundError:
        raise PipelineError(f"{file.path} is missing", _VERIFY) from None
    except (pa.ArrowException, OSError) as error:
        raise PipelineError(f"{file.path} is damaged: {error}", _VERIFY) from error


_VERIFY = "`raftmq pipeline archive verify DIR` lists all damage; restore files from a copy"


def groups_with(parquet: pq.ParquetFile, part: Range) -> list[int]:
    """The row groups that may hold rows of this part, by their statistics."""
    names = parquet.schema_arrow.names
    queue, offset = names.index("queue"), names.index("offset")
    found = []
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        queues, offsets = group.column(queue).statistics, group.column(offset).statistics
        if queues.min <= part.queue <= queues.max and (
            offsets.min < part.end and part.start <= offsets.max
        ):
            found.append(number)
    return found


def _only(rows: pa.Table, part: Range) -> Iterator[pa.RecordBatch]:
    for batch in rows.to_batches():
        queues, offsets = np.asarray(batch["queue"]), np.asarray(batch["offset"])
        wanted = (queues == part.queue) & (offsets >= part.start) & (offsets < part.end)
        chosen = batch if wanted.all() else batch.filter(pa.array(wanted))
        if chosen.num_rows:
            yield chosen
