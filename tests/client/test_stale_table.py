"""A client whose routing table is older than a topic's queues, or than the topic."""

import pytest

import raftmq.client.routing.metadata
from raftmq.errors import Rejected
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind, Metadata
from tests.client.consume.test_consumer import fill

from .fake_cluster import FakeCluster, FakeNode, Fate
from .popping_cluster import opened

pytestmark = pytest.mark.anyio


async def test_queues_that_came_later_are_looked_into(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with opened(cluster) as mq, opened(cluster) as other:
        async with mq.producer("orders") as producer:
            await producer.send(b"first")
        cluster.change_catalog(AlterTopic("orders", 3))
        async with other.producer("orders") as producer:
            sent = await producer.send(b"x", key="order-1", queue=2)
        assert sent.id is not None
        assert (await mq.get(sent.id)).body == b"x"
        async with mq.consumer("orders", queues=[2]) as consumer:
            assert (await consumer.fetch(10, wait=5.0)).bodies == [b"x"]
        with pytest.raises(Rejected, match="queues 0 to 2, no 3"):
            await mq.consumer("orders", queues=[3]).__aenter__()


async def test_topic_that_was_made_again_is_opened(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with opened(cluster) as mq:
        async with mq.producer("orders") as producer:
            await producer.send(b"first")
        cluster.change_catalog(DeleteTopic("orders"))
        cluster.change_catalog(CreateTopic("orders", 3))
        async with mq.producer("orders") as producer:
            await producer.send(b"x", queue=0)
        async with mq.consumer("orders") as consumer:
            assert (await consumer.fetch(10, wait=5.0)).bodies == [b"x"]


async def test_topics_are_asked_for_in_parts(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker closes the connection of a header over 256 KiB."""
    monkeypatch.setattr(raftmq.client.routing.metadata, "NAMES_MAX", 2)
    fill(cluster, queues=1, messages=1)
    for number in range(5):
        cluster.change_catalog(CreateTopic(f"t{number}", 1))
    asked: list[int] = []

    def fate(_: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.METADATA:
            asked.append(len(unpack(Metadata, frame.header).topics or ()))
        return Fate.DONE

    async with opened(cluster) as mq:
        for number in range(5):
            await mq.admin.describe_topic(f"t{number}")
        cluster.fate = fate
        for number in range(5):
            cluster.change_catalog(AlterTopic(f"t{number}", 2))
        await mq._router.refresh()
        assert [len(mq._router.topics[f"t{n}"].groups) for n in range(5)] == [2] * 5
    assert max(asked) <= 2
    assert sum(asked) >= 5
