"""The leader is killed while Spark writes: the client finds the next one, and no task fails."""

from collections import Counter
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.nodes import Nodes

from .attempts import stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient

pytestmark = pytest.mark.timeout(400)


def test_leader_that_is_killed_in_the_middle_of_a_write(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str
) -> None:
    ids = spark.range(0, 300_000, 1, 4)
    rows = ids.selectExpr("cast(id as string) body", "concat('k', id % 20) key")
    seen: list[int] = []

    def kill() -> None:
        while sum(seen[-1:]) < 20_000:
            seen.append(sum(queue.end for queue in mq.admin.describe_topic(topic).queues))
        nodes.kill(leader)

    leader = nodes.leader(1)
    killing = Thread(target=kill, daemon=True)
    killing.start()
    rows.write.format("raftmq").options(topic=topic, url=nodes.url).mode("append").save()
    killing.join(10)
    nodes.restart(leader)
    assert 20_000 <= seen[-1] < 300_000
    counts = Counter(stored(mq, topic))
    assert len(counts) == 300_000
    assert max(counts.values()) == 1
