"""The job that archives: a stream from the source into the archive's sink.

    <archive>/_checkpoint    Spark's, of this query
    <archive>/_manifest      what is archived; it prevails over the checkpoint
    <archive>/_gaps          offsets that retention took first (`skip_lost`)
    <archive>/run.lock       held by the driver

A job that was killed goes on at the next start: Spark repeats the batch that it had not noted as
done, and the tasks leave out rows that the manifest has (`commit`). Without a checkpoint the job
goes on where the manifest ends.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from raftmq.pipeline import durable

from . import checkpoint, gaps
from .commit import check_topics
from .compact import sweep
from .manifest import check_usable, create, newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 1
"""Seconds between two looks at the progress."""
KAFKA_EARLIEST = -2
"""The first kept offset, as the source's options write it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to archive."""

    topics: tuple[str, ...]
    """The topics, at least one."""
    url: str
    """`raftmq://host:port[,host:port...]`."""
    is_once: bool = False
    """True: end once all messages stored at the start are archived; False: go on with new ones."""
    every: float = 10.0
    """Seconds between the beginnings of two batches, unless one takes longer. Each batch makes a
    file a queue and hour."""
    rows_max: int | None = None
    """Messages of a batch; None: all there are."""
    skip_lost: bool = False
    """False: it is an error when retention took messages before they were archived; True: note
    them in the table of gaps and go on."""
    job: str = ""
    """Progress is shown as the consumer group `spark-<job>`; empty: `archive-` and eight digits of
    a hash of the folder's path."""


class Queued(NamedTuple):
    """A queue: the messages that are archived, and those that the cluster keeps."""

    topic: str
    """Name of the topic."""
    queue: int
    """The queue in it."""
    archived: int | None
    """The offset after the last archived one; None: nothing is archived."""
    earliest: int
    """The first offset that the cluster keeps."""
    end: int
    """The offset after the last message."""

    @property
    def start(self) -> int:
        """Where archiving goes on."""
        return self.earliest if self.archived is None else self.archived

    @property
    def lost(self) -> int:
        """Messages that retention took before they were archived."""
        return max(0, self.earliest - self.start)

    @property
    def rows(self) -> int:
        """Messages that are there to be archived."""
        return max(0, self.end - max(self.start, self.earliest))


class Progress(NamedTuple):
    """A batch is archived."""

    batch: int
    """Spark's number of it."""
    rows: int
    """Messages that were read for it."""


def plan(archive: Path, settings: Settings) -> list[Queued]:
    """The work to do, by topic and queue. Changes nothing, and needs no Spark.

    Raises:
        PipelineError: the folder has other files, or a topic is not the one in the archive.
        RaftmqError: the cluster can't be reached, or has no such topic.
    """
    check_usable(archive)
    version = newest(archive)
    found = []
    with raftmq.blocking.connect(settings.url) as mq:
        for topic in settings.topics:
            described = mq.admin.describe_topic(topic)
            check_topics(version, {topic: described.id})
            for queue, each in enumerate(described.queues):
                archived = version.end(topic, queue)
                found.append(Queued(topic, queue, archived, each.earliest, each.end))
    return found


def run(spark: "SparkSession", archive: Path, settings: Settings) -> Iterator[Progress]:
    """Archive, and yield each batch once it is done. Closing the iterator stops the query.

    Args:
        spark: a session; its workers must see the archive's folder.
        archive: its folder, new or an archive.
        settings: what to archive, and how.

    Raises:
        PipelineError: as `plan`; another driver archives to this folder.
        RaftmqError: the cluster can't be reached, or has no such topic.
        StreamingQueryException: the query failed; `cause_of` tells why.
    """
    create(archive)
    busy = f"another driver archives to {archive}"
    with durable.locked(archive / "run.lock", busy=busy):
        queues = plan(archive, settings)
        # Only this driver writes such files now: those that no version names are of a killed one.
        sweep(archive, "b")
        query = _start(spark, archive, settings, queues)
        try:
            yield from _followed(query)
        finally:
            query.stop()


def job_of(archive: Path, settings: Settings) -> str:
    """The name under which progress is shown."""
    if settings.job:
        return settings.job
    path = str(archive.absolute()).encode()
    return f"archive-{blake2b(path, digest_size=4).hexdigest()}"


def _start(
    spark: "SparkSession", archive: Path, settings: Settings, queues: Sequence[Queued]
) -> "StreamingQuery":
    from .sink import NAME, ArchiveSink

    spark.dataSource.register(ArchiveSink)
    reader = spark.readStream.format("raftmq").options(**_source_options(archive, settings, queues))
    with raftmq.blocking.connect(settings.url) as mq:
        ids = {topic: mq.admin.describe_topic(topic).id for topic in settings.topics}
    writer = (
        reader.load()
        .writeStream.format(NAME)
        .queryName(job_of(archive, settings))
        .option("path", str(archive.absolute()))
        .option("topics", json.dumps(ids))
        .option("checkpointLocation", str((archive / checkpoint.FOLDER).absolute()))
    )
    if settings.is_once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(settings.every * 1000)} milliseconds").start()


def _source_options(archive: Path, settings: Settings, queues: Sequence[Queued]) -> dict[str, str]:
    starts: dict[str, dict[str, int]] = {}
    for each in queues:
        start = KAFKA_EARLIEST if each.archived is None else each.archived
        starts.setdefault(each.topic, {})[str(each.queue)] = start
    options = {
        "url": settings.url,
        "subscribe": ",".join(settings.topics),
        # Spark asks for this option only if there is no checkpoint.
        "startingOffsets": json.dumps(starts),
        "failOnDataLoss": str(not settings.skip_lost).lower(),
        "job": job_of(archive, settings),
    }
    if settings.skip_lost:
        options["gaps"] = str((archive / gaps.FOLDER).absolute())
    if settings.rows_max is not None:
        options["maxOffsetsPerTrigger"] = str(settings.rows_max)
    return options


def _followed(query: "StreamingQuery") -> Iterator[Progress]:
    """Each batch of the query that had rows, until it ends."""
    told = -1
    while True:
        # The end is looked at first, so that batches done before it are yielded.
        is_over = query.awaitTermination(LOOK_SECONDS)
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if batch > told:
                told = batch
                if rows:
                    yield Progress(batch, rows)
        if is_over:
            return
