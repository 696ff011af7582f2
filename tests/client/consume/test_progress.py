"""A job's progress: kept like a group's offsets, and by one owner at a time."""

import anyio
import pytest

from raftmq.errors import Reason, Rejected
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import FakeCluster, Fate

from .test_consumer import fill, opened

pytestmark = pytest.mark.anyio


async def test_progress_is_what_was_committed_last(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=20)
    async with opened(cluster) as mq:
        first = await mq.progress("orders", "spark-daily")
        assert (first.committed, first.topic_id) == ({}, 1)
        await first.commit({0: 5})
        await first.commit({0: 9, 1: 20})
        await first.commit({0: 7})
        assert first.committed == {0: 7, 1: 20}
        assert (await mq.progress("orders", "spark-daily")).committed == {0: 7, 1: 20}
        (group,) = await mq.admin.list_groups(topic="orders")
        assert (group.name, group.lag) == ("spark-daily", 13)


async def test_who_takes_it_later_fences_who_had_it(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=20)
    async with opened(cluster) as mq:
        first = await mq.progress("orders", "spark-daily")
        await first.commit({0: 5})
        second = await mq.progress("orders", "spark-daily")
        assert second.epoch > first.epoch
        with pytest.raises(Rejected, match="taken over by a reader") as caught:
            await first.commit({0: 6})
        assert caught.value.reason is Reason.FENCED
        await second.commit({0: 3, 1: 1})
        # Another group of the same topic is another matter.
        await (await mq.progress("orders", "spark-other")).commit({0: 1})
        await second.commit({0: 4})
        assert (await mq.progress("orders", "spark-daily")).committed == {0: 4, 1: 1}


async def test_an_operator_may_reset_it(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=20)
    async with opened(cluster) as mq:
        progress = await mq.progress("orders", "spark-daily")
        await progress.commit({0: 20})
        await mq.admin.reset_group("spark-daily", "orders", to=4)
        assert (await mq.progress("orders", "spark-daily")).committed == {0: 4}


async def test_queue_that_was_added_is_committed_like_the_others(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq:
        progress = await mq.progress("orders", "spark-daily")
        with pytest.raises(Rejected, match="queues 0 to 0, no 1"):
            await progress.commit({1: 0})
        await mq.admin.alter_topic("orders", 2)
        await progress.commit({0: 1, 1: 0})
        assert (await mq.progress("orders", "spark-daily")).committed == {0: 1, 1: 0}


async def test_offset_past_the_end_is_refused(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq:
        progress = await mq.progress("orders", "spark-daily")
        with pytest.raises(Rejected, match=r"offset 4 of queue \d+ is not within 0..3"):
            await progress.commit({0: 4})


async def test_of_two_commits_at_once_the_one_that_began_later_counts(
    cluster: FakeCluster,
) -> None:
    """The earlier one asks for a queue that is new, and asks the leaders after the later one."""
    fill(cluster, queues=1, messages=20)
    async with opened(cluster) as mq, anyio.create_task_group() as tasks:
        progress = await mq.progress("orders", "spark-daily")
        await mq.admin.alter_topic("orders", 2)
        later = anyio.Event()

        async def earlier() -> None:
            await progress.commit({0: 5, 1: 0})

        def fate(_: object, frame: Frame) -> Fate:
            is_held = frame.kind == FrameKind.METADATA and not later.is_set()
            return Fate.BUSY if is_held else Fate.DONE

        cluster.fate = fate
        tasks.start_soon(earlier)
        await anyio.wait_all_tasks_blocked()
        await progress.commit({0: 9})
        later.set()
    assert progress.committed == {0: 9, 1: 0}
    async with opened(cluster) as mq:
        assert (await mq.progress("orders", "spark-daily")).committed == {0: 9, 1: 0}
