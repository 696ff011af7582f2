"""Queues that another client adds: a producer that names one asks before it refuses."""

import anyio
import pytest

from raftmq.client import connect
from raftmq.client.produce.queues import ASK_SECONDS
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.topics import AlterTopic
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio


def counted(cluster: FakeCluster, fate: Fate = Fate.DONE) -> list[int]:
    """The fate of questions for the table from now on; the nodes that were asked."""
    asked: list[int] = []

    def judge(node: FakeNode, frame: Frame) -> Fate:
        if frame.kind != FrameKind.METADATA:
            return Fate.DONE
        asked.append(node.number)
        return fate

    cluster.fate = judge
    return asked


def grow(cluster: FakeCluster, queues: int) -> None:
    """Another client gives the topic more queues."""
    cluster.change_catalog(AlterTopic("orders", queues))


async def test_queue_that_others_have_added_is_found_at_once(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"0", queue=1)
        asked = counted(cluster)
        grow(cluster, 5)
        assert (await p.send(b"1", queue=4)).queue == 4
        sent = await p.send_many(bodies=[b"2", b"3"], queue=3)
        assert [receipt.queue for receipt in sent.receipts()] == [3, 3]
        assert len(asked) == 1
    assert cluster.stored()[3:] == [[b"2", b"3"], [b"1"]]


async def test_messages_at_the_same_time_share_one_question(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        asked = counted(cluster)
        grow(cluster, 50)
        async with anyio.create_task_group() as tasks:
            for queue in range(50):

                async def send(queue: int = queue) -> None:
                    await p.send(b"%d" % queue, queue=queue)

                tasks.start_soon(send)
        assert len(asked) == 1
    assert cluster.stored() == [[b"%d" % queue] for queue in range(50)]


async def test_queue_that_is_not_there_is_refused_and_is_not_asked_for_again_and_again(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        asked = counted(cluster)
        for _ in range(100):
            with pytest.raises(Rejected, match="queues 0 to 1, no 2") as refused:
                await p.send(b"x", queue=2)
            assert refused.value.reason is Reason.BAD_ARGUMENT
        with pytest.raises(Rejected, match="no -1"):
            await p.send(b"x", queue=-1)
        assert len(asked) == 1


async def test_refusal_waits_no_longer_where_nobody_can_tell(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        counted(cluster, Fate.NOT_APPLIED)
        begun = anyio.current_time()
        with pytest.raises(Rejected, match="queues 0 to 1, no 2"):
            await p.send(b"x", queue=2)
        assert anyio.current_time() - begun < 2 * ASK_SECONDS
        cluster.fate = lambda _node, _frame: Fate.DONE
        await p.send(b"x", queue=1)
