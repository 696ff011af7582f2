"""The speed of the pipeline's jobs: `python -m bench.pipeline.jobs`.

    python -m bench.pipeline.jobs [--only reconcile,cdc,trace] [--rounds 3] [--scale 1.0]
                                  [--json FILE]

| scenario | measured | against |
|---|---|---|
| reconcile | two sides of 2,000,000 rows that differ in four keys: digests first | a join |
| cdc | changes of 1 % of 1,000,000 rows merged into a table | the table made from all changes |
| trace | lives of 300,000 messages, from the logs of three nodes to timelines and quantiles | - |

The messages of `trace` were popped and acknowledged; one in 50 failed once and came again.

Two compared ways take turns; the ratio is the median of the ratios of neighbouring runs. Each
result is compared with the known right one, outside the measured time. Nodes, Spark and the
benchmark share the machine. A scale below 1 shrinks all numbers of rows, for a trial.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal
from rich.console import Console

import raftmq
from bench.figures import Figure, compared, table, write
from bench.machine import run_facts
from bench.pipeline.jobs_data import TABLE, changed, live, send, snapshot, table_after, write_sides
from raftmq import pipeline, testing
from raftmq.pipeline.cdc.digest import digest_in_spark, digest_of
from raftmq.pipeline.cdc.rebuild import rebuild
from raftmq.pipeline.cdc.versions import current, path_of
from raftmq.pipeline.reconcile.compare import by_join, compare
from raftmq.pipeline.reconcile.sides import Side
from raftmq.pipeline.trace import job
from raftmq.pipeline.trace.folder import TIMELINES, files, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIDE_ROWS = 2_000_000
TABLE_ROWS = 1_000_000
MESSAGES = 300_000
QUEUES = 4
TOPIC = "bench"


def reconcile(spark: "SparkSession", folder: Path, rows: int, rounds: int) -> list[Figure]:
    """Compare two sides by digests first, against a join of all keys."""
    wanted = write_sides(folder / "left", folder / "right", rows)
    left, right = (
        Side.parse(f"parquet:{folder / name}", key="id", amount="cents")
        for name in ("left", "right")
    )

    def rate(begun: float, found: "list[tuple[object, ...]]") -> float:
        took = time.perf_counter() - begun
        assert sorted(found) == wanted, f"{found} differ, and {wanted} do"
        return 2 * rows / took

    def by_digests() -> float:
        begun = time.perf_counter()
        found = compare(left.load(spark), right.load(spark))
        assert found.differences is not None, "the digests differ"
        return rate(begun, _differences(found.differences))

    def by_joining() -> float:
        begun = time.perf_counter()
        return rate(begun, _differences(by_join(left.load(spark), right.load(spark))))

    words = "digests first", "join"
    return compared(
        "reconcile", by_digests, by_joining, rounds=rounds, words=words, unit="rows/s", wanted=5.0
    )


def _differences(found: "DataFrame") -> "list[tuple[object, ...]]":
    return [tuple(row) for row in found.select("key", "kind", "difference").collect()]


def cdc(spark: "SparkSession", folder: Path, rows: int, rounds: int) -> list[Figure]:
    """Merge changes into the last version, against rebuilding the table from all changes."""
    wanted = digest_of(table_after(rows))
    base, numbers = folder / "base", count()
    with _cluster() as url, raftmq.blocking.connect(url) as mq:
        mq.admin.create_topic(TOPIC, queues=1)
        send(mq, TOPIC, snapshot(rows))
        rebuild(spark, mq, TOPIC, base, url=url)
        send(mq, TOPIC, changed(rows))

        def seconds(out: Path) -> float:
            begun = time.perf_counter()
            version = rebuild(spark, mq, TOPIC, out, url=url)
            took = time.perf_counter() - begun
            made = spark.read.parquet(str(path_of(out, version.version)))
            found = digest_in_spark(made, TABLE.columns)
            assert found == wanted, f"the table is {found} and has to be {wanted}"
            shutil.rmtree(out)
            return took

        def merge() -> float:
            out = folder / f"merged-{next(numbers)}"
            shutil.copytree(base, out)
            assert current(out) is not None, "there is a version to go on from"
            return seconds(out)

        def again() -> float:
            return seconds(folder / f"again-{next(numbers)}")

        words = "merge of 1 %", "rebuilt whole"
        return compared(
            "cdc", merge, again, rounds=rounds, words=words, unit="s", wanted=0.3, is_limit=True
        )


def trace(spark: "SparkSession", folder: Path, messages: int, rounds: int) -> list[Figure]:
    """Make timelines and quantiles from the logs, after one uncounted round."""
    measured = []
    with _cluster() as url:
        with raftmq.blocking.connect(url) as mq:
            failed = live(mq, TOPIC, messages, queues=QUEUES)
        for number in range(rounds + 1):
            out = folder / f"lives-{number}"
            begun = time.perf_counter()
            marks, steps = [], []
            for step in job.run(spark, out, url=url):
                steps.append(step)
                marks.append(time.perf_counter() - begun)
            events = sum(step.events for step in steps)
            assert events >= messages, f"{messages} messages have {events} events"
            _check_lives(out, messages, failed)
            gathered = max(mark for mark, step in zip(marks, steps, strict=True) if step.events)
            measured.append((events / marks[-1], gathered, marks[-1] - gathered))
    rates, gathering, building = zip(*measured[1:], strict=True)
    return [
        Figure("trace: whole", statistics.median(rates), "events/s", wanted=60_000.0),
        Figure("trace: lowest", min(rates), "events/s"),
        Figure("trace: events", events),
        Figure("trace: logs into files", statistics.median(gathering), "s"),
        Figure("trace: timelines and quantiles", statistics.median(building), "s"),
    ]


def _check_lives(folder: Path, messages: int, failed: int) -> None:
    """Check that each message has one life that ended acked, and that failed ones came twice."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    found = ds.dataset(files(folder, TIMELINES, load(folder)), format="parquet").to_table()
    assert pc.all(pc.equal(found["outcome"], "acked")).as_py(), "not all are acked"
    sums = [
        pc.sum(pc.multiply(found["count"], found[name])).as_py() for name in ("handed", "failed")
    ]
    assert pc.sum(found["count"]).as_py() == messages
    assert sums == [messages + failed, failed], f"{sums} hand-outs and failures"


@contextmanager
def _cluster() -> Iterator[str]:
    """Three nodes; yields their URL."""
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(testing.cluster()) as nodes,
    ):
        yield nodes.url


SCENARIOS = {
    "reconcile": (reconcile, SIDE_ROWS),
    "cdc": (cdc, TABLE_ROWS),
    "trace": (trace, MESSAGES),
}
"""Name → (function that measures, number of rows or messages)."""


def run(names: Sequence[str], rounds: int, scale: float) -> list[Figure]:
    """Measure; progress goes to stderr."""
    found: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftmq-bench-")))
        spark = stack.enter_context(pipeline.session("bench", memory="3g"))
        for name, (measure, rows) in SCENARIOS.items():
            if name in names:
                print(f"{name}: {rounds} rounds", file=sys.stderr)
                own = folder / name
                own.mkdir()
                found += measure(spark, own, max(1_000, round(rows * scale)), rounds)
                shutil.rmtree(own)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.pipeline.jobs")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    facts = run_facts()
    figures = run(arguments.only.split(","), arguments.rounds, arguments.scale)
    Console().print(table(figures))
    if arguments.json:
        write(arguments.json, facts, figures)


if __name__ == "__main__":
    main()
