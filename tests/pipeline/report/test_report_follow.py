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
from raftmq.pipeline.report import cluster_poll, event_reader, opened, rounds, rules, tables
from raftmq.pipeline.report.minute_ledger import GRACE_MS
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from raftmq.pipeline.report.minute_ledger import Look

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
        self._look_at = cluster_poll.look_at
        patch.setattr(rounds, "look_at", self.look_at)
        self.later_ms = 0
        self.tries = 0

    def look_at(self, mq: "BlockingClient", **said: Any) -> "Look":
        try:
            look = self._look_at(mq, **said)
        except Unavailable:
            self.tries += 1
            if self.tries % 3 == 0:
                self._nodes.restart(1)
            raise
        return structs.replace(look, time=look.time + self.later_ms)


class Interrupted:
    """Runs tasks on Spark; the cluster goes away when they begin, where a test says so."""

    def __init__(self, nodes: Nodes, spark: event_reader.Reader, here: event_reader.Reader) -> None:
        self._nodes = nodes
        self._spark = spark
        self._here = here
        self.away = ""

    def __call__(self, tasks: Sequence[event_reader.Task]) -> list[event_reader.Done]:
        away, self.away = self.away, ""
        if not away:
            return self._spark(tasks)
        self._nodes.kill(1)
        if away == "long":
            # Spark's workers would wait for half a minute, three times.
            return self._here(tasks)
        back = Timer(AWAY_SECONDS, self._nodes.restart, [1])
        back.start()
        try:
            return self._spark(tasks)
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
    reader = Interrupted(nodes, event_reader.on_spark(spark, nodes.url), event_reader.here(mq))
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
        # The minute of the sends is over, and published, before the cluster goes away. A minute
        # closes `GRACE_MS` after its end.
        away.later_ms = MINUTE_MS + GRACE_MS
        read()
        first = minutes(tmp_path, topic)
        assert first
        nodes.kill(1)
        # It is away when the cluster is looked at …
        read()
        assert (away.tries, told(notes)) == (3, ["waiting", "answers"])
        # … in the middle of a round, for so short a time that its tasks wait for it …
        produce(mq, topic, 5)
        reader.away = "short"
        read()
        assert (away.tries, told(notes)) == (3, ["waiting", "answers"])
        # … and for longer, so that the round has to be made again.
        produce(mq, topic, 7)
        reader.away = "long"
        read()
        assert (away.tries, told(notes)) == (6, ["waiting", "answers"] * 2)
        away.later_ms = 4 * MINUTE_MS + GRACE_MS
        read()
    found = minutes(tmp_path, topic)
    assert found == list(range(first[0], found[-1] + MINUTE_MS, MINUTE_MS))
    assert len(found) >= len(first) + 3
    rows = [row for row in tables.read(tmp_path, "report_minute") if row["topic"] == topic]
    assert sum(row["stored"] for row in rows if not row["group"]) == 42
    levels = [row["lag"] for row in rows if row["group"] == "billing"]
    assert len(levels) == len(found)
    assert levels[-1] == 42


def told(notes: list[str]) -> list[str]:
    """The notes about the cluster, in short."""
    words = {"waiting for the cluster: ": "waiting", "the cluster answers again, after": "answers"}
    return [word for note in notes for start, word in words.items() if note.startswith(start)]


def minutes(folder: Path, topic: str) -> list[int]:
    """The minutes of a topic, as they stand in the table."""
    rows = tables.read(folder, "report_minute")
    return [row["minute"] for row in rows if (row["topic"], row["group"]) == (topic, "")]
