"""Retention of a real broker is faster than a stream: an error, or a gap that is written down.

The cluster keeps about 192 KiB of the log, in segments of 64 KiB; so some hundred messages of 4 KB
take away those before them. Each test sends to two queues and reads one of them behind that.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from raftmq.pipeline.archive import manifest
from raftmq.pipeline.archive.gaps import FOLDER
from raftmq.pipeline.archive.job import Settings, run
from raftmq.pipeline.errors import PipelineError, cause_of
from tests.cli.command_line import CommandLine
from tests.pipeline.archive.archives import held
from tests.pipeline.archive.test_verify import findings
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from raftmq.blocking import BlockingClient

KIB = 1024
BODY = os.urandom(4000)
QUEUES = 2
WAIT_SECONDS = 60

Place = tuple[int, int]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node that keeps little."""
    log = {"segment_bytes": 64 * KIB, "retention_bytes": 192 * KIB}
    with Nodes(1, {"log": log}) as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_URL", nodes.url)
        yield nodes


@pytest.fixture
def topic(mq: "BlockingClient", request: pytest.FixtureRequest) -> str:
    """A topic of two queues, named after the test."""
    name: str = request.node.name[5:60]
    mq.admin.create_topic(name, queues=QUEUES)
    return name


def send(mq: "BlockingClient", topic: str, count: int) -> None:
    """Send `count` messages to each queue, five at a time: a batch is never cut in two."""
    with mq.producer(topic) as p:
        for _ in range(count // 5):
            for queue in range(QUEUES):
                p.send_many(bodies=[BODY] * 5, queue=queue)


def overrun(mq: "BlockingClient", topic: str) -> dict[int, int]:
    """Send until retention has taken what was unread so far: queue → what it keeps since."""
    ends = bounds(mq, topic)
    send(mq, topic, 60)
    until = time.monotonic() + WAIT_SECONDS
    while True:
        found = {q.queue: q.earliest for q in mq.admin.describe_topic(topic).queues}
        if all(found[queue] > end for queue, (_, end) in ends.items()):
            return found
        assert time.monotonic() < until, f"retention took too little: {found}, not {ends}"
        time.sleep(0.05)


def bounds(mq: "BlockingClient", topic: str) -> dict[int, tuple[int, int]]:
    """Queue → its first offset and its end."""
    return {q.queue: (q.earliest, q.end) for q in mq.admin.describe_topic(topic).queues}


def everything(mq: "BlockingClient", topic: str) -> list[Place]:
    """All that was ever sent, as queue and offset."""
    return [(queue, n) for queue, (_, end) in bounds(mq, topic).items() for n in range(end)]


def missing(folder: Path) -> list[Place]:
    """All places in a table of gaps, each as often as the table has it."""
    rows = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return [(row["queue"], n) for row in rows for n in range(row["start"], row["end"])]


class Stream:
    """Queries of one checkpoint, whose micro-batches can be held up before they read a row."""

    def __init__(self, spark: "SparkSession", topic: str, folder: Path, **said: Any) -> None:
        reader = spark.readStream.format("raftmq").option("subscribe", topic).options(**said)
        writer = reader.load().writeStream.foreachBatch(self._batch)
        self._writer = writer.option("checkpointLocation", str(folder))
        self.rows: list[Place] = []
        self.holds = False
        self.is_held = Event()
        self.goes_on = Event()

    def _batch(self, rows: "DataFrame", batch: int) -> None:
        if self.holds:
            self.is_held.set()
            assert self.goes_on.wait(WAIT_SECONDS)
        found = rows.select("queue", "offset").collect()
        self.rows += [(row.queue, row.offset) for row in found]

    def start(self, *, holds: bool = False) -> "StreamingQuery":
        """Read to where the topic ends now; if it `holds`, a micro-batch is planned on return."""
        self.holds = holds
        query = self._writer.trigger(availableNow=True).start()
        if holds:
            assert self.is_held.wait(WAIT_SECONDS)
        return query

    def fail(self, query: "StreamingQuery") -> PipelineError:
        """How the query ends."""
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(WAIT_SECONDS)
        return cause_of(caught.value)


def test_stream_fails_and_names_what_retention_took(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, checkpoint: str
) -> None:
    stream = Stream(spark, topic, Path(checkpoint), url=nodes.url, job=topic)
    send(mq, topic, 5)
    query = stream.start(holds=True)
    # Planned and not read: a task finds out.
    kept = overrun(mq, topic)
    stream.goes_on.set()
    assert said(stream.fail(query)) in {gone(topic, queue, 0, 5) for queue in kept}
    # Again with its checkpoint: `earliest` is later by now, and still none is passed in silence.
    assert said(stream.fail(stream.start())) == gone(topic, 0, 0, 5)
    assert stream.rows == []


def said(error: PipelineError) -> str:
    assert error.fix.startswith("keep messages for longer; to go on without them set failOnDataL")
    return error.message


def gone(topic: str, queue: int, start: int, end: int) -> str:
    where = f"queue {queue} of topic '{topic}', offsets {start} to {end - 1}"
    return f"{where} were dropped by retention before they were read"


def test_stream_goes_on_behind_gaps_that_stand_in_the_table(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    gaps = tmp_path / "gaps"
    said = {"url": nodes.url, "failOnDataLoss": "false", "gaps": str(gaps)}
    stream = Stream(spark, topic, tmp_path / "checkpoint", **said)
    send(mq, topic, 5)
    stream.start().awaitTermination(WAIT_SECONDS)
    assert len(stream.rows) == 5 * QUEUES
    send(mq, topic, 20)
    query = stream.start(holds=True)
    planned = {queue: end for queue, (_, end) in bounds(mq, topic).items()}
    # Retention takes all planned messages, and some of the next ones.
    overrun(mq, topic)
    stream.goes_on.set()
    query.awaitTermination(WAIT_SECONDS)
    assert sorted(missing(gaps)) == [(q, n) for q, end in planned.items() for n in range(5, end)]
    stream.start().awaitTermination(WAIT_SECONDS)
    assert len(missing(gaps)) > sum(planned.values()) - 5 * QUEUES
    # Each message was read, or is in the table; none is both, and none twice.
    assert sorted(stream.rows + missing(gaps)) == everything(mq, topic)


def test_archive_fails_or_goes_on_with_skip_lost_and_has_the_gap(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "archive"
    send(mq, topic, 5)
    list(run(spark, folder, Settings((topic,), nodes.url, is_once=True)))
    send(mq, topic, 20)
    overrun(mq, topic)

    def taken() -> int:
        """Number of messages that retention has taken so far; on a busy machine it still grows."""
        return sum(first for first, _ in bounds(mq, topic).values()) - 5 * QUEUES

    least = taken()
    raftmq, words = CommandLine(capsys), ("pipeline", "archive", "run", topic, "--to", str(folder))
    # Without Spark, which would say so only after its start.
    ended = raftmq(*words, "--once")
    assert ended.code == 1
    told = re.search(r"retention took (\d+) messages before archiving", ended.stderr)
    assert told is not None, ended.stderr
    assert least <= int(told[1]) <= taken()
    assert "--skip-lost goes on with what is left" in ended.stderr
    planned = raftmq.ok(*words, "--skip-lost", "--dry-run", "-o", "json").json
    assert least <= sum(each["lost"] for each in planned) <= taken()
    list(run(spark, folder, Settings((topic,), nodes.url, is_once=True, skip_lost=True)))
    assert {q: end for q, (_, end) in bounds(mq, topic).items()} == {
        queue: manifest.load(folder).end(topic, queue) for queue in range(QUEUES)
    }
    rows = [(row["queue"], row["offset"]) for row in held(folder).to_pylist()]
    assert least <= len(missing(folder / FOLDER)) <= taken()
    assert sorted(rows + missing(folder / FOLDER)) == everything(mq, topic)
    assert findings(folder, is_deep=True) == []
