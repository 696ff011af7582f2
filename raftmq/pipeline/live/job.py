"""The job: a stream of messages, summed up batch by batch, counted in windows, and shown.

| in the folder | what |
|---|---|
| `live.db` | the windows and how far each queue is counted (`store`) |
| `windows/*.parquet` | closed windows (`files`) |
| `checkpoint/` | Spark's |
| `lock` | locked as long as the job runs |

A batch is done in this order, and a crash between any two steps is mended by the next start:

1. Spark notes the batch's offsets, and sums it up. *Crash: it does so again.*
2. The windows and offsets are kept in one transaction. *Crash: Spark repeats the batch; its rows
   are counted already, as `places` shows, and nothing changes.*
3. The page is drawn. *Crash: the next batch draws it again.*
4. Files of windows that closed are written, and their rows sent to the topic. *Crash: the next
   start does it again; files have the same names and content, the topic drops what it has.*
5. Spark notes the batch as done.

So the windows do not depend on Spark's checkpoint: if it is lost, messages are read again, and not
counted again.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from . import files, partials
from .board import Board
from .page import Picture
from .server import Feed
from .store import Final, Store
from .windows import Added, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from raftmq.client import TopicDescription

POLL_SECONDS = 0.5
STARTS_MAX = 5
"""Starts of a query whose Python does not come up in time."""
_SLOW_START = "Python worker failed to connect back"
STORE = "live.db"
"""The store's name in the folder."""

Publish = Callable[[str, int, list[Final]], None]
"""Sends groups of closed windows somewhere: the store's name, the step in which they closed, and
the groups. After a crash it is called again with equal arguments; steps only grow."""


class Done(NamedTuple):
    """The result of one batch, for a display of progress."""

    messages: int
    """Messages that came, late and unusable ones included."""
    late: int
    unusable: int
    closed: int
    """Windows that closed."""
    age: float
    """Seconds from the storing of the batch's oldest message until the batch was shown."""


@dataclass(frozen=True, slots=True)
class Source:
    """The cluster that messages are read from, and how."""

    url: str
    """The cluster."""
    start: str = "earliest"
    """Where a new board begins: `earliest`, `latest`, or JSON as the source takes it."""
    job: str = "live"
    """The consumer group `spark-<job>` holds the progress."""
    batch_messages_max: int = 500_000
    """Messages of one batch: bounds a batch's time and memory when there is a backlog."""

    def topics(self, names: Iterable[str]) -> dict[str, "TopicDescription"]:
        """Descriptions of these topics, as they are now.

        Raises:
            Rejected: there is no such topic.
            Unavailable: the cluster does not answer.
        """
        from raftmq import blocking

        with blocking.connect(self.url) as mq:
            return {name: mq.admin.describe_topic(name) for name in names}

    def stream(self, spark: "SparkSession", board: Board) -> "DataFrame":
        """The board's topics as a stream."""
        reader = spark.readStream.format("raftmq").options(
            url=self.url,
            subscribe=",".join(board.topics),
            startingOffsets=self.start,
            job=self.job,
            columns=",".join(partials.needed(board)),
            maxOffsetsPerTrigger=str(self.batch_messages_max),
        )
        return reader.load()


class Live:
    """A board that is counted; `foreachBatch` calls its `batch`."""

    def __init__(
        self,
        board: Board,
        folder: Path,
        topics: Mapping[str, int],
        *,
        feed: Feed | None = None,
        publish: Publish | None = None,
        tell: Callable[[Done], None] = lambda _: None,
    ) -> None:
        self._board = board
        self._folder = folder
        self._feed = feed
        self._send = publish
        self._tell = tell
        self._lock = threading.Lock()
        self._is_stopped = False
        self._summing = partials.Summing(board)
        self._store = Store(folder / STORE, board, topics)
        self._windows = self._store.windows()
        self._picture = Picture(board, self._store.closed(-(2**62), 2**62))
        self._draw(0, 0)
        # Windows that closed before a crash may not have been published.
        self._publish()

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def stop(self) -> None:
        """Wait for the batch that is under way; later batches are refused until `resume`."""
        with self._lock:
            self._is_stopped = True

    def resume(self) -> None:
        """Take batches again."""
        self._is_stopped = False

    def batch(self, frame: "DataFrame", _: int) -> None:
        """Count one micro-batch of `partials.columns`, durably, show and publish it."""
        with self._lock:
            # The error keeps Spark from noting the batch as done: the next start reads it again.
            if self._is_stopped:
                raise RuntimeError("stopped")
            self._batch(frame)

    def _batch(self, frame: "DataFrame") -> None:
        summed = self._summing.sum(frame)
        repeated = self._windows.repeated(summed.partials)
        # Rows that were counted before a crash must not count twice: they are left out.
        if repeated:
            summed = self._summing.sum(frame, repeated)
        if summed.partials:
            self._step(self._windows.add(summed.partials), summed.created, summed.stored)

    def flush(self) -> None:
        """Close all windows: no more messages are waited for."""
        added = self._windows.flush()
        if added.closed:
            self._step(added, 0, 0)

    def _step(self, added: Added, created: int, stored: int) -> None:
        self._store.commit(self._windows, added)
        messages = added.counted + added.late + added.unusable
        self._picture.close(added.closed)
        self._picture.count(messages)
        self._draw(created, stored)
        age = time.time() - stored / 1_000_000 if stored else 0.0
        self._tell(Done(messages, added.late, added.unusable, len(added.closed), age))
        if added.closed:
            self._publish()

    def _draw(self, created: int, stored: int) -> None:
        if self._feed is not None:
            facts = self._store.facts
            self._feed.show(
                self._picture.draw(self._windows, facts, created=created, stored=stored)
            )

    def _publish(self) -> None:
        steps: dict[int, list[int]] = {}
        for step, start in self._store.unpublished():
            steps.setdefault(step, []).append(start)
        starts = [start for found in steps.values() for start in found]
        files.write(self._store, self._board, self._folder / "windows", starts)
        length = self._windows.length
        for step, found in steps.items():
            if self._send is not None:
                rows = [row for start in found for row in self._store.closed(start, start + length)]
                self._send(self._store.name, step, [row for row in rows if row.group is not None])
            # Noted last: after a crash before it the next start publishes the step again.
            self._store.publish(step)


class Planned(NamedTuple):
    """The messages to read of one queue."""

    topic: str
    queue: int
    start: int
    """The next offset to count."""
    end: int
    """The offset after its last message now."""


def plan(source: Source, board: Board, folder: Path, into: str | None = None) -> list[Planned]:
    """The messages that a job would read now; changes nothing.

    Args:
        source: the cluster that messages are read from.
        board: the board to count.
        folder: the job's folder, which need not exist.
        into: the topic for closed windows, which has to be there.

    Raises:
        PipelineError: the folder is another board's, or another topic's of this name.
        Rejected: there is no such topic.
        Unavailable: the cluster does not answer.
    """
    if into in board.topics:
        raise PipelineError(f"windows of {into} would go into {into} itself", "name another topic")
    found = source.topics(board.topics)
    if into is not None:
        source.topics([into])
    counted: Mapping[Place, int] = {}
    if (folder / STORE).exists():
        store = Store(folder / STORE, board, {name: topic.id for name, topic in found.items()})
        counted = store.windows().places
        store.close()
    return [
        Planned(name, queue.queue, max(first, counted.get((name, queue.queue), 0)), queue.end)
        for name, topic in found.items()
        for queue in topic.queues
        for first in [queue.end if source.start == "latest" and not counted else queue.earliest]
    ]


def run(
    stream: "DataFrame",
    board: Board,
    folder: Path,
    topics: Mapping[str, int],
    *,
    is_once: bool = False,
    every: float = 0.0,
    feed: Feed | None = None,
    publish: Publish | None = None,
    tell: Callable[[Done], None] = lambda _: None,
) -> None:
    """Count a stream of rows until it is stopped (Ctrl-C), or with `is_once` until its present end.

    Args:
        stream: rows as `Source.stream` gives them.
        board: the board to count.
        folder: the job's folder; made if it does not exist.
        topics: the number of each topic in its cluster.
        is_once: count what there is now, then close all windows and return.
        every: seconds between the starts of two batches, at least; 0: one after the other.
        feed: gets the page's data.
        publish: gets closed windows, which also go into files.
        tell: called after each batch.

    Raises:
        PipelineError: the board does not fit the rows, the folder is another board's, or another
            process has it.
        KeyboardInterrupt: Ctrl-C, once the batch under way is done; the next start goes on.
    """
    with ExitStack() as stack:
        asked = stack.enter_context(_interruption())
        partials.check(stream.sparkSession, board)
        stack.enter_context(locked(folder))
        live = Live(board, folder, topics, feed=feed, publish=publish, tell=tell)
        stack.callback(live.close)
        writer = partials.columns(stream, board).writeStream.foreachBatch(live.batch)
        writer = writer.option("checkpointLocation", str((folder / "checkpoint").resolve()))
        if is_once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
        for starts_left in reversed(range(STARTS_MAX)):
            live.resume()
            query = writer.start()
            try:
                if _ended(query, asked, starts_left):
                    break
            finally:
                _stop(live, query)
        if is_once:
            live.flush()


def _ended(query: "StreamingQuery", asked: threading.Event, starts_left: int) -> bool:
    """Wait until the query ends; False if it is to be started again.

    Raises:
        KeyboardInterrupt: `asked` was set.
    """
    from pyspark.errors import StreamingQueryException

    while query.isActive:
        if asked.wait(POLL_SECONDS):
            raise KeyboardInterrupt
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        # Spark gives a source's Python 10 seconds to come up, which no setting changes; on a
        # machine that is busy it may take longer. Nothing of a batch was begun then.
        if starts_left and _SLOW_START in str(error):
            return False
        raise
    return True


def _stop(live: Live, query: "StreamingQuery") -> None:
    # The batch under way ends first. The refusal of a later batch is intended, and py4j would
    # report it as an error on the terminal.
    logger = logging.getLogger("py4j")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        live.stop()
        query.stop()
    finally:
        logger.setLevel(level)


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets.

    Spark's own handler calls Java from within the call that is under way, and breaks that call.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder, which is made if it is missing."""
    durable.make_folders(folder)
    fix = "end it first, or name another folder with --out"
    with durable.locked(folder / "lock", busy=f"another process counts in {folder}", fix=fix):
        yield
