"""The rates of reading into Spark and of writing from Spark.

    python -m bench.pipeline.source_and_sink [--messages 4000000] [--rounds 3] [--only read,...]
        [--json FILE]

| scenario | measured, on three nodes | against |
|---|---|---|
| read | a topic into a sink that throws rows away | the source that yields a tuple a message |
| read-columns | the same | the source that makes tuples column by column |
| write | rows of Spark into a topic | the sink that takes rows one by one |
| windows | a stream to its end, counted by tag in windows of a second | a tuple a message |
| windows-columns | the same | tuples made column by column |
| archive | a stream to its end into Parquet | the same into a sink that throws away |
| first | from a session to the rows of its first query, in a process of its own | - |

Two compared ways take turns; the ratio is the median of the ratios of neighbouring runs. Messages
have 100 bytes, a key and one of eight tags, in four queues. A stream is four micro-batches. Nodes,
Spark and the benchmark share the machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal
from rich.console import Console

import raftmq
from bench.figures import Figure, Way, compared, table, write
from bench.machine import run_facts
from bench.pipeline.twins import EachSource, RowSource
from raftmq import pipeline, testing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCENARIOS = (
    "read", "read-columns", "write", "windows", "windows-columns", "archive", "first",
)  # fmt: skip
TOPIC, QUEUES, TAGS = "bench", 4, 8
COLUMNS = "queue,offset,key,tag,body,timestamp"
"""Columns that both ways read."""
BODY_BYTES = 100
CHUNK = 10_000
FIRST_RUNS = 3


class Bench:
    """A cluster with messages, and a Spark session."""

    def __init__(self, spark: "SparkSession", url: str, folder: Path, count: int) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._count = count
        self._runs = 0

    def fill(self) -> None:
        """Create the topic that is read, and fill it."""
        with raftmq.blocking.connect(self._url) as mq:
            mq.admin.create_topic(TOPIC, queues=QUEUES)
            with mq.producer(TOPIC) as producer:
                for first in range(0, self._count, CHUNK):
                    numbers = range(first, min(first + CHUNK, self._count))
                    producer.send_many(
                        bodies=[b"%0*d" % (BODY_BYTES, n) for n in numbers],
                        keys=[f"key-{n % 10_000}" for n in numbers],
                        tags=[f"tag-{n % TAGS}" for n in numbers],
                    )

    def read(self, form: str) -> float:
        """Read all messages into a sink that drops rows; returns messages a second."""
        rows = self._reader(form).load()
        save = rows.write.format("noop").mode("overwrite").save
        return self._timed(save, self._count)

    def write(self, form: str) -> float:
        """Write a quarter as many rows into a new topic; returns messages a second."""
        self._runs += 1
        count = self._count // 4
        topic = f"written-{self._runs}"
        with raftmq.blocking.connect(self._url) as mq:
            mq.admin.create_topic(topic, queues=QUEUES)
        rows = self._spark.range(count, numPartitions=2).selectExpr(
            f"cast(lpad(id, {BODY_BYTES}, '0') as binary) as body",
            "concat('key-', id % 10000) as key",
            f"concat('tag-', id % {TAGS}) as tag",
        )
        writer = rows.write.format(form).option("url", self._url).option("topic", topic)
        rate = self._timed(lambda: writer.mode("append").save(), count)
        with raftmq.blocking.connect(self._url) as mq:
            stored = sum(mq.admin.find_offsets(topic, "latest").values())
            assert stored == count, f"{stored} of {count} rows are in {topic}"
            mq.admin.delete_topic(topic)
        return rate

    def windows(self, form: str) -> float:
        """Read the stream to its end, counted by tag and second; returns messages a second."""
        from pyspark.sql.functions import window

        rows = self._stream(form).withWatermark("timestamp", "1 second")
        counted = rows.groupBy(window("timestamp", "1 second"), "tag").count()
        return self._to_the_end(counted, "noop", "update", {})

    def archive(self, sink: str) -> float:
        """Read the stream to its end into an archive, or into a sink that drops rows."""
        rows = self._spark.readStream.format("raftmq").option("url", self._url)
        rows = rows.option("subscribe", TOPIC).option("maxOffsetsPerTrigger", self._count // 4)
        if sink == "noop":
            return self._to_the_end(rows.load(), "noop", "append", {})
        from raftmq.pipeline.archive.manifest import create
        from raftmq.pipeline.archive.sink import ArchiveSink

        self._spark.dataSource.register(ArchiveSink)
        with raftmq.blocking.connect(self._url) as mq:
            topics = json.dumps({TOPIC: mq.admin.describe_topic(TOPIC).id})
        self._runs += 1
        folder = self._folder / f"archive-{self._runs}"
        create(folder)
        options = {"path": str(folder), "topics": topics}
        return self._to_the_end(rows.load(), sink, "append", options)

    # Inside.

    def _reader(self, form: str):  # type: ignore[no-untyped-def]
        reader = self._spark.read.format(form).option("url", self._url)
        return reader.option("subscribe", TOPIC).option("columns", COLUMNS)

    def _stream(self, form: str) -> "DataFrame":
        reader = self._spark.readStream.format(form).option("url", self._url)
        reader = reader.option("maxOffsetsPerTrigger", self._count // 4)
        return reader.option("subscribe", TOPIC).option("columns", COLUMNS).load()

    def _to_the_end(
        self, rows: "DataFrame", sink: str, mode: str, options: dict[str, str]
    ) -> float:
        self._runs += 1
        writer = rows.writeStream.format(sink).outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._folder / f"query-{self._runs}"))
        for name, value in options.items():
            writer = writer.option(name, value)
        return self._timed(lambda: writer.start().awaitTermination(), self._count)

    def _timed(self, work: Callable[[], object], count: int) -> float:
        begun = time.perf_counter()
        work()
        return count / (time.perf_counter() - begun)


_FIRST = """
import sys, time
from raftmq import pipeline
with pipeline.session() as spark:
    begun = time.perf_counter()
    reader = spark.read.format("raftmq").option("url", sys.argv[1]).option("subscribe", sys.argv[2])
    assert len(reader.load().limit(10).collect()) == 10
    print(time.perf_counter() - begun)
"""


def first(url: str) -> list[Figure]:
    """The time of a session's first query, as the median of `FIRST_RUNS` processes."""
    took = []
    for _ in range(FIRST_RUNS):
        command = [sys.executable, "-c", _FIRST, url, TOPIC]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        took.append(float(ran.stdout))
    value = statistics.median(took)
    return [Figure("first query after the session", value, "s", wanted=4.0, is_limit=True)]


def run(scenarios: Sequence[str], count: int, rounds: int) -> list[Figure]:
    """Measure; progress goes to stderr."""
    found: list[Figure] = []
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("trio"))
        made = portal.wrap_async_context_manager(testing.cluster())
        url = stack.enter_context(made).url
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftmq-bench-")))
        spark = stack.enter_context(pipeline.session("bench", memory="3g"))
        spark.dataSource.register(RowSource)
        spark.dataSource.register(EachSource)
        bench = Bench(spark, url, folder, count)
        print(f"filling a topic with {count:,} messages", file=sys.stderr)
        bench.fill()
        arrow, each, columns = "raftmq", "raftmq-each", "raftmq-rows"
        ways: dict[str, tuple[Way, Way, tuple[str, str], float | None]] = {
            "read": (
                lambda: bench.read(arrow), lambda: bench.read(each), ("arrow", "tuples"), 6.0
            ),
            "read-columns": (
                lambda: bench.read(arrow), lambda: bench.read(columns), ("arrow", "tuples"), None
            ),
            "write": (
                lambda: bench.write(arrow), lambda: bench.write(columns), ("arrow", "rows"), 3.0
            ),
            "windows": (
                lambda: bench.windows(arrow), lambda: bench.windows(each),
                ("arrow", "tuples"), 2.5,
            ),
            "windows-columns": (
                lambda: bench.windows(arrow), lambda: bench.windows(columns),
                ("arrow", "tuples"), None,
            ),
            "archive": (
                lambda: bench.archive("raftmq-archive"), lambda: bench.archive("noop"),
                ("archive", "no sink"), 0.45,
            ),
        }  # fmt: skip
        for name, (ours, theirs, words, wanted) in ways.items():
            if name in scenarios:
                print(f"{name}: {rounds} rounds", file=sys.stderr)
                found += compared(
                    name, ours, theirs, rounds=rounds, words=words, unit="messages/s", wanted=wanted
                )
        if "first" in scenarios:
            print("first: a session of its own", file=sys.stderr)
            found += first(url)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.pipeline.source_and_sink")
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    facts = run_facts()
    figures = run(arguments.only.split(","), arguments.messages, arguments.rounds)
    Console().print(table(figures))
    if arguments.json:
        write(arguments.json, facts, figures)


if __name__ == "__main__":
    main()
