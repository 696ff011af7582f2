"""`raftmq pipeline trace` as a user runs it: a trace built from a real log, and questions to it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command_line import CommandLine

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

pytestmark = pytest.mark.process


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
    on_spark: CommandLine, mq: "BlockingClient", tmp_path: Path
) -> None:
    lived(mq)
    folder = str(tmp_path / "lives")
    show = ("pipeline", "trace", "show", folder, "orders", "0")
    quantiles = ("pipeline", "trace", "quantiles", folder)
    assert "1 hour built" in on_spark.ok("pipeline", "trace", "run", folder).stderr

    told = [("stored", None), ("handed out", "billing"), ("acked", "billing")]
    rows = on_spark.ok(*show, "7", "-o", "json").json
    assert [(row["what"], row["group"]) for row in rows] == told
    heading, *lines = on_spark.ok(*show, "7").stdout.splitlines()
    assert heading.split() == ["time", "after", "what", "group", "attempt", "until"]
    assert [line.split()[0] for line in lines] == [row["timestamp"] for row in rows]
    assert "nacked" in on_spark.ok(*show, "8").stdout

    (row,) = on_spark.ok(*quantiles, "-o", "json").json
    assert (row["time"], row["topic"], row["group"]) == (None, "orders", "billing")
    assert (row["messages"], len(row["waits"]), len(row["services"])) == (10, 3, 3)
    heading, line = on_spark.ok(
        *quantiles, "--per", "day", "--group", "billing"
    ).stdout.splitlines()
    assert heading.split()[:4] == ["time", "topic", "group", "messages"]
    day, *names, count = line.split()[:4]
    assert (day[:10], names, count) == (rows[0]["timestamp"][:10], ["orders", "billing"], "10")
    assert len(on_spark.ok(*quantiles, "--topic", "others").stdout.splitlines()) == 1

    # Messages sent since the last run are unknown until the command that the error names has run.
    with mq.producer("orders") as producer:
        producer.send(b"late")
    ended = on_spark(*show, "10")
    assert ended.code == 1
    assert f"raftmq pipeline trace run {folder}" in ended.stderr
    on_spark.ok("pipeline", "trace", "run", folder)
    (row,) = on_spark.ok(*show, "10", "-o", "json").json
    assert row["what"] == "stored"


def test_quantiles_of_no_trace_are_an_error(on_spark: CommandLine, tmp_path: Path) -> None:
    ended = on_spark("pipeline", "trace", "quantiles", str(tmp_path / "none"))
    assert ended.code == 1
    assert "holds no trace" in ended.stderr
    assert "raftmq pipeline trace run" in ended.stderr
