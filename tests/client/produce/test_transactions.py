"""Transactions: calls that overlap, timeouts, and the outcome of a call in several parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from raftmq.client import connect
from raftmq.client.produce.producer import Producer
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.machine.catalog.topics import AlterTopic
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def producing(cluster: FakeCluster, queues: int = 1) -> AsyncIterator[Producer]:
    cluster.create_topic(queues=queues)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        yield p


def slow(cluster: FakeCluster, *kinds: FrameKind, seconds: float = 0.5) -> None:
    """Answers to such requests are lost for a while: calls take that long."""
    begun = anyio.current_time()

    def judge(_: FakeNode, frame: Frame) -> Fate:
        is_late = frame.kind in kinds and anyio.current_time() < begun + seconds
        return Fate.BUSY if is_late else Fate.DONE

    cluster.fate = judge


@pytest.mark.parametrize("is_grown", [False, True])
async def test_messages_that_are_sent_at_once_are_all_in_the_transaction(
    cluster: FakeCluster, is_grown: bool
) -> None:
    async with producing(cluster) as p:
        if is_grown:
            # The table is older than the topic: each call asks for it first.
            cluster.change_catalog(AlterTopic("orders", 8))
        async with p.transaction(group="shop") as t, anyio.create_task_group() as tasks:
            for n in range(3):

                async def send(n: int = n) -> None:
                    await t.send(b"%d" % n, queue=int(is_grown))

                tasks.start_soon(send)
    assert cluster.ended == [(True, 3)]


async def test_commit_waits_for_messages_under_way(cluster: FakeCluster) -> None:
    async with producing(cluster) as p, anyio.create_task_group() as tasks:
        t = p.transaction(group="shop")
        slow(cluster, FrameKind.PRODUCE)
        tasks.start_soon(t.send, b"0")
        await anyio.sleep(0.1)
        await t.commit()
        assert cluster.ended == [(True, 1)]
        with pytest.raises(Rejected) as refused:
            await t.send(b"1")
        assert refused.value.reason is Reason.TRANSACTION_ENDED


async def test_leaving_the_block_waits_for_messages_under_way(cluster: FakeCluster) -> None:
    async with producing(cluster) as p, anyio.create_task_group() as tasks:  # noqa: SIM117
        # The task group outlives the block.
        async with p.transaction(group="shop") as t:
            slow(cluster, FrameKind.BEGIN, FrameKind.PRODUCE)
            tasks.start_soon(t.send, b"0")
            await anyio.sleep(0.1)
    assert cluster.ended == [(True, 1)]


async def test_rollback_waits_until_the_beginning_is_answered(cluster: FakeCluster) -> None:
    """A rollback that overtook it would leave the transaction open."""
    async with producing(cluster) as p, anyio.create_task_group() as tasks:
        t = p.transaction(group="shop")
        slow(cluster, FrameKind.BEGIN)
        tasks.start_soon(t.send, b"0")
        await anyio.sleep(0.1)
        await t.rollback()
    assert cluster.ended == [(False, 1)]


@pytest.mark.parametrize("kind", [FrameKind.METADATA, FrameKind.PRODUCE])
async def test_block_with_a_cancelled_send_is_rolled_back(
    cluster: FakeCluster, kind: FrameKind
) -> None:
    """The send is cancelled while it waits for its turn, or for an answer."""
    async with producing(cluster) as p, anyio.create_task_group() as tasks:
        t = await p.transaction(group="shop").__aenter__()
        await t.send(b"0")
        slow(cluster, kind)
        if kind is FrameKind.PRODUCE:
            tasks.start_soon(t.send, b"1")
            await anyio.sleep(0.01)
        with anyio.move_on_after(0.05) as cancelled:
            await t.send(b"2", queue=7 if kind is FrameKind.METADATA else None)
        assert cancelled.cancelled_caught
        with pytest.raises(Rejected, match="it was rolled back"):
            await t.__aexit__(None, None, None)
    assert [is_commit for is_commit, _ in cluster.ended] == [False]


async def test_call_that_waits_for_another_one_ends_in_time(cluster: FakeCluster) -> None:
    async with producing(cluster) as p, anyio.create_task_group() as tasks:
        t = p.transaction(group="shop", timeout=2.0)
        slow(cluster, FrameKind.PRODUCE, seconds=60)

        async def send() -> None:
            with pytest.raises(Unavailable, match=r"in time \(produce\)"):
                await t.send(b"0")

        tasks.start_soon(send)
        await anyio.sleep(0.1)
        t._timeout = 0.05
        with pytest.raises(Unavailable, match="another call of this transaction"):
            await t.send(b"1")
        t._timeout = 10
        with pytest.raises(Rejected, match="can only be rolled back"):
            await t.commit()
        await t.rollback()
    assert cluster.ended == [(False, 0)]
