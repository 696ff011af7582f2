"""Sides: how they are written, read and pinned; and the command on real topics and tables."""

import json
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.cli.pipeline.starter import Starter
from raftmq.pipeline import PipelineError
from raftmq.pipeline.reconcile import Side, reconcile, store
from tests.cli.command_line import CommandLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from tests.pipeline.nodes import Nodes


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def database(path: Path, rows: list[tuple[object, ...]]) -> str:
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute('create table "paid ""now""" (id text, cents)')
        shop.executemany('insert into "paid ""now""" values (?, ?)', rows)
    return f"sqlite:{path}?table=paid+%22now%22"


def cents(amount: int) -> bytes:
    return json.dumps({"cents": amount}).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "names no side"),
        ("kafka:orders", "names no side"),
        ("topic:", "names no side"),
        ("sqlite:shop.db", "names no table"),
        ("topic:orders?table=x", "has no setting table"),
    ],
)
def test_what_is_no_side_is_refused(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Side.parse(text, key="key")


def test_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no"):
        Side.parse(f"sqlite:{tmp_path}/no.db?table=t", key="id").pinned()
    assert not list(tmp_path.iterdir())


def test_tables_agree_across_formats(spark: "SparkSession", tmp_path: Path) -> None:
    named = database(tmp_path / "shop.db", [("a", 10), ("b", "2.5"), ("b", 2.5), (None, 1)])
    (tmp_path / "paid.csv").write_text("id,cents,event\na,10,1\nb,5,2\nb,5,2\nc,many,3\n")
    left = Side.parse(named, key="id", amount="cents").pinned()
    right = Side.parse(
        f"csv:{tmp_path / 'paid.csv'}", key="id", amount="cents", identity="event"
    ).pinned()
    outcome = reconcile(spark, left, right)
    assert outcome.counts == {
        "left_rows": 3, "right_rows": 2, "left_unreadable": 1, "right_unreadable": 1,
        "differing_buckets": 1, "left_only": 0, "right_only": 0, "amount": 0, "duplicate": 0,
    }  # fmt: skip
    assert not outcome.is_agreed
    store(outcome, tmp_path / "out")
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["counts"] == outcome.counts
    assert spark.read.parquet(str(tmp_path / "out" / "differences")).count() == 0
    with pytest.raises(PipelineError, match="use the columns id, cents"):
        Side.parse(named, key="nothing").load(spark)
    with pytest.raises(PipelineError, match="have no order"):
        Side.parse(named, key="id").load(spark, is_ordered=True)
    with pytest.raises(PipelineError, match="has no table none"):
        Side.parse(f"sqlite:{tmp_path}/shop.db?table=none", key="id").load(spark)


@pytest.mark.process
def test_command_reconciles_topics_as_they_were_pinned(
    raftmq: CommandLine,
    spark: "SparkSession",
    nodes: "Nodes",
    mq: "BlockingClient",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Starter, "session", lambda self, job: nullcontext(spark))
    for name in ("orders", "payments"):
        mq.admin.create_topic(name, queues=2)
        with mq.producer(name) as producer:
            for number in range(40):
                producer.send(cents(number), key=f"order-{number}")
    amounts = [
        "--left-amount", "get_json_object(body_text, '$.cents')",
        "--right-amount", "get_json_object(body_text, '$.cents')",
    ]  # fmt: skip
    command = ["pipeline", "reconcile", "topic:orders", "topic:payments", *amounts, "-o", "json"]
    planned = raftmq(*command, "--dry-run")
    assert (planned.code, len(planned.json)) == (0, 2)
    ended = raftmq(*command)
    assert (ended.code, ended.json["agree"]) == (0, True), ended.stderr
    pinned = Side.parse("topic:orders", key="key").pinned(nodes.url)

    with mq.producer("orders") as producer:
        producer.send(cents(5), key="order-99")
    with mq.producer("payments") as producer:
        producer.send(cents(1), key="order-7")
        producer.send(b"no JSON", key="order-8")
    # Later messages are not in it.
    assert pinned.load(spark).count() == 40
    ended = raftmq(*command, "--out", str(tmp_path / "out"))
    assert ended.code == 5, ended.stderr
    counts = ended.json["counts"]
    assert (counts["left_only"], counts["amount"], counts["right_unreadable"]) == (1, 1, 1)
    rows = spark.read.parquet(str(tmp_path / "out" / "differences")).collect()
    assert {(row.key, row.kind, int(row.difference)) for row in rows} == {
        ("order-99", "left_only", 5),
        ("order-7", "amount", -1),
    }
