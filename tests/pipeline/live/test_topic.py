"""Closed windows become messages of a topic, each once, and real messages become windows."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.pipeline.live import Source, parse, plan, publisher, run
from raftmq.pipeline.live.store import Final
from raftmq.pipeline.live.topic import messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from tests.pipeline.nodes import Nodes


def test_message_has_the_window_its_groups_and_measures() -> None:
    board = parse({"topics": "t", "window": "500ms", "by": ["tag", "key"], "sum": ["queue as q"]})
    rows = [
        Final(1_500_000, ("a", None), (3, 4)),
        Final(2_000_000, (None, None), (1, float("nan"))),
    ]
    found = messages(rows, board).to_pylist()
    assert [row["key"] for row in found] == ["a/", "/"]
    assert json.loads(found[0]["body"]) == {
        "window_start": "1970-01-01T00:00:01.500Z", "window_end": "1970-01-01T00:00:02.000Z",
        "tag": "a", "key": None, "count": 3, "q": 4,
    }  # fmt: skip
    assert json.loads(found[1]["body"])["q"] is None


def test_topic_becomes_windows_of_another_topic_once(
    spark: "SparkSession", nodes: "Nodes", mq: "BlockingClient", topic: str, tmp_path: Path
) -> None:
    board = parse({"topics": topic, "by": ["tag"], "sum": ["json.n as n"], "json": "n bigint"})
    mq.admin.create_topic(into := f"{topic}-windows", queues=2)
    source = Source(nodes.url, job="live-test")
    with mq.producer(topic) as producer:
        sent = [json.dumps({"n": number}).encode() for number in range(300)]
        producer.send_many(bodies=sent, tags=["ab"[number % 2] for number in range(300)])
    planned = plan(source, board, tmp_path, into)
    assert sum(one.end - one.start for one in planned) == 300
    publish = publisher(mq, into, nodes.url, board)

    def publish_twice(name: str, step: int, rows: list[Final]) -> None:
        publish(name, step, rows)
        publish(name, step, rows)

    topics = {topic: mq.admin.describe_topic(topic).id}
    run(source.stream(spark, board), board, tmp_path, topics, is_once=True, publish=publish_twice)
    assert sum(one.end - one.start for one in plan(source, board, tmp_path, into)) == 0
    ends = [queue.end for queue in mq.admin.describe_topic(into).queues]
    with mq.consumer(into, start="earliest") as consumer:
        found = [json.loads(message.body) for message in consumer.fetch(1000)]
        while len(found) < sum(ends):
            found += [json.loads(message.body) for message in consumer.fetch(1000)]
    keys = [(window["window_start"], window["tag"]) for window in found]
    assert len(set(keys)) == len(keys)
    sums = {tag: sum(w["n"] for w in found if w["tag"] == tag) for tag in "ab"}
    assert sums == {"a": sum(range(0, 300, 2)), "b": sum(range(1, 300, 2))}
    assert sum(window["count"] for window in found) == 300
