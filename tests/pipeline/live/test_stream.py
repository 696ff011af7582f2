"""A board over a real stream: exact at the end, whatever is repeated or lost on the way."""

import json
import os
import shutil
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from raftmq.pipeline import rows
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.live import Done, Feed, hyperloglog, parse, partials, run
from raftmq.pipeline.live.store import Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = {
    "topics": ["o'trades"],
    "json": "cents bigint, buyer string, at timestamp",
    "event": "json.at",
    "lateness": "1s",
    "where": "tag IS NULL OR tag <> 'test'",
    "by": ["tag", "substr(json.buyer, 1, 1) as first"],
    "sum": ["json.cents as cents", "json.cents / 8D as eighths"],
    "distinct": ["json.buyer as buyers"],
}
BOARD = parse(TABLE)
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
TOPICS = {"o'trades": 7}
BATCHES = 6
Row = dict[str, Any]
Key = tuple[datetime, str | None, str]


def messages(seed: int) -> list[list[Row]]:
    """Batches of two queues' messages, whose times are up to 0.9 s out of order."""
    random, ends = Random(seed), Counter[int]()
    batches = []
    for batch in range(BATCHES):
        stored = BEGIN + timedelta(seconds=batch)
        found = []
        for _ in range(300):
            at: datetime | None = stored - timedelta(milliseconds=random.randrange(900))
            odd = random.randrange(40)
            if odd < 2:
                # A message without a time, and a clock that is an hour ahead.
                at = None if odd else stored + timedelta(hours=1)
            found.append(row_of(ends, random, at, stored))
        batches.append(found)
    return batches


def row_of(ends: Counter[int], random: Random, at: datetime | None, stored: datetime) -> Row:
    queue = random.randrange(2)
    ends[queue] += 1
    body = {
        "cents": random.randrange(1000),
        "buyer": str(random.randrange(300)),
        "at": at and at.isoformat(),
    }
    return {
        "topic": "o'trades", "queue": queue, "offset": ends[queue] - 1, "key": None,
        "tag": random.choice(["a", "b", "test", None]), "body": json.dumps(body).encode(),
        "props": [], "created": stored, "timestamp": stored,
    }  # fmt: skip


def direct(batches: list[list[Row]]) -> dict[Key, tuple[int, int, float, set[str]]]:
    """Count, sums and buyers of each window and group, one message after the other."""
    found: dict[Key, tuple[int, int, float, set[str]]] = {}
    for row in (row for batch in batches for row in batch):
        body = json.loads(row["body"])
        at = body["at"] and datetime.fromisoformat(body["at"])
        if row["tag"] == "test" or not at or at > row["timestamp"] + timedelta(minutes=1):
            continue
        key = (at.replace(microsecond=0), row["tag"], body["buyer"][0])
        count, cents, eighths, buyers = found.get(key, (0, 0, 0.0, set()))
        buyers = buyers | {body["buyer"]}
        found[key] = (count + 1, cents + body["cents"], eighths + body["cents"] / 8, buyers)
    return found


def write(folder: Path, batches: list[list[Row]]) -> None:
    """A file a batch, which the stream reads in this order."""
    folder.mkdir(exist_ok=True)
    for number, batch in enumerate(batches):
        path = folder / f"{number:03}.parquet"
        parquet.write_table(pa.Table.from_pylist(batch, rows.arrow_schema()), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def stream(spark: "SparkSession", folder: Path) -> "DataFrame":
    return spark.readStream.schema(rows.DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))


def published(folder: Path) -> dict[Key, tuple[int, int, float, int]]:
    found = parquet.read_table(folder / "windows").to_pylist()
    keyed = {
        (row["window_start"], row["tag"], row["first"]): (
            row["count"], row["cents"], row["eighths"], row["buyers"]
        )
        for row in found
    }  # fmt: skip
    assert len(keyed) == len(found)
    return keyed


def assert_exact(folder: Path, batches: list[list[Row]]) -> None:
    found, wanted = published(folder), direct(batches)
    assert {key: row[:3] for key, row in found.items()} == {
        key: row[:3] for key, row in wanted.items()
    }
    # With few values the sketch errs by one or two at most.
    assert all(abs(found[key][3] - len(row[3])) <= 3 for key, row in wanted.items())


def test_board_equals_a_direct_computation_and_counts_what_is_late(
    spark: "SparkSession", tmp_path: Path
) -> None:
    batches = messages(1)
    ends = Counter(row["queue"] for batch in batches for row in batch)
    stored = BEGIN + timedelta(seconds=10)
    # One message far ahead of the others, so that what comes then is late.
    newest = row_of(ends, Random(3), stored, stored) | {"tag": "a"}
    late = row_of(ends, Random(4), BEGIN, stored) | {"tag": "a"}
    write(tmp_path / "in", [*batches, [newest], [late]])
    done: list[Done] = []
    feed = Feed()
    run(stream(spark, tmp_path / "in"), BOARD, tmp_path / "out", TOPICS, is_once=True, feed=feed,
        tell=done.append)  # fmt: skip
    assert_exact(tmp_path / "out", [*batches, [newest]])
    wanted = [row for batch in batches for row in batch if row["tag"] != "test"]
    assert sum(one.messages for one in done) == len(wanted) + 2
    assert sum(one.late for one in done) == 1
    counted = sum(row[0] for row in direct(batches).values())
    assert sum(one.unusable for one in done) == len(wanted) - counted
    shown = feed.wait_newer(-1, 0)
    assert shown is not None
    page = json.loads(shown[1])
    assert (page["counted"], page["late"]) == (counted + 1, 1)
    assert sum(window["values"][0] for window in page["windows"]) == counted + 1


class Crash(Exception):
    """Raised by a test instead of killing the process."""


def test_nothing_is_counted_or_published_twice_whatever_is_lost_in_a_crash(
    spark: "SparkSession", tmp_path: Path
) -> None:
    batches = messages(2)
    write(tmp_path / "in", batches)
    out = tmp_path / "out"
    sent: dict[int, list[Final]] = {}
    crashes = iter([True, False, False])

    def publish(_: str, step: int, finals: list[Final]) -> None:
        assert sent.get(step, finals) == finals
        sent[step] = finals
        if next(crashes, False):
            raise Crash("after the windows were kept, before they were noted as published")

    def once(tell: Any = lambda _: None) -> None:
        run(
            stream(spark, tmp_path / "in"),
            BOARD,
            out,
            TOPICS,
            is_once=True,
            publish=publish,
            tell=tell,
        )

    with pytest.raises(Exception, match="Crash: after the windows were kept"):
        once()
    assert published(out)

    told = iter(range(BATCHES))

    def crash(_: Done) -> None:
        if next(told) == 0:
            raise Crash("after the batch was kept, before Spark noted it as done")

    with pytest.raises(Exception, match="Crash: after the batch was kept"):
        once(crash)
    # A power cut may take the last file of the checkpoint along as well.
    last = max((out / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    once()
    assert_exact(out, batches)
    # Without any checkpoint all is read again, and nothing of it is new.
    shutil.rmtree(out / "checkpoint")
    before = dict(sent)
    done: list[Done] = []
    once(done.append)
    assert_exact(out, batches)
    assert not done
    assert sent == before
    keys = [(row.start, row.group) for finals in sent.values() for row in finals]
    assert len(set(keys)) == len(keys) == len(direct(batches))


def test_only_one_process_counts_in_a_folder(spark: "SparkSession", tmp_path: Path) -> None:
    from raftmq.pipeline.live.job import locked

    write(tmp_path / "in", messages(1)[:1])
    with locked(tmp_path / "out"), pytest.raises(PipelineError, match="another process counts"):
        run(stream(spark, tmp_path / "in"), BOARD, tmp_path / "out", TOPICS, is_once=True)


@pytest.mark.parametrize(
    ("field", "value", "message", "fix"),
    [
        ("by", ["tagg"], "field by: tagg: .*`tagg`", "columns are topic, queue, .*json"),
        ("event", "json.cents", "event: json.cents is of type bigint, not a timestamp", "CAST"),
        ("sum", ["json.buyer as b"], "sum: json.buyer is of type string, not a number", "CAST"),
        ("distinct", ["nope(key) as b"], r"field distinct: nope\(key\): .*`nope`", "columns"),
        ("json", "cents number", "field json: cents number: ", "names and types"),
        ("where", "queue", "where: queue is of type int, not true or false", "BOOLEAN"),
        ("where", "queue = = 1", "field where: queue = = 1: .*[Ss]yntax error", "columns"),
    ],
)  # fmt: skip
def test_expression_that_spark_does_not_take_is_named_with_its_field(
    spark: "SparkSession", field: str, value: Any, message: str, fix: str
) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        partials.check(spark, parse({**TABLE, field: value}))
    assert fix.partition(",")[0] in raised.value.fix


def test_code_of_a_value_is_its_register_and_how_many_zeros_follow(spark: "SparkSession") -> None:
    values = "SELECT IF(id % 50 = 0, NULL, id) v FROM range(2000)"
    query = f"SELECT v, xxhash64(v), {hyperloglog.code_of('v')} FROM ({values})"
    ranks: dict[int, int] = defaultdict(int)
    for value, hashed, code in spark.sql(query).collect():
        if value is None:
            assert code is None
            continue
        bits = hashed % 2**64
        rest = (bits >> hyperloglog.BITS) | 1 << (hyperloglog.RANK_MAX - 1)
        rank = (rest & -rest).bit_length()
        assert code == (bits % hyperloglog.REGISTERS) * 64 + rank
        ranks[rank] += 1
    assert len(ranks) > 6


def test_columns_that_no_expression_names_are_not_read() -> None:
    assert partials.needed(parse({"topics": ["t"], "by": ["tag"]})) == (
        "topic", "queue", "offset", "tag", "created", "timestamp"
    )  # fmt: skip
    assert "body" in partials.needed(BOARD)
    assert "props" in partials.needed(parse({"topics": ["t"], "where": "PROPS['x'] = '1'"}))
