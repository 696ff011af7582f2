"""A task of a write stores each row once, whichever of its attempts fail."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import raftmq
from raftmq.blocking import BlockingClient
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.sink import task
from raftmq.pipeline.sink.stored import in_digest_order
from raftmq.pipeline.sink.task import Written, check_partitions

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
    assert attempt(mq, batches) == Written(300, 0, 1)
    assert stored(mq) == sorted(b"%d" % n for n in range(300))


def test_next_attempt_sends_what_is_missing_in_whatever_order(mq: BlockingClient) -> None:
    numbers = list(range(300))
    with pytest.raises(Died):
        attempt(mq, dying([rows_of(numbers[:170])]))
    left = len(stored(mq))
    assert 0 < left <= 170
    Random(1).shuffle(numbers)
    written = attempt(mq, [rows_of(numbers[:100]), rows_of(numbers[100:])])
    assert written == Written(300, left, 1)
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
    with pytest.raises(PipelineError, match="written by another driver"):
        attempt(mq, [rows_of(range(10))], label=1)
    assert len(stored(mq)) == 20


def test_attempt_that_was_replaced_is_refused(mq: BlockingClient) -> None:
    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows_of(range(60))
        attempt(mq, [rows_of(range(200))])
        yield rows_of(range(60, 200))

    with pytest.raises(PipelineError, match="written by another driver"):
        attempt(mq, overtaken())
    assert stored(mq) == sorted(b"%d" % n for n in range(200))


def test_partitions_and_queries_are_apart(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(10))])
    attempt(mq, [rows_of(range(10))], partition=1)
    attempt(mq, [rows_of(range(10))], name="other")
    assert len(stored(mq)) == 30


@pytest.mark.parametrize("begun", [[0, 1, 2, 3], [2, 3], [0]])
@pytest.mark.parametrize("partitions", [2, 8])
def test_named_write_in_other_partitions_stores_nothing(
    mq: BlockingClient, begun: list[int], partitions: int
) -> None:
    def run(count: int, chosen: list[int]) -> None:
        for p in chosen:
            rows = range(p * 400 // count, (p + 1) * 400 // count)
            attempt(mq, [rows_of(rows)], partition=p, partitions=count)

    run(4, begun)
    for p in range(partitions):
        with pytest.raises(PipelineError, match="begun in 4 parts, and comes in"):
            run(partitions, [p])
    assert len(stored(mq)) == 100 * len(begun)
    run(4, [0, 1, 2, 3])
    assert stored(mq) == sorted(b"%d" % n for n in range(400))


def test_partition_beyond_those_that_were_said_stores_nothing(mq: BlockingClient) -> None:
    with pytest.raises(PipelineError, match=r"part 3 was begun of a work that has 2 parts"):
        attempt(mq, [rows_of(range(10))], partition=2, partitions=2)
    assert stored(mq) == []
    with pytest.raises(PipelineError, match="says 3, and the rows have 2 partitions"):
        check_partitions([Written(1, 0, 2), Written(1, 0, 2)], 3)


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("begun", [[0], [3], [1, 2], [0, 1, 2, 3]])
def test_batch_of_a_stream_in_other_partitions_is_never_silent(
    mq: BlockingClient, begun: list[int], partitions: int
) -> None:
    def run(count: int, chosen: Sequence[int]) -> list[Written]:
        parts = [range(p * 120 // count, (p + 1) * 120 // count) for p in chosen]
        return [
            attempt(mq, [rows_of(rows)], partition=p) for p, rows in zip(chosen, parts, strict=True)
        ]

    run(4, begun)
    try:
        check_partitions(run(partitions, range(partitions)), 0)
    except PipelineError as error:
        why = str(error)
        assert "that this one does not have" in why or "an earlier try of this batch had" in why
    else:
        assert stored(mq) == sorted(b"%d" % n for n in range(120))


def test_batch_of_a_stream_that_runs_again_as_it_was_is_committed(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(10))], partition=2)
    for label in (1, 1, 2):
        written = [attempt(mq, [rows_of([p])], partition=p, label=label) for p in (0, 1)]
        begun = 3 if label == 1 else 2
        assert max(each.begun for each in written) == begun
        if label == 2:
            check_partitions(written, 0)


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
    assert attempt(mq, [batch(numbers)], label=1) == Written(120, 120, 1)
    assert sorted(stored_later(mq, 120)) == sorted(b"%d" % n for n in range(120))


def test_rows_for_later_that_are_not_there_again_are_an_error(mq: BlockingClient) -> None:
    attempt(mq, [rows_of(range(4), delay=[3600.0] * 4)])
    with pytest.raises(PipelineError, match="stored 3 rows that this one does not have"):
        attempt(mq, [rows_of([1], key=["k1"], delay=[3600.0])])


def test_rows_for_later_are_not_guessed_at_when_the_topic_has_grown(
    mq: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(range(40), delay=[2.0] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(task, "in_digest_order", lambda later: in_digest_order(later).slice(0, 20))
        attempt(mq, [rows])
    mq.admin.alter_topic("orders", queues=4)
    with pytest.raises(PipelineError, match="got queues since an earlier attempt stored 20 rows"):
        attempt(mq, [rows])
    assert len(stored_later(mq, 20)) == 20
    attempt(mq, [rows], label=2)
    assert len(stored_later(mq, 60)) == 60


def test_topic_may_grow_after_an_attempt_that_stored_nothing_for_later(
    mq: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Died

    rows = rows_of(range(40), delay=[0.1] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(task, "with_times", die)
        with pytest.raises(Died):
            attempt(mq, [rows])
    mq.admin.alter_topic("orders", queues=4)
    attempt(mq, [rows])
    assert len(stored_later(mq, 40)) == 40


def test_attempts_after_the_first_one_that_stored_rows_for_later_go_on(
    mq: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Died

    rows = rows_of(range(40), delay=[2.0] * 40)
    with monkeypatch.context() as patch:
        patch.setattr(task, "with_times", die)
        with pytest.raises(Died):
            attempt(mq, [rows])
    mq.admin.alter_topic("orders", queues=4)
    with monkeypatch.context() as patch:
        patch.setattr(task, "in_digest_order", lambda later: in_digest_order(later).slice(0, 20))
        attempt(mq, [rows])
    attempt(mq, [rows])
    assert len(stored_later(mq, 40)) == 40


def stored_later(mq: BlockingClient, count: int) -> list[bytes]:
    """Bodies in the topic once `count` messages came, and half a second later."""
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
