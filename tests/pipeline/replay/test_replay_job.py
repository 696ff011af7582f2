"""Replays into a real cluster: the archived messages, in order, once."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.client import Message
from raftmq.pipeline.replay.job import run
from raftmq.pipeline.replay.plan import ReplayRequest, find
from tests.pipeline.archive.archives import archived
from tests.pipeline.archive.rowsets import NOON, rows
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient


def received(mq: "BlockingClient", topic: str) -> list[Message]:
    """All messages of the topic, by queue and offset."""
    found: list[Message] = []
    for queue, each in enumerate(mq.admin.describe_topic(topic).queues):
        with mq.consumer(topic, queues=[queue], start="earliest") as consumer:
            end = len(found) + each.end - each.earliest
            while len(found) < end:
                found.extend(consumer.fetch(1000, wait=5))
    return found


def places(messages: list[Message]) -> list[tuple[int, int, int]]:
    """(Queue, original queue, original offset) of each."""
    return [
        (m.queue, int(str(m.props["orig_queue"])), int(str(m.props["orig_offset"])))
        for m in messages
    ]


def once(
    spark: "SparkSession", archive: Path, request: ReplayRequest, nodes: Nodes, **how: float
) -> int:
    planned = find(archive, request, nodes.url)
    going = run(spark, archive, planned, url=nodes.url, **how)  # type: ignore[arg-type]
    return sum(progress.rows for progress in going)


def test_replay_is_what_was_archived(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    archived(tmp_path, rows(10, 400), rows(0, 100, queue=5))
    request = ReplayRequest("orders", topic, where="cast(body as string) NOT LIKE 'message 13 of%'")
    assert once(spark, tmp_path, request, nodes, rows_max=300) == 490
    found = received(mq, topic)
    # Queue 5 of the recording goes to queue 1 of four; each is in its order.
    expected = [(0, 0, n) for n in range(10, 400) if n != 13]
    expected += [(1, 5, n) for n in range(100) if n != 13]
    assert places(found) == expected
    by_place = dict(zip(places(found), found, strict=True))
    for batch in (rows(10, 400), rows(0, 100, queue=5)):
        for row in batch.to_pylist():
            if row["offset"] == 13:
                continue
            m = by_place[row["queue"] % 4, row["queue"], row["offset"]]
            assert (m.body, m.key, m.tag) == (row["body"], row["key"], row["tag"])
            assert dict(m.props) == dict(row["props"]) | {
                "orig_topic": "orders",
                "orig_queue": str(row["queue"]),
                "orig_offset": str(row["offset"]),
                "orig_timestamp": str(NOON // 1000 + row["offset"]),
                "replay_id": find(tmp_path, request, nodes.url).plan.id,
            }
    # The same command again sends nothing.
    assert find(tmp_path, request, nodes.url).is_done
    assert once(spark, tmp_path, request, nodes) == 0
    assert len(received(mq, topic)) == 488


def test_speed_is_that_of_the_recording(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    # Half a minute is recorded, and sent in three seconds or more.
    archived(tmp_path, rows(0, 31, step=1_000_000))
    started = time.time()
    assert once(spark, tmp_path, ReplayRequest("orders", topic), nodes, speed=10) == 31
    found = received(mq, topic)
    assert places(found) == [(0, 0, n) for n in range(31)]
    # The n-th is due n tenths of a second after the first look at the clock.
    assert [n for n in range(31) if found[n].timestamp < started * 1000 + n * 100 - 1] == []
