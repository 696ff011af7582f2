"""The job on a real cluster and a real Spark: each message is in the archive once."""

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from raftmq.client import Outgoing
from raftmq.pipeline import PipelineError, archive
from raftmq.pipeline.archive import manifest
from raftmq.pipeline.archive.job import Settings, job_of, plan, run
from raftmq.pipeline.archive.sink import check_schema
from raftmq.pipeline.durable import locked
from raftmq.pipeline.rows import COLUMNS
from tests.pipeline.archive.archives import held
from tests.pipeline.archive.test_verify import findings
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient

QUEUES = 4


def send(mq: "BlockingClient", topic: str, start: int, end: int) -> None:
    """Messages numbered [start, end), spread over the queues by their keys."""
    messages = [
        Outgoing(
            f"message {n}".encode(),
            key=f"key {n % 50}".encode(),
            tag="even" if n % 2 == 0 else None,
            props={"n": n} if n % 3 else {},
        )
        for n in range(start, end)
    ]
    with mq.producer(topic) as producer:
        producer.send_many(messages)


def once(spark: "SparkSession", folder: Path, topic: str, url: str, **settings: object) -> int:
    """Archive all there is; how many rows were read for it."""
    found = Settings((topic,), url, is_once=True, **settings)  # type: ignore[arg-type]
    return sum(progress.rows for progress in run(spark, folder, found))


def numbers(table: pa.Table) -> list[int]:
    return sorted(int(body.as_py().split()[1]) for body in table["body"])


def test_archive_holds_each_message_once(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    send(mq, topic, 0, 1500)
    assert once(spark, folder, topic, nodes.url, rows_max=800) == 1500
    assert manifest.load(folder).version == 2
    assert numbers(held(folder)) == [*range(1500)]
    assert findings(folder, is_deep=True) == []
    assert_as_sent(held(folder))
    assert_readable_by_spark(spark, folder)
    assert [each.rows for each in plan(folder, Settings((topic,), nodes.url))] == [0] * QUEUES
    job = job_of(folder, Settings((), ""))
    assert mq.admin.describe_group(f"spark-{job}").lag == 0


@pytest.mark.parametrize(
    "parts",
    [
        # The driver died after the manifest was written, and before Spark noted the batch.
        ["commits"],
        # The power went off: the batch's plan is gone, too, and it is planned longer.
        ["commits", "offsets"],
    ],
    ids="-and-".join,
)
def test_what_spark_forgets_is_archived_once(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    tmp_path: Path,
    parts: list[str],
) -> None:
    send(mq, topic, 0, 500)
    once(spark, tmp_path / "a", topic, nodes.url)
    for part in parts:
        forget(tmp_path / "a", part)
    send(mq, topic, 500, 700)
    once(spark, tmp_path / "a", topic, nodes.url)
    assert numbers(held(tmp_path / "a")) == [*range(700)]
    assert findings(tmp_path / "a", is_deep=True) == []


def test_lost_checkpoint_goes_on_where_the_archive_ends(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, 0, 500)
    once(spark, tmp_path / "a", topic, nodes.url)
    shutil.rmtree(tmp_path / "a" / "_checkpoint")
    send(mq, topic, 500, 700)
    assert once(spark, tmp_path / "a", topic, nodes.url) == 200
    assert numbers(held(tmp_path / "a")) == [*range(700)]


def forget(folder: Path, what: str) -> None:
    """Remove the newest file of this part of the checkpoint."""
    files = [path for path in (folder / "_checkpoint" / what).glob("*") if path.name.isdecimal()]
    newest = max(files, key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def assert_as_sent(table: pa.Table) -> None:
    for row in random.Random(1).sample(table.to_pylist(), 50):
        n = int(row["body"].split()[1])
        assert row["key"] == f"key {n % 50}"
        assert row["tag"] == ("even" if n % 2 == 0 else None)
        assert row["props"] == ([("n", str(n))] if n % 3 else [])


def assert_readable_by_spark(spark: "SparkSession", folder: Path) -> None:
    frame = archive.read(spark, folder)
    moments = frame.selectExpr("min(timestamp) first", "max(timestamp) last", "count(*) n")
    (all_of_them,) = moments.collect()
    assert all_of_them.n == 1500
    some = archive.read(spark, folder, since=all_of_them.last.astimezone())
    assert 0 < some.count() < 1500


def test_topic_made_anew_is_refused(
    spark: "SparkSession", mq: "BlockingClient", nodes: Nodes, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    send(mq, topic, 0, 100)
    once(spark, folder, topic, nodes.url)
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, queues=QUEUES)
    send(mq, topic, 0, 50)
    with pytest.raises(PipelineError, match="is not the one in the archive"):
        once(spark, folder, topic, nodes.url)
    assert len(held(folder)) == 100


def test_second_driver_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    manifest.create(tmp_path)
    settings = Settings(("orders",), "raftmq://nowhere:1")
    with (
        locked(tmp_path / "run.lock"),
        pytest.raises(PipelineError, match="another driver archives to"),
    ):
        next(run(spark, tmp_path, settings))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"body": None}, "column body is missing"),
        ({"queue": "bigint"}, "column queue is bigint, and an archive holds it as int"),
    ],
)
def test_frame_that_is_not_the_row_is_refused(change: dict[str, str | None], told: str) -> None:
    columns = {name: kind for name, kind in (COLUMNS | change).items() if kind is not None}
    with pytest.raises(PipelineError, match=told):
        check_schema(columns)
