"""The source in a real Spark: batches, streams, and queries that are interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.nodes import Nodes
from tests.pipeline.source import crashing_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient

Place = tuple[int, int]


def send(mq: "BlockingClient", topic: str, count: int) -> set[Place]:
    """Where the messages are, as queue and offset."""
    before = {q.queue: q.end for q in mq.admin.describe_topic(topic).queues}
    with mq.producer(topic) as p:
        p.send_many(
            bodies=[b"%d" % n for n in range(count)],
            keys=[f"k{n % 50}" for n in range(count)],
            props=[{"n": n} for n in range(count)],
        )
    after = mq.admin.describe_topic(topic).queues
    return {(q.queue, offset) for q in after for offset in range(before[q.queue], q.end)}


@pytest.fixture
def url(nodes: Nodes) -> str:
    """Spark's processes may be older than the cluster, so their environment does not name it."""
    return nodes.url


def places(rows: "DataFrame") -> list[Place]:
    return sorted((row.queue, row.offset) for row in rows.select("queue", "offset").collect())


def run(
    spark: "SparkSession",
    topic: str,
    checkpoint: str,
    each: Callable[[Any, int], None],
    **said: Any,
) -> None:
    """Read to where the topic ends now."""
    source = spark.readStream.format("raftmq").option("subscribe", topic).options(**said)
    writer = source.load().writeStream.foreachBatch(each).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination(100)


def test_stream_repeats_a_micro_batch_whose_completion_was_lost(
    spark: "SparkSession", mq: "BlockingClient", topic: str, url: str, checkpoint: str
) -> None:
    found: dict[int, list[list[Place]]] = {}

    def each(rows: "DataFrame", batch: int) -> None:
        found.setdefault(batch, []).append(places(rows))

    expected = send(mq, topic, 300)
    said = {"url": url, "job": topic, "maxOffsetsPerTrigger": "120"}
    run(spark, topic, checkpoint, each, **said)
    assert sorted(place for (rows,) in found.values() for place in rows) == sorted(expected)
    assert [len(rows) for (rows,) in found.values()] == [120, 120, 60]
    # Spark's own report of a micro-batch comes one late and never for the last.
    assert mq.admin.describe_group(f"spark-{topic}").lag == 0
    for name in ("2", ".2.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
    expected |= send(mq, topic, 30)
    run(spark, topic, checkpoint, each, **said)
    assert found[2][0] == found[2][1]
    assert sorted(place for rows in found.values() for place in rows[0]) == sorted(expected)
    assert mq.admin.describe_group(f"spark-{topic}").lag == 0


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_driver_that_is_killed_goes_on_with_what_it_had_not_completed(
    nodes: Nodes, mq: "BlockingClient", topic: str, tmp_path: Path
) -> None:
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    output.mkdir()
    send(mq, topic, 30)
    # Where `latest` is, before the driver that is to read what follows.
    progress = mq.progress(topic, f"spark-{topic}")
    progress.commit({q.queue: q.end for q in mq.admin.describe_topic(topic).queues})
    expected = send(mq, topic, 400)
    command = [sys.executable, crashing_driver.__file__, topic, str(checkpoint), str(output)]
    environment = {**os.environ, "RAFTMQ_URL": nodes.url}
    driver = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        while driver.poll() is None and len(list(output.glob("*.json"))) < 3:
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    written = len(list(output.glob("*.json")))
    assert 3 <= written < 20, "it was to be killed in its course"
    subprocess.run(command, env=environment, check=True, timeout=300)
    found = [
        tuple(place) for file in output.glob("*.json") for place in json.loads(file.read_text())
    ]
    assert sorted(found) == sorted(expected)
    assert mq.admin.describe_group(f"spark-{topic}").lag == 0
