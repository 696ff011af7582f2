"""The cost of judging a large history on Spark: `python -m bench.pipeline.check [OPERATIONS]`.

    python -m bench.pipeline.check 10000000 [--memory 2g] [--no-joins] [--folder DIR]

A generated history of OPERATIONS operations is written as a folder of Parquet parts, and judged as
a bag: messages may be lost, doubled, or never sent. Ten producers send one message an operation to
a hundred queues, ten readers poll ten messages at once: 1 operation in 11 is a poll, and a message
has three rows. Ten losses, five duplicates and two messages without a send are planted; the run
fails unless exactly these are found.

For the ratio, the same sets are compared by joins in the same run: an anti-join for lost messages,
a grouping for doubled ones, over the same columns as Spark reads them. The joins have the easier
work: they take each answered send's row as an acknowledgement, and check nothing else.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raftmq import pipeline
from raftmq.pipeline.check import Rules, find, judge
from raftmq.pipeline.check.rules import TOTAL_QUEUE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Integers = NDArray[np.int64]

QUEUES = 100
PROCESSES = 10
MESSAGES = 10
"""Messages of one poll."""
ROUND_ROWS = 3 * MESSAGES + 1
"""Rows of a round: ten sends of two rows, a poll's invoke, ten deliveries."""
PART_ROUNDS = 100_000
"""Rounds in a file: three million rows."""
PLACE = 4
"""Place of the planted mistake among the messages of its poll."""
PLANTED = {"lost-middle": 10, "unexpected": 2, "duplicated": 5}
SEND, POLL = 0, 1
INVOKE, OK = 0, 1


def write_history(folder: Path, operations: int) -> int:
    """Store a history with its planted mistakes, in parts; returns the number of rows."""
    rounds = operations // (MESSAGES + 1)
    chosen = np.linspace(rounds // 10, rounds - rounds // 10, PLANTED["lost-middle"]).astype(int)
    for part, first in enumerate(range(0, rounds, PART_ROUNDS)):
        numbers = np.arange(first, min(rounds, first + PART_ROUNDS), dtype=np.int64)
        delivered = _delivered(numbers, [int(one) for one in chosen], rounds * MESSAGES)
        file = folder / f"part-{part:05}.parquet"
        texts = ["type", "function", "key"]
        pq.write_table(_table(numbers, delivered), file, compression="zstd", use_dictionary=texts)
    return rounds * ROUND_ROWS


def _delivered(rounds: Integers, chosen: list[int], stranger: int) -> Integers:
    """Round → the messages of its poll; -1: a lost message."""
    delivered = rounds[:, None] * MESSAGES + np.arange(MESSAGES)
    for number, one in enumerate(chosen):
        if rounds[0] <= one <= rounds[-1]:
            place = one - int(rounds[0])
            # Three are lost, two are replaced by messages never sent, five by earlier messages.
            again = int(delivered[place, PLACE - 1])
            instead = -1 if number < 3 else stranger + number if number < 5 else again
            delivered[place, PLACE] = instead
    return delivered


def _table(rounds: Integers, delivered: Integers) -> pa.Table:
    """The rows of rounds: ten sends to one queue, a poll, and its messages."""
    shape = len(rounds), ROUND_ROWS
    sends, poll = slice(0, 2 * MESSAGES), 2 * MESSAGES
    first = (rounds * (MESSAGES + 1))[:, None]
    operation = np.repeat(first + MESSAGES, ROUND_ROWS, axis=1)
    operation[:, sends] = first + np.arange(MESSAGES).repeat(2)
    kind = np.full(shape, OK, np.int8)
    kind[:, 0 : 2 * MESSAGES : 2] = kind[:, poll] = INVOKE
    function = np.full(shape, POLL, np.int8)
    function[:, sends] = SEND
    value = np.full(shape, -1, np.int64)
    value[:, sends] = (rounds[:, None] * MESSAGES + np.arange(MESSAGES)).repeat(2, axis=1)
    value[:, poll + 1 :] = delivered
    queue = (rounds % QUEUES).repeat(ROUND_ROWS)
    offset = (rounds // QUEUES * MESSAGES)[:, None] + np.arange(MESSAGES)
    offsets = np.full(shape, -1, np.int64)
    offsets[:, 1 : 2 * MESSAGES : 2] = offsets[:, poll + 1 :] = offset
    row = rounds[0] * ROUND_ROWS + np.arange(value.size)
    process = queue % PROCESSES + np.where(function.ravel() == SEND, 0, PROCESSES)
    return pa.table(
        {
            "operation": operation.ravel(),
            "process": process,
            "type": _texts(kind, ["invoke", "ok"]),
            "function": _texts(function, ["send", "poll"]),
            "key": _texts(queue, [f"q{number}" for number in range(QUEUES)]),
            "value": pa.array(value.ravel(), mask=value.ravel() < 0).cast(pa.string()),
            "offset": pa.array(offsets.ravel(), mask=offsets.ravel() < 0),
            "time": row * 1000,
        }
    )


def _texts(codes: NDArray[np.integer], texts: list[str]) -> pa.Array:
    indices = pa.array(codes.ravel(), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts))


def by_joins(spark: "SparkSession", folder: Path) -> tuple[int, int]:
    """(lost messages, repeated deliveries), found by an anti-join and a grouping."""
    rows = spark.read.parquet(str(folder)).where("type = 'ok' and value is not null")
    sent, got = rows.where("function = 'send'"), rows.where("function = 'poll'")
    lost = sent.join(got, "value", "left_anti").count()
    counts = got.groupBy("value").count().where("count > 1")
    again = counts.selectExpr("coalesce(sum(count - 1), 0) as again").collect()[0].again
    return lost, int(again)


def main() -> None:
    """Write, judge, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operations", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--memory", default="2g", help="of Spark's driver")
    parser.add_argument("--no-joins", action="store_true", help="leave out what it is compared to")
    parser.add_argument("--folder", type=Path, help="keep the history there, or use what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary) / "history"
        if not folder.exists():
            folder.mkdir(parents=True)
            rows = write_history(folder, options.operations)
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"{options.operations:,} operations, {rows:,} rows, {size / 1e6:,.0f} MB")
        with pipeline.session("bench", memory=options.memory) as spark:
            # A first query starts the workers, whose start is not measured.
            spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
            sys.exit(_measure(spark, folder, is_compared=not options.no_joins))


def _measure(spark: "SparkSession", folder: Path, *, is_compared: bool) -> int:
    start = time.perf_counter()
    report = judge(spark, find(folder), Rules(), checkers=[TOTAL_QUEUE])
    seconds = time.perf_counter() - start
    (judged,) = report.checkers
    found = {kind: judged.counts[kind] for kind in judged.kinds if judged.counts[kind]}
    print(f"bitmaps: {seconds:.1f} s, {report.operations / seconds:,.0f} operations/s: {found}")
    print(f"memory of this process at its peak: {_peak_mb():,.0f} MB")
    is_right = found == PLANTED
    if is_compared:
        start = time.perf_counter()
        lost, again = by_joins(spark, folder)
        joined = time.perf_counter() - start
        print(f"joins:   {joined:.1f} s, {joined / seconds:.1f} times as long")
        is_right &= (lost, again) == (PLANTED["lost-middle"], PLANTED["duplicated"])
    print("exactly what was planted" if is_right else f"not what was planted: {PLANTED}")
    return 0 if is_right else 1


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
