"""Consumer groups with a mode and a policy, made and listed by a client."""

import math

import pytest

from raftmq.broker.serve import pages
from raftmq.client import GroupAttachment, GroupSettings, connect
from raftmq.errors import OutcomeUnknown, Reason, Rejected
from raftmq.pop.policy import SCHEDULE_MS
from raftmq.wire.codec import unpack
from raftmq.wire.consumer_groups import ForgetGroup
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind

from .fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

USUAL = GroupSettings(
    "billing", "pop", tuple(ms / 1000 for ms in SCHEDULE_MS), 17, 30.0, "key", False, ()
)


async def test_group_is_created_changed_listed_and_deleted(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        admin = mq.admin
        assert await admin.create_consumer_group("billing") == USUAL
        changed = await admin.create_consumer_group(
            "billing", schedule=[0.5, 60], attempts_max=3, invisible=5.5
        )
        assert changed == USUAL._replace(schedule=(0.5, 60.0), attempts_max=3, invisible=5.5)
        ordered = await admin.create_consumer_group(
            "audit", "ordered", order="queue", is_blocking=True
        )
        assert (ordered.mode, ordered.order, ordered.is_blocking) == ("ordered", "queue", True)
        assert await admin.consumer_groups() == [ordered, changed]
        assert await admin.consumer_groups(name="billing") == [changed]
        await admin.delete_consumer_group("billing")
        assert await admin.consumer_groups() == [ordered]
        with pytest.raises(Rejected, match="no consumer group 'billing'") as caught:
            await admin.delete_consumer_group("billing")
        assert caught.value.reason is Reason.UNKNOWN_GROUP


async def test_group_is_attached_to_topics_and_detached(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        admin = mq.admin
        for topic in ("orders", "refunds"):
            await admin.create_topic(topic, 1)
        assert await admin.attach("orders", "billing", start="latest") == 1
        assert await admin.attach("refunds", "billing") == 2
        assert await admin.attach("orders", "billing") == 1
        attachments = (
            GroupAttachment("orders", 1, is_latest=True, queues=1),
            GroupAttachment("refunds", 2, is_latest=False, queues=1),
        )
        assert await admin.consumer_groups() == [USUAL._replace(attachments=attachments)]
        of_refunds = await admin.consumer_groups(topic="refunds")
        assert of_refunds == [USUAL._replace(attachments=attachments[1:])]
        assert await admin.detach("orders", "billing")
        assert not await admin.detach("orders", "billing")
        assert await admin.consumer_groups(topic="orders") == []


async def test_other_mode_is_refused_and_says_which_it_has(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        await mq.admin.create_consumer_group("billing", "ordered")
        with pytest.raises(Rejected, match="has mode ordered, not pop") as caught:
            await mq.admin.attach("orders", "billing", mode="pop")
        assert caught.value.reason is Reason.GROUP_MODE
        with pytest.raises(Rejected, match="has mode ordered, not pull"):
            await mq.admin.create_consumer_group("billing", "pull")


async def test_what_cannot_be_is_refused_with_what_would_be_right(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        admin = mq.admin
        with pytest.raises(Rejected, match="one of pop, ordered, broadcast, pull"):
            await admin.create_consumer_group("g", "fifo")
        with pytest.raises(Rejected, match="one of key, queue"):
            await admin.create_consumer_group("g", "ordered", order="none")
        with pytest.raises(Rejected, match="'earliest' or 'latest'"):
            await admin.attach("orders", "g", start="now")
        with pytest.raises(Rejected, match="1000 to 43200000 ms"):
            await admin.create_consumer_group("g", invisible=0.2)
        for never in (-1.0, math.inf, math.nan):
            with pytest.raises(Rejected, match="number of seconds"):
                await admin.create_consumer_group("g", schedule=[1, never])
        assert await admin.consumer_groups() == []


async def test_groups_of_many_pages_are_listed_whole(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    async with connect(URL, world=cluster) as mq:
        admin = mq.admin
        for topic in ("a", "b", "c"):
            await admin.create_topic(topic, 1)
            await admin.attach(topic, "g")
        await admin.create_consumer_group("alone")
        await admin.attach("b", "h")
        found = await admin.consumer_groups()
        assert {g.name: [each.topic for each in g.attachments] for g in found} == {
            "alone": [], "g": ["a", "b", "c"], "h": ["b"],
        }  # fmt: skip


async def test_attaching_whose_answer_was_lost_gives_the_same_number(cluster: FakeCluster) -> None:
    cluster.create_topic()
    fates = [Fate.APPLIED_AND_CUT]

    def fate(_: FakeNode, frame: Frame) -> Fate:
        return fates.pop() if frame.kind == FrameKind.ADMIN and fates else Fate.DONE

    async with connect(URL, world=cluster) as mq:
        cluster.fate = fate
        before = cluster.catalog.applied
        assert await mq.admin.attach("orders", "billing") == 1
        assert cluster.catalog.applied == before + 2, "it was asked once"


async def test_reader_by_offset_is_refused_for_a_group_of_another_mode(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        await mq.admin.create_consumer_group("popping")
        await mq.admin.create_consumer_group("reading", "pull")
        with pytest.raises(Rejected, match="has mode pop, not pull") as caught:
            async with mq.consumer("orders", group="popping"):
                pass
        assert caught.value.reason is Reason.GROUP_MODE
        async with mq.consumer("orders", group="reading"), mq.consumer("orders", group="new"):
            pass


async def test_deleted_group_forgets_what_it_committed_in_each_partition_group(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=4)
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as producer:
            for queue in range(4):
                await producer.send(b"x", queue=queue)
        async with mq.consumer("orders", group="g") as consumer:
            for _ in range(4):
                await consumer.fetch(1, wait=1)
            await consumer.commit()
        assert [len(group.offsets) for group in await mq.admin.list_groups()] == [4]
        await mq.admin.delete_consumer_group("g")
        assert await mq.admin.list_groups() == []
        with pytest.raises(Rejected) as caught:
            await mq.admin.delete_consumer_group("g")
        assert caught.value.reason is Reason.UNKNOWN_GROUP


async def test_deletion_says_which_partition_group_has_still_to_forget(
    cluster: FakeCluster,
) -> None:
    def fate(_: FakeNode, frame: Frame) -> Fate:
        is_late = (
            frame.kind == FrameKind.FORGET_GROUP
            and unpack(ForgetGroup, frame.header).partition_group == 2
        )
        return Fate.BUSY if is_late else Fate.DONE

    async with connect(URL, world=cluster) as mq:
        await mq.admin.create_consumer_group("billing", "pull")
        cluster.fate = fate
        with pytest.raises(OutcomeUnknown, match="partition groups 2 are not removed"):
            await mq.admin.delete_consumer_group("billing", timeout=0.5)
        assert await mq.admin.consumer_groups() == []
