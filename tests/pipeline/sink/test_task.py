"""A task of a write stores each row once, whatever becomes of its attempts."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import raftmq
from raftmq.blocking import BlockingClient
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.sink import task
from raftmq.pipeline.sink.task import Written

from .attempts import Died, attempt, dying, rows_of, stored


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BlockingClient]":
    with raftmq.blocking.open(tmp_path_factory.mktemp("node")) as mq:
        yield mq


@pytest.fixture
def mq(opened: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> "Iterator[BlockingClient]":
    monkeypatch.setattr(task, "CHUNK_ROWS", 50)
    opened.admin.create_topic("orders", queues=3)
    yield opened
    opened.admin.delete_topic("orders")


def test_all_rows_are_stored_when_the_task_returns(mq: BlockingClient) -> None:
    batches = [rows_of(range(start, start + 30)) for start in range(0, 300, 30)]
    assert attempt(mq, batches) == Written(300, 0)
    assert stored(mq) == sorted(b"%d" % n for n in range(300))


def test_next_attempt_sends_what_is_missing_in_whatever_order(mq: BlockingClient) -> None:
    numbers = list(range(300))
    with pytest.raises(Died):
        attempt(mq, dying([rows_of(numbers[:170])]))
    left = len(stored(mq))
    assert 0 < left <= 170
    Random(1).shuffle(numbers)
    written = attempt(mq, [rows_of(numbers[:100]), rows_of(numbers[100:])])
    assert written == Written(300, left)
    assert stored(mq) == sorted(b"%d" % n for n in range(300))


def test_batch_that_runs_again_stores_nothing(mq: BlockingClient) -> None:
    for _ in range(3):
        attempt(mq, [rows_of(range(100))])
    assert len(stored(mq)) == 100


def test_equal_rows_are_each_stored_once(mq: BlockingClient) -> None:
    with pytest.raises(Died):
        attempt(mq, dying([rows_of([7] * 60)]))
    attempt(mq, [rows_of([7] * 90 + [8])])
    assert stored(mq) == [b"7"] * 90 + [b"8"]


def test_rows_without_a_key_also_are_stored_once(mq: BlockingClient) -> None:
    bodies = [b"%d" % n for n in range(120)]
    with pytest.raises(Died):
        attempt(mq, dying([pa.RecordBatch.from_pydict({"body": bodies[:60]})]))
    attempt(mq, [pa.RecordBatch.from_pydict({"body": bodies[::-1]})])
    assert stored(mq) == sorted(bodies)


def test_later_batch_begins_anew_and_an_older_one_is_refused(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(10))], label=1)
    attempt(mq, [rows_of(range(10))], label=2)
    with pytest.raises(PipelineError, match="written by somebody else"):
        attempt(mq, [rows_of(range(10))], label=1)
    assert len(stored(mq)) == 20


def test_attempt_that_was_replaced_is_refused(mq: BlockingClient) -> None:
    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows_of(range(60))
        attempt(mq, [rows_of(range(200))])
        yield rows_of(range(60, 200))

    with pytest.raises(PipelineError, match="written by somebody else"):
        attempt(mq, overtaken())
    assert stored(mq) == sorted(b"%d" % n for n in range(200))


def test_partitions_and_queries_are_apart(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(10))])
    attempt(mq, [rows_of(range(10))], partition=1)
    attempt(mq, [rows_of(range(10))], name="other")
    assert len(stored(mq)) == 30


def test_plan_that_gives_other_rows_is_an_error(mq: BlockingClient) -> None:
    with pytest.raises(Died):
        attempt(mq, dying([rows_of(range(60))]))
    with pytest.raises(PipelineError, match="stored 10 rows that this one does not have"):
        attempt(mq, [rows_of(range(10, 100))])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"body": [b"x"] * 9 + [None]}, "its body is null"),
        ({"key": ["k"] * 9 + ["k" * 4097]}, "its key has 4097 bytes; the limit is 4096"),
        ({"tag": ["t"] * 9 + ["t" * 256]}, "its tag has 256 bytes; the limit is 255"),
        ({"body": [b"x"] * 9 + [b"x" * 17_000_000]}, "its body has 17000000 bytes"),
        ({"queue": [0] * 9 + [3]}, "it names a queue outside the topic's 0 to 2"),
    ],
)
def test_row_that_cannot_be_sent_is_named_with_what_is_stored(
    mq: BlockingClient, more: dict[str, Any], why: str
) -> None:
    message = f"row 109 of partition 4 cannot be sent: {why}.*; rows 0 to 99 of it are stored"
    rows = [rows_of(range(100)), rows_of(range(10), **more)]
    with pytest.raises(PipelineError, match=message):
        attempt(mq, rows, partition=4)
    assert len(stored(mq)) == 100


def test_number_of_a_bad_row_counts_those_that_were_stored_before(mq: BlockingClient) -> None:
    with pytest.raises(Died):
        attempt(mq, dying([rows_of(range(60))]))
    bad = rows_of(range(60, 70), body=[b"x"] * 4 + [None] + [b"y"] * 5)
    with pytest.raises(PipelineError, match=r"row 64 of partition 0 .* none of its rows is stored"):
        attempt(
            mq, [pa.Table.from_batches([rows_of(range(60)), bad]).combine_chunks().to_batches()[0]]
        )


def test_topic_that_is_not_there_is_told_with_the_command(mq: BlockingClient) -> None:
    with pytest.raises(PipelineError, match="raftmq topic create nowhere"):
        attempt(mq, [rows_of([1])], topic="nowhere")


def test_rows_for_later_are_stored_once_in_whatever_order(mq: BlockingClient) -> None:
    numbers = list(range(120))
    delays = [None if n % 2 else 0.2 + n / 1000 for n in numbers]

    def batch(order: list[int]) -> pa.RecordBatch:
        return rows_of(order, delay=[delays[n] for n in order])

    attempt(mq, [batch(numbers)], label=1)
    Random(2).shuffle(numbers)
    assert attempt(mq, [batch(numbers)], label=1) == Written(120, 120)
    assert sorted(stored_later(mq, 120)) == sorted(b"%d" % n for n in range(120))


def test_rows_for_later_that_are_not_there_again_are_an_error(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(4), delay=[3600.0] * 4)])
    with pytest.raises(PipelineError, match="stored 3 rows that this one does not have"):
        attempt(mq, [rows_of([1], key=["k1"], delay=[3600.0])])


def stored_later(mq: BlockingClient, count: int) -> list[bytes]:
    """What is there once so many messages came, and a moment later."""
    bodies: list[bytes] = []
    with mq.consumer("orders") as consumer:
        while len(bodies) < count:
            bodies += consumer.fetch(10_000, wait=10).bodies
        return bodies + consumer.fetch(10_000, wait=0.5).bodies


@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_attempts_stores_each_row_once(mq: BlockingClient, seed: int) -> None:
    random = Random(seed)
    numbers = [random.randrange(150) for _ in range(200)]
    for _ in range(5):
        order = random.sample(numbers, len(numbers))
        stop = random.randrange(200)
        with pytest.raises(Died):
            attempt(mq, dying([rows_of(order[:stop])]))
    attempt(mq, [rows_of(random.sample(numbers, len(numbers)))])
    assert stored(mq) == sorted(b"%d" % n for n in numbers)
