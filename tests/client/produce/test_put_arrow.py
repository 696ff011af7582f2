"""Rows of Arrow become messages: their queues, their content, and refused rows."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from raftmq.batch import queue_of
from raftmq.client import connect
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.topics import DeleteTopic
from tests.client.fake_cluster import URL, FakeCluster

pytestmark = pytest.mark.anyio


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


async def test_rows_go_to_the_queues_of_their_keys_in_order(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=4)
    keys = [f"k{n % 7}" for n in range(1000)]
    bodies = [b"%d" % n for n in range(1000)]
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=64) as p:
        assert await p.put_arrow(table(body=bodies, key=keys)) == 1000
    expected: list[list[bytes]] = [[], [], [], []]
    for body, key in zip(bodies, keys, strict=True):
        expected[queue_of(key, 4)].append(body)
    assert cluster.stored() == expected


async def test_column_queue_comes_first_then_the_key_then_unkeyed(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=4)
    key = next(k for k in map(str, range(99)) if queue_of(k, 4) == 2)
    rows = table(
        body=["named", "keyed", "bare"],
        key=pa.array([key, key, None]),
        queue=pa.array([0, None, None], pa.int32()),
    )
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.put_arrow(rows, unkeyed=3)
    assert cluster.stored() == [[b"named"], [], [b"keyed"], [b"bare"]]


async def test_message_holds_what_the_row_held(cluster: FakeCluster) -> None:
    cluster.create_topic()
    rows = table(
        body=[b"a", b"b"],
        key=["k", None],
        tag=pa.array([None, "t"]),
        props=[{"n": 1, "s": "x"}, {"n": None, "s": "y"}],
        deliver_at=pa.array([None, datetime(1970, 1, 1, tzinfo=UTC)]),
    )
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as p:
            await p.put_arrow(rows)
        async with mq.consumer("orders") as consumer:
            found = await consumer.fetch(2)
    assert [(m.key, m.tag, m.props) for m in found] == [
        ("k", None, {"n": 1, "s": "x"}),
        (None, "t", {"s": "y"}),
    ]


async def test_batches_have_the_size_that_was_asked_for(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_bytes=1000) as p:
        await p.put_arrow(table(body=[b"x" * 100] * 20 + [b"y" * 5000]))
    counts = list(cluster.log_of(0x10000).counts.values())
    assert counts == [6, 6, 6, 2, 1]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (table(body=[b"x", None]), "row 1 cannot be sent: its body is null"),
        (table(body=[b"x", b"y" * 20_000]), "row 1 cannot be sent: its body has 20000 bytes"),
        (
            table(body=[b"x"] * 2, key=["k", "k" * 4097]),
            "row 1 .* its key has 4097 bytes; .* 4096",
        ),
        (table(body=[b"x"] * 2, tag=["t", "t" * 256]), "row 1 .* its tag has 256 bytes; .* 255"),
        (table(body=[b"x"] * 2, queue=[0, 4]), "row 1 .* outside the topic's 0 to 3"),
        (table(key=["k"]), "no column `body`"),
        (table(body=[b"x"], color=["red"]), "body, key, tag, props, deliver_at, queue"),
        (table(body=[1]), "binary or string, not of Arrow's type int64"),
        (table(body=[b"x"], key=[7]), "column `key` must be text"),
        (table(body=[b"x"], queue=["0"]), "holds integers"),
        (table(body=[b"x"], deliver_at=[5]), "is a timestamp"),
    ],
)
async def test_row_that_cannot_be_sent_is_named_and_nothing_is_sent(
    cluster: FakeCluster, rows: pa.RecordBatch, why: str
) -> None:
    cluster.create_topic(queues=4)
    for node in cluster.nodes.values():
        node.batch_bytes_max = 16_384
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(Rejected, match=why):
            await p.put_arrow(rows)
        assert p.statistics().buffer_messages == 0
    assert cluster.stored() == [[], [], [], []]


async def test_no_rows_are_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert await p.put_arrow(table(body=pa.array([], pa.binary()))) == 0


async def test_failure_of_earlier_rows_is_raised_by_the_next_call(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.put_arrow(table(body=[b"x"]))
        await p.flush()
        cluster.change_catalog(DeleteTopic("orders"))
        await p.put_arrow(table(body=[b"y"]))
        with pytest.raises(Rejected) as refused:
            await p.flush()
        assert refused.value.reason is Reason.UNKNOWN_TOPIC
