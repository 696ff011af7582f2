"""The calls of Spark's driver and workers, on a real cluster and without a JVM."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThanOrEqual, Not
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from raftmq.client import Message
from raftmq.errors import Unavailable
from raftmq.filters import compile as compile_filter
from raftmq.pipeline import PipelineError
from raftmq.pipeline.rows import COLUMNS, arrow_schema
from raftmq.pipeline.source import connection
from raftmq.pipeline.source.batch import BatchReader
from raftmq.pipeline.source.options import Options, parse
from raftmq.pipeline.source.pinning import pin
from raftmq.pipeline.source.stream import StreamReader
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

ALL = ReadAllAvailable()
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    yield
    connection.close_all()


def send(mq: "BlockingClient", topic: str, count: int, first: int = 0) -> None:
    """Messages of three batches, with keys, tags and properties."""
    with mq.producer(topic) as p:
        for part in range(3):
            numbers = range(first + part * count // 3, first + (part + 1) * count // 3)
            p.send_many(
                bodies=[b"body %d" % n for n in numbers],
                keys=[f"k{n % 7}" if n % 5 else None for n in numbers],
                tags=["even" if n % 2 == 0 else None for n in numbers],
                props=[{"n": n} for n in numbers],
            )


def options(topic: str, **said: Any) -> Options:
    return parse({"subscribe": topic} | {name: str(value) for name, value in said.items()})


def batch(topic: str, **said: Any) -> BatchReader:
    found = options(topic, **said)
    return BatchReader(found, found.columns)


def stream(topic: str, **said: Any) -> StreamReader:
    found = options(topic, **said)
    return StreamReader(found, found.columns)


def read(reader: BatchReader | StreamReader, parts: Iterable[Any]) -> Rows:
    """Rows that the tasks read, each with a reader that travelled to a worker."""
    rows: Rows = []
    # The reader that drives a stream stays where it is; a fresh one travels.
    for part in parts:
        for found in reader.read(pickle.loads(pickle.dumps(part))):
            rows += found.to_pylist()
    return rows


def read_all(reader: BatchReader) -> Rows:
    return read(pickle.loads(pickle.dumps(reader)), reader.partitions())


def numbers(rows: Rows) -> list[int]:
    return sorted(int(row["body"].split()[1]) for row in rows)


def test_batch_has_each_message_once_as_a_row(mq: "BlockingClient", topic: str) -> None:
    send(mq, topic, 300)
    reader = batch(topic)
    (first, *_) = reader.read(reader.partitions()[0])
    assert first.schema == arrow_schema()
    rows = read_all(reader)
    assert numbers(rows) == list(range(300))
    with mq.consumer(topic) as c:
        messages: list[Message] = []
        while len(messages) < 300:
            messages += list(c.fetch(500))
    expected = {(m.queue, m.offset): (m.key, m.tag, m.body, m.timestamp) for m in messages}
    found = {
        (r["queue"], r["offset"]): (r["key"], r["tag"], r["body"], _ms(r["timestamp"]))
        for r in rows
    }
    assert found == expected
    assert {row["props"][0] for row in rows} == {("n", str(n)) for n in range(300)}


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def test_parts_are_as_many_as_requested_and_hold_the_same(mq: "BlockingClient", topic: str) -> None:
    send(mq, topic, 300)
    # Messages without a key avoid a slow leader, so that a queue may get none.
    held = [end for end in mq.admin.find_offsets(topic, "latest").values() if end]
    assert len(batch(topic).partitions()) == len(held)
    reader = batch(topic, minPartitions=13)
    parts = reader.partitions()
    assert len(parts) >= 13
    assert numbers(read(reader, parts)) == list(range(300))


def test_columns_are_those_that_were_asked_for_and_in_their_order(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 30)
    found = options(topic, includeBody="false")
    assert "body" not in found.columns
    reader = BatchReader(found, ("key", "offset"))
    (rows, *_) = reader.read(reader.partitions()[0])
    assert rows.schema.names == ["key", "offset"]


@pytest.mark.parametrize(
    "text",
    ["even", "n >= 20 AND n < 25", "TAGS = 'even' AND n > 290", 'TAGS == "even" && !(n <= 290)'],
    ids=["tag", "sql", "both", "signs"],
)
def test_filter_keeps_what_the_filter_matches(mq: "BlockingClient", topic: str, text: str) -> None:
    send(mq, topic, 300)
    wanted = compile_filter(text)
    expected = [
        n for n in range(300) if wanted.matches({"n": n}, tag="even" if n % 2 == 0 else None)
    ]
    assert expected
    assert numbers(read_all(batch(topic, filter=text))) == expected


def test_pushed_filters_keep_what_spark_would_keep(mq: "BlockingClient", topic: str) -> None:
    send(mq, topic, 150)
    middle = datetime.now(UTC)
    send(mq, topic, 150, first=150)
    rows = read_all(batch(topic))

    def kept(*filters: Any) -> tuple[Rows, list[Any], int]:
        reader = batch(topic)
        left = list(reader.pushFilters(list(filters)))
        parts = reader.partitions()
        return read(pickle.loads(pickle.dumps(reader)), parts), left, len(parts)

    by_key, left, _ = kept(EqualTo(("key",), "k3"), GreaterThan(("offset",), 10))
    assert left == []
    assert by_key == [r for r in rows if r["key"] == "k3" and r["offset"] > 10]
    in_queues, _, parts = kept(In(("queue",), (1, 2)), LessThanOrEqual(("queue",), 2))
    assert in_queues == [r for r in rows if r["queue"] in (1, 2)]
    one_queue, _, parts = kept(EqualTo(("queue",), 2))
    assert (one_queue, parts) == ([r for r in rows if r["queue"] == 2], 1)
    untagged, left, _ = kept(IsNull(("tag",)), Not(EqualTo(("key",), "k1")))
    assert untagged == [r for r in rows if r["tag"] is None]
    assert left == [Not(EqualTo(("key",), "k1"))]
    late, _, _ = kept(GreaterThan(("timestamp",), middle))
    assert numbers(late) == list(range(150, 300))
    early, _, _ = kept(LessThanOrEqual(("timestamp",), middle))
    assert numbers(early) == list(range(150))
    nothing, _, _ = kept(EqualTo(("queue",), 99))
    assert nothing == []


def test_offsets_and_times_say_where_a_batch_begins_and_ends(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 150)
    first = json.loads(pin(topic))
    middle = datetime.now(UTC).isoformat()
    send(mq, topic, 150, first=150)
    # Both with the topic's number, as `pin` gives them, and without.
    plain = json.dumps({topic: first[topic]["queues"]})
    for begin in (plain, json.dumps(first)):
        assert numbers(read_all(batch(topic, startingOffsets=begin))) == list(range(150, 300))
        assert numbers(read_all(batch(topic, endingOffsets=begin))) == list(range(150))
    assert numbers(read_all(batch(topic, startingTimestamp=middle))) == list(range(150, 300))
    assert numbers(read_all(batch(topic, endingTimestamp=middle))) == list(range(150))
    rows = read_all(batch(topic))
    # Messages without a key avoid a slow leader, so that some queues may get none.
    held = rows[0]["queue"]
    one = json.dumps({topic: {str(q): -2 if q == held else -1 for q in range(4)}})
    found = read_all(batch(topic, startingOffsets=one))
    assert found == [row for row in rows if row["queue"] == held]


def test_program_that_pinned_ends_with_its_last_line(topic: str) -> None:
    program = f"from raftmq.pipeline.source.pinning import pin; print(pin({topic!r}))"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert topic in json.loads(ended.stdout)


def test_what_does_not_fit_the_topics_is_an_error(mq: "BlockingClient", topic: str) -> None:
    send(mq, topic, 30)
    for said, message in [
        ({"startingOffsets": json.dumps({topic: {"9": 0}})}, "has queues 0 to 3, no 9"),
        ({"startingOffsets": json.dumps({topic: {"0": 10**6}})}, "ends at offset .* 1000000 was"),
        ({"startingOffsets": "latest"}, "a batch that begins at the end is empty"),
        ({"endingOffsets": json.dumps({topic: {"id": 99, "queues": {}}})}, "and 99 was given"),
    ]:
        with pytest.raises(PipelineError, match=message):
            batch(topic, **said).partitions()
    with pytest.raises(PipelineError, match=r"there is no topic 'nix'.*raftmq topic list"):
        batch("nix").partitions()


def test_cluster_that_does_not_answer_is_unavailable_in_time() -> None:
    with pytest.raises(Unavailable, match="first contact"):
        batch("orders", url="raftmq://127.0.0.1:1", timeout=1).partitions()


def drain(reader: StreamReader, start: dict[str, Any], limit: Any) -> tuple[Rows, dict[str, Any]]:
    """Micro-batches until there is nothing new."""
    rows: Rows = []
    while (end := reader.latestOffset(start, limit)) != start:
        rows += read(reader, reader.partitions(start, end))
        start = end
    return rows, start


def lag(mq: "BlockingClient", group: str) -> int | None:
    return mq.admin.describe_group(group).lag


def test_stream_reads_each_message_once_and_its_group_has_no_lag(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 300)
    reader = stream(topic, job=topic, maxOffsetsPerTrigger=70)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(70)
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    rows, end = drain(reader, start, limit)
    assert numbers(rows) == list(range(300))
    assert lag(mq, f"spark-{topic}") == 0
    send(mq, topic, 30, first=300)
    assert reader.reportLatestOffset() == end
    later = reader.latestOffset(end, ALL)
    assert lag(mq, f"spark-{topic}") == 30
    # The plan after a crash is the same.
    again = stream(topic, job=topic)
    parts = again.partitions(end, later)
    assert parts == reader.partitions(end, later)
    assert numbers(read(again, parts)) == list(range(300, 330))
    reader.commit(later)
    assert lag(mq, f"spark-{topic}") == 0
    assert reader.partitions(later, later) == []


def test_latest_is_found_again_after_a_crash_in_the_first_micro_batch(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 30)
    start = stream(topic, job=topic, startingOffsets="latest").initialOffset()
    send(mq, topic, 30, first=30)
    # The driver died before its first micro-batch was complete, and another one begins.
    reader = stream(topic, job=topic, startingOffsets="latest")
    assert reader.initialOffset() == start
    rows, _ = drain(reader, start, ALL)
    assert numbers(rows) == list(range(30, 60))
    for said in ({}, {"startingOffsets": json.dumps({topic: {"0": -1}}), "job": "x"}):
        with pytest.raises(PipelineError, match="must be found again after a crash"):
            stream(topic, **({"startingOffsets": "latest"} | said))


@pytest.mark.parametrize("said", [{}, {"startingTimestamp": "0"}, {"startingOffsets": "json"}])
def test_other_starts_are_the_same_however_often_they_are_asked(
    mq: "BlockingClient", topic: str, said: dict[str, str]
) -> None:
    send(mq, topic, 30)
    if "startingOffsets" in said:
        said = {"startingOffsets": json.dumps({topic: {"1": 2}})}
    start = stream(topic, **said).initialOffset()
    send(mq, topic, 30, first=30)
    assert stream(topic, **said).initialOffset() == start


def test_time_in_the_future_is_no_start_of_a_stream(topic: str) -> None:
    with pytest.raises(PipelineError, match="startingTimestamp is in the future"):
        stream(topic, startingTimestamp="2999-01-01T00:00:00Z")


def test_available_now_ends_where_the_queues_ended_when_it_began(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 30)
    reader = stream(topic, job=topic)
    reader.prepareForTriggerAvailableNow()
    send(mq, topic, 30, first=30)
    rows, _ = drain(reader, reader.initialOffset(), ReadMaxRows(7))
    assert numbers(rows) == list(range(30))
    assert lag(mq, f"spark-{topic}") == 30


def test_older_driver_of_a_job_is_told_of_the_newer_one(mq: "BlockingClient", topic: str) -> None:
    send(mq, topic, 30)
    older, newer = stream(topic, job=topic), stream(topic, job=topic)
    start = older.initialOffset()
    end = older.latestOffset(start, ALL)
    assert newer.latestOffset(start, ALL) == end
    with pytest.raises(PipelineError, match=f"another driver runs job '{topic}': it began later"):
        older.latestOffset(end, ALL)
    newer.commit(end)
    assert lag(mq, f"spark-{topic}") == 0


def test_queues_and_topics_that_are_new_are_read_from_their_beginning(
    mq: "BlockingClient", topic: str
) -> None:
    reader = stream(topic, job=topic)
    start = reader.initialOffset()
    mq.admin.alter_topic(topic, 6)
    send(mq, topic, 300)
    rows, end = drain(reader, start, ALL)
    assert numbers(rows) == list(range(300))
    # Messages without a key avoid a slow leader, so that a queue may get none.
    held = {queue for queue, end in mq.admin.find_offsets(topic, "latest").items() if end}
    assert {row["queue"] for row in rows} == held
    assert held & {4, 5}
    other = f"{topic}-2"
    mq.admin.create_topic(other, queues=1)
    send(mq, other, 9)
    both = stream(f"{topic},{other}", job=topic)
    rows, _ = drain(both, end, ALL)
    assert {(row["topic"], row["offset"]) for row in rows} == {(other, n) for n in range(9)}
    with pytest.raises(PipelineError, match=f"of topic '{other}' as well, which is not read"):
        reader.latestOffset(both.latestOffset(end, ALL), ALL)


def test_topic_made_anew_under_its_name_is_an_error_and_no_other_messages(
    mq: "BlockingClient", topic: str
) -> None:
    send(mq, topic, 30)
    reader = stream(topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, queues=4)
    send(mq, topic, 30, first=1000)
    again = f"topic '{topic}' was deleted and created again"
    with pytest.raises(PipelineError, match=f"{again}: its number is"):
        reader.latestOffset(end, ALL)
    with pytest.raises(PipelineError, match=f"{again} while it was read|there is no topic"):
        read(reader, parts)
    connection.close_all()
    with pytest.raises(PipelineError, match=f"{again} while it was read"):
        read(stream(topic), parts)


def test_leader_that_dies_in_mid_read_changes_nothing(
    nodes: Nodes, mq: "BlockingClient", topic: str
) -> None:
    body = os.urandom(20_000)
    with mq.producer(topic) as p:
        # More than is fetched ahead, so that much is still to come from the next leader.
        for _ in range(10):
            p.send_many(bodies=[body] * 150, queue=0)
    (group,) = {q.partition_group for q in mq.admin.describe_topic(topic).queues if q.queue == 0}
    reader = batch(topic)
    (part,) = reader.partitions()
    found: list[int] = []
    killed = 0
    for rows in reader.read(part):
        found += rows.column("offset").to_pylist()
        if not killed:
            killed = nodes.leader(group)
            nodes.kill(killed)
    nodes.restart(killed)
    assert found == list(range(1500))


def test_row_is_what_spark_expects_of_its_schema() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructType,
        TimestampType,
    )

    kinds = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "map<string,string>": MapType(StringType(), StringType()),
        "timestamp": TimestampType(),
    }
    struct = StructType()
    for name, kind in COLUMNS.items():
        struct.add(name, kinds[kind])
    expected: pa.Schema = to_arrow_schema(struct, timezone="UTC")
    assert arrow_schema().equals(expected)
