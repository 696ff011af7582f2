"""Reading a range while retention, leaders and topics change, on a simulated cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.batch import Batch, encode
from raftmq.client import Messages, QueueDescription, TopicDescription
from raftmq.client.slices import Slice
from raftmq.errors import CorruptRecord, Reason, Rejected, Unavailable, UnreadableBatch
from raftmq.pipeline import PipelineError
from raftmq.pipeline.source import range_reader
from raftmq.pipeline.source.gaps import report
from raftmq.pipeline.source.offsets import Range
from raftmq.pipeline.source.range_reader import BYTES_MAX, ROWS_MAX, Reading, pieces

TOPIC, ID, QUEUE = "orders", 7, 3
BATCH = 10


class Made:
    """A queue of batches of ten; a test can disturb its answers. It is its own client, consumer
    and administrator."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.earliest = 0
        self.id = ID
        self.at = 0
        self.moves: list[int] = []
        self.before: Callable[[Made], None] = lambda _: None
        self.admin = self

    def consumer(self, topic: str, *, queues: tuple[int, ...], start: int) -> Self:
        assert (topic, queues) == (TOPIC, (QUEUE,))
        self.at = start
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fetch(self, count: int, *, wait: float) -> Messages:
        self.before(self)
        if self.at < self.earliest:
            raise Rejected(Reason.OFFSET_OUT_OF_RANGE, "begins later")
        base = self.at - self.at % BATCH
        bodies = [b"%d" % n for n in range(base, base + BATCH)]
        payload = encode(bodies, base_ms=0).to_bytes(queue=self.id << 16 | QUEUE)
        batch = Batch.decode(payload, base_offset=base, timestamp=base)
        stop = min(self.at + count, base + BATCH, self.end)
        part = Slice(batch, self.at - base, stop - base, self.id << 16 | QUEUE)
        self.at = stop
        return Messages([part] if part.start < part.stop else [], TOPIC)

    def seek(self, *, queue: int, offset: int) -> None:
        assert queue == QUEUE
        self.at = offset
        self.moves.append(offset)

    def describe_topic(self, topic: str) -> TopicDescription:
        queues = [QueueDescription(n, 1, 1, self.earliest, self.end) for n in range(QUEUE + 1)]
        return TopicDescription(topic, self.id, queues)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made(1000)
    monkeypatch.setattr(range_reader, "client", lambda url, timeout: found)
    return found


def offsets(start: int, end: int, **said: Any) -> list[int]:
    settings: dict[str, Any] = {"timeout": 60.0, "filter": None, "fails_on_loss": True}
    settings |= {"gaps": None, "columns": ("offset",)} | said
    wanted = Reading(url="", **settings)
    found = wanted.read(Range(TOPIC, ID, QUEUE, start, end))
    return [offset for rows in found for offset in rows.column("offset").to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (3, 7), (5, 25), (990, 1000), (7, 993)])
def test_reading_stops_exactly_at_the_end_of_the_range(made: Made, start: int, end: int) -> None:
    assert offsets(start, end) == list(range(start, end))


def trim(at: int, earliest: int) -> Callable[[Made], None]:
    def before(made: Made) -> None:
        if made.at >= at:
            made.earliest = max(made.earliest, earliest)

    return before


def test_messages_that_go_while_they_are_read_are_an_error_that_names_them(made: Made) -> None:
    made.before = trim(20, 35)
    message = "queue 3 of topic 'orders', offsets 20 to 34 were dropped by retention"
    with pytest.raises(PipelineError, match=message):
        offsets(10, 100)


def test_or_they_are_passed_over_and_stand_in_a_table_once(made: Made, tmp_path: Path) -> None:
    made.before = trim(20, 35)
    folder = tmp_path / "gaps"
    options = {"fails_on_loss": False, "gaps": str(folder)}
    assert offsets(10, 100, **options) == [*range(10, 20), *range(35, 100)]
    # The micro-batch is repeated: it finds the same gap.
    made.earliest = 0
    assert offsets(10, 100, **options) == [*range(10, 20), *range(35, 100)]
    rows = pq.read_table(folder).drop_columns(["seen_at"]).to_pylist()
    assert rows == [{"topic": TOPIC, "queue": QUEUE, "start": 20, "end": 35}]
    made.before = trim(0, 200)
    assert offsets(10, 100, **options) == []
    assert pq.read_table(folder).num_rows == 2


def test_a_leader_that_is_behind_is_waited_for(made: Made) -> None:
    fails = 3

    def before(made: Made) -> None:
        nonlocal fails
        if made.at == 40 and fails:
            fails -= 1
            raise Rejected(Reason.OFFSET_OUT_OF_RANGE, "ends at offset 30")

    made.before = before
    assert offsets(0, 60) == list(range(60))
    assert made.moves == [40, 40, 40]


def test_nothing_for_too_long_is_unavailable(made: Made) -> None:
    made.end = 50
    with pytest.raises(Unavailable, match="offsets 0 to 99: nothing came for 0 s"):
        offsets(0, 100, timeout=0.0)


def test_topic_made_anew_in_mid_read_is_an_error(made: Made) -> None:
    def before(made: Made) -> None:
        if made.at == 30:
            made.id = ID + 1

    made.before = before
    with pytest.raises(PipelineError, match="deleted and created again while it was read"):
        offsets(0, 100)


def test_batch_that_cannot_be_read_is_an_error_that_says_where_to_go_on(made: Made) -> None:
    def before(made: Made) -> None:
        if made.at == 30:
            why = CorruptRecord("bad checksum", position=0)
            raise UnreadableBatch(why, topic=TOPIC, queue=QUEUE, offset=30, next_offset=40)

    made.before = before
    with pytest.raises(
        PipelineError, match=r"offsets 30 to 39\). Fix: begin after it, at offset 40"
    ):
        offsets(0, 100)


@pytest.mark.parametrize(("rows", "size"), [(0, 9), (7, 0), (1, 3 * BYTES_MAX), (90, 300_000)])
def test_pieces_are_the_same_rows_and_none_is_far_too_large(rows: int, size: int) -> None:
    whole = pa.record_batch({"body": pa.array([bytes(size)] * rows, pa.binary())})
    found = list(pieces(whole))
    assert sum(part.num_rows for part in found) == rows
    assert all(part.num_rows for part in found)
    for part in found:
        assert part.nbytes <= 2 * BYTES_MAX + 8 * ROWS_MAX or part.num_rows == 1


def test_a_gap_without_a_table_is_passed_over(tmp_path: Path) -> None:
    report([Range(TOPIC, ID, QUEUE, 0, 5)], fails=False, folder=None)
    with pytest.raises(PipelineError, match="set failOnDataLoss to false, and gaps to a folder"):
        report([Range(TOPIC, ID, QUEUE, 0, 5)], fails=True, folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
