"""Two drivers at once, and a query that is asked for all there is."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.source import connection
from raftmq.pipeline.source.options import parse
from raftmq.pipeline.source.stream import StreamReader
from tests.pipeline.nodes import Nodes
from tests.pipeline.source import second_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient

WAIT_SECONDS = 100
Place = tuple[int, int]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node: no leader changes here."""
    with Nodes(1) as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_URL", nodes.url)
        yield nodes


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    yield
    connection.close_all()


def send(mq: "BlockingClient", topic: str, count: int) -> None:
    with mq.producer(topic) as p:
        p.send_many(bodies=[b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])


def everything(mq: "BlockingClient", topic: str) -> list[Place]:
    """All that was sent, as queue and offset."""
    queues = mq.admin.describe_topic(topic).queues
    return [(q.queue, offset) for q in queues for offset in range(q.end)]


def wait(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < until, "it was waited for in vain"
        time.sleep(0.02)


def written(folder: Path) -> dict[int, list[Place]]:
    """Micro-batch → what a driver wrote under its number."""
    files = folder.glob("*.json")
    return {int(f.stem): [(q, n) for q, n in json.loads(f.read_text())] for f in files}


def all_of(batches: dict[int, list[Place]]) -> list[Place]:
    """All rows of the micro-batches, sorted."""
    return sorted(place for rows in batches.values() for place in rows)


@contextmanager
def second(nodes: Nodes, *words: str) -> Iterator[None]:
    """Another driver as a process of its own; at the end nothing of it is left."""
    command = [sys.executable, second_driver.__file__, *words]
    environment = {**os.environ, "RAFTMQ_URL": nodes.url}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_of_two_drivers_without_a_job_one_ends_and_numbers_hold_the_same_rows(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    ours, others, checkpoint = tmp_path / "ours", tmp_path / "others", str(tmp_path / "checkpoint")
    ours.mkdir()
    others.mkdir()
    is_held, goes_on = Event(), Event()

    def keep(rows: "DataFrame", batch: int) -> None:
        if batch == 1:
            is_held.set()
            assert goes_on.wait(WAIT_SECONDS)
        second_driver.keep(rows, batch, ours)

    source = spark.readStream.format("raftmq").option("subscribe", topic).option("url", nodes.url)
    writer = source.load().writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    send(mq, topic, 20)
    query = writer.start()
    try:
        wait(lambda: query.lastProgress is not None)
        send(mq, topic, 30)
        assert is_held.wait(WAIT_SECONDS)
        with second(nodes, topic, checkpoint, str(others)):
            wait(lambda: 1 in written(others))
            send(mq, topic, 40)
            wait(lambda: 2 in written(others))
            goes_on.set()
            with pytest.raises(StreamingQueryException) as caught:
                query.awaitTermination(WAIT_SECONDS)
            send(mq, topic, 10)
            # A micro-batch may take a part of what is sent at once.
            wait(lambda: all_of(written(ours) | written(others)) == everything(mq, topic))
    finally:
        goes_on.set()
        query.stop()
    assert "make sure only one streaming job runs on a specific checkpoint" in str(caught.value)
    # The micro-batch that both did is the same one, and the driver that ended did no more.
    assert written(ours).keys() == {0, 1}
    assert sorted(written(others)) == list(range(1, len(written(others)) + 1))
    assert len(written(others)) >= 3
    assert written(ours)[1] == written(others)[1]
    # Nothing was written twice or too much after the wait, either.
    assert all_of(written(ours) | written(others)) == everything(mq, topic)


def test_older_driver_of_a_job_plans_no_more_once_there_is_a_newer_one(
    mq: "BlockingClient", topic: str
) -> None:
    found = parse({"subscribe": topic, "job": topic})
    older, newer = (StreamReader(found, found.columns) for _ in range(2))
    send(mq, topic, 10)
    start = older.latestOffset(older.initialOffset(), ReadAllAvailable())
    assert older.latestOffset(start, ReadAllAvailable()) == start
    # Both have come to the same place and wait there.
    assert newer.latestOffset(start, ReadAllAvailable()) == start
    assert older.latestOffset(start, ReadAllAvailable()) == start
    send(mq, topic, 10)
    with pytest.raises(PipelineError, match=f"another driver runs job '{topic}'"):
        older.latestOffset(start, ReadAllAvailable())
    assert newer.latestOffset(start, ReadAllAvailable()) != start


def test_query_that_has_processed_all_available_has_all_rows(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, checkpoint: str
) -> None:
    source = spark.readStream.format("raftmq").option("subscribe", topic).option("url", nodes.url)
    rows = source.option("maxOffsetsPerTrigger", 70).load().select("queue", "offset")
    writer = rows.writeStream.format("memory").queryName("all_available")
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        for count in (200, 1):
            send(mq, topic, count)
            query.processAllAvailable()
            kept = spark.table("all_available").collect()
            assert sorted((row.queue, row.offset) for row in kept) == everything(mq, topic)
    finally:
        query.stop()
