"""`raftmq pipeline trace` as a user runs it: a trace built from a real log, and questions to it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command_line import CommandLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from tests.pipeline.nodes import Nodes

pytestmark = pytest.mark.process


@pytest.fixture
def raftmq(
    capsys: pytest.CaptureFixture[str],
    spark: "SparkSession",
    nodes: "Nodes",
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """Commands that find the cluster by `RAFTMQ_URL`, and the Spark of all tests running."""
    # A command stops its Spark at the end: the session of the tests goes on.
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)
    monkeypatch.setenv("RAFTMQ_URL", nodes.url)
    return CommandLine(capsys)


def lived(mq: "BlockingClient") -> None:
    """Ten messages of one queue: all are handed out once, the first eight are acked."""
    mq.admin.create_topic("orders", queues=1)
    mq.admin.create_consumer_group("billing", schedule=[600.0])
    with mq.producer("orders") as producer:
        producer.send_many(bodies=[b"x"] * 10)
    with mq.consumer("orders", group="billing", mode="pop", prefetch=0) as consumer:
        left = 10
        while left:
            for message in list(consumer.pop(left, wait=30.0)):
                left -= 1
                message.ack() if message.offset < 8 else message.nack(600.0)


def test_trace_is_built_and_asked(
    raftmq: CommandLine, mq: "BlockingClient", tmp_path: Path
) -> None:
    lived(mq)
    folder = str(tmp_path / "lives")
    show = ("pipeline", "trace", "show", folder, "orders", "0")
    quantiles = ("pipeline", "trace", "quantiles", folder)
    assert "1 hour built" in raftmq.ok("pipeline", "trace", "run", folder).stderr

    told = [("stored", None), ("handed out", "billing"), ("acked", "billing")]
    rows = raftmq.ok(*show, "7", "-o", "json").json
    assert [(row["what"], row["group"]) for row in rows] == told
    heading, *lines = raftmq.ok(*show, "7").stdout.splitlines()
    assert heading.split() == ["time", "after", "what", "group", "attempt", "until"]
    assert [line.split()[0] for line in lines] == [row["timestamp"] for row in rows]
    assert "nacked" in raftmq.ok(*show, "8").stdout

    (row,) = raftmq.ok(*quantiles, "-o", "json").json
    assert (row["time"], row["topic"], row["group"]) == (None, "orders", "billing")
    assert (row["messages"], len(row["waits"]), len(row["services"])) == (10, 3, 3)
    heading, line = raftmq.ok(*quantiles, "--per", "day", "--group", "billing").stdout.splitlines()
    assert heading.split()[:4] == ["time", "topic", "group", "messages"]
    day, *names, count = line.split()[:4]
    assert (day[:10], names, count) == (rows[0]["timestamp"][:10], ["orders", "billing"], "10")
    assert len(raftmq.ok(*quantiles, "--topic", "others").stdout.splitlines()) == 1

    # What was sent since the last run is not known; what the error names makes it known.
    with mq.producer("orders") as producer:
        producer.send(b"late")
    ended = raftmq(*show, "10")
    assert ended.code == 1
    assert f"raftmq pipeline trace run {folder}" in ended.stderr
    raftmq.ok("pipeline", "trace", "run", folder)
    (row,) = raftmq.ok(*show, "10", "-o", "json").json
    assert row["what"] == "stored"


def test_quantiles_of_no_trace_are_an_error(raftmq: CommandLine, tmp_path: Path) -> None:
    ended = raftmq("pipeline", "trace", "quantiles", str(tmp_path / "none"))
    assert ended.code == 1
    assert "holds no trace" in ended.stderr
    assert "raftmq pipeline trace run" in ended.stderr
