"""The source in a real Spark: batches, and errors on their way to the driver."""

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from raftmq.pipeline.errors import cause_of
from tests.pipeline.nodes import Nodes

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


def test_batch_answers_queries_over_a_topic(
    spark: "SparkSession", mq: "BlockingClient", topic: str, url: str
) -> None:
    expected = send(mq, topic, 500)
    reader = spark.read.format("raftmq").option("subscribe", topic).option("url", url)
    reader = reader.option("minPartitions", 6)
    rows = reader.load()
    assert places(rows) == sorted(expected)
    # By filters that the source takes over, and others that Spark evaluates.
    kept = rows.where("key = 'k3' AND queue >= 0 AND (offset < 5 OR props['n'] = '453')")
    found = {(row.key, row.props["n"]) for row in kept.collect()}
    assert ("k3", "453") in found
    assert {key for key, _ in found} == {"k3"}
    assert rows.where("key LIKE 'k4%'").count() == sum(str(n % 50)[0] == "4" for n in range(500))
    bodies = reader.option("columns", "body").load()
    assert sorted(int(row.body) for row in bodies.collect()) == list(range(500))
    few = reader.schema("offset bigint, key string").load()
    assert few.columns == ["offset", "key"]
    assert few.where("key = 'k7'").count() == 10


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"startingOffset": "earliest"}, "there is no option 'startingoffset'"),
        ({"startingOffsets": '{"t": {"0": 7}}'}, "startingOffsets names t"),
        ({"filter": "n >"}, "option filter"),
    ],
)
def test_what_is_wrong_arrives_as_one_error(
    spark: "SparkSession", url: str, said: dict[str, str], message: str
) -> None:
    reader = spark.read.format("raftmq").option("subscribe", "orders").option("url", url)
    with pytest.raises(AnalysisException, match="PipelineError") as caught:
        reader.options(**said).load()
    cause = cause_of(caught.value)
    assert message in cause.message
    assert cause.fix
