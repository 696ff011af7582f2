"""A report that follows the logs while the cluster is away for a while."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import raftmq
from raftmq.cli.pipeline import report as command
from raftmq.errors import Unavailable
from raftmq.pipeline.report import looking, opened, reading, rules, running, tables
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from raftmq.pipeline.report.ledger import Look

MINUTE_MS = 60_000
AWAY_SECONDS = 2.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node: when it is down, so is the cluster."""
    with Nodes(1) as nodes:
        yield nodes


@pytest.fixture
def mq(nodes: Nodes) -> "Iterator[BlockingClient]":
    """A client that soon gives up."""
    with raftmq.blocking.connect(nodes.url, timeout=1.0) as mq:
        yield mq


class Away:
    """Looks at the cluster with a clock that a test sets, and brings it back after some tries."""

    def __init__(self, nodes: Nodes, patch: pytest.MonkeyPatch) -> None:
        self._nodes = nodes
        self._look_at = looking.look_at
        patch.setattr(running, "look_at", self.look_at)
        self.later_ms = 0
        self.tries = 0

    def look_at(self, mq: "BlockingClient", **said: Any) -> "Look":
        try:
            look = self._look_at(mq, **said)
        except Unavailable:
            self.tries += 1
            if self.tries == 3:
                self._nodes.restart(1)
            raise
        return structs.replace(look, time=look.time + self.later_ms)


class Interrupted:
    """Runs tasks; the cluster goes away when they begin, once, and comes back meanwhile."""

    def __init__(self, nodes: Nodes, reader: reading.Reader) -> None:
        self._nodes = nodes
        self._reader = reader
        self.is_next = False
        self.times = 0

    def __call__(self, tasks: Sequence[reading.Task]) -> list[reading.Done]:
        if not self.is_next:
            return self._reader(tasks)
        self.is_next = False
        self.times += 1
        self._nodes.kill(1)
        back = Timer(AWAY_SECONDS, self._nodes.restart, [1])
        back.start()
        try:
            return self._reader(tasks)
        finally:
            back.join()


def produce(mq: "BlockingClient", topic: str, count: int) -> None:
    with mq.producer(topic) as producer:
        producer.send_many(bodies=[b"x"] * count, timeout=30.0)


def test_report_goes_on_when_the_cluster_is_back_and_tells_once_that_it_waits(
    spark: "SparkSession",
    mq: "BlockingClient",
    nodes: Nodes,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(command, "note", notes.append)
    monkeypatch.setattr(command, "ROUND_SECONDS", 0.05)
    away = Away(nodes, monkeypatch)
    reader = Interrupted(nodes, reading.on_spark(spark, nodes.url))
    mq.admin.attach(topic, "billing")
    with opened(tmp_path, mq, reader=reader, rules=rules.read()) as report:
        steps = command._steps(report, is_once=False)

        def read() -> int:
            """Rounds until all that is there was read; how many records."""
            records = 0
            while (step := next(steps)).is_behind:
                records += step.records
            return records + step.records

        produce(mq, topic, 30)
        assert read() > 0
        # The next minute is over, and published, before the cluster goes away.
        away.later_ms = MINUTE_MS
        read()
        first = minutes(tmp_path, topic)
        assert first
        nodes.kill(1)
        # It is away when the cluster is looked at …
        read()
        assert away.tries >= 3
        waited = [each for each in notes if each.startswith("waiting for the cluster")]
        assert len(waited) == 1
        assert len([each for each in notes if each.startswith("the cluster answers")]) == 1
        # … and again in the middle of a round.
        produce(mq, topic, 12)
        reader.is_next = True
        read()
        assert reader.times == 1
        away.later_ms = 4 * MINUTE_MS
        read()
    found = minutes(tmp_path, topic)
    assert found == list(range(first[0], found[-1] + MINUTE_MS, MINUTE_MS))
    assert len(found) >= len(first) + 3
    rows = [row for row in tables.read(tmp_path, "report_minute") if row["topic"] == topic]
    assert sum(row["stored"] for row in rows if not row["group"]) == 42
    levels = [row["lag"] for row in rows if row["group"] == "billing"]
    assert len(levels) == len(found)
    assert levels[-1] == 42


def minutes(folder: Path, topic: str) -> list[int]:
    """The minutes of a topic, as they stand in the table."""
    rows = tables.read(folder, "report_minute")
    return [row["minute"] for row in rows if (row["topic"], row["group"]) == (topic, "")]
