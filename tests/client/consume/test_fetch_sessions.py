"""Fetch sessions of a consumer: its requests, and the faults that it survives."""

from collections.abc import Callable

import anyio
import pytest

from raftmq.wire.fetches import Fetch
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    FrameKind,
)
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate

from .test_consumer import QUEUE, add, fill, opened, read_all

pytestmark = pytest.mark.anyio


def asked(cluster: FakeCluster) -> list[Fetch]:
    return [request for node in cluster.nodes.values() for request in node.fetching.asked]


def clear(cluster: FakeCluster) -> None:
    for node in cluster.nodes.values():
        node.fetching.asked.clear()


def kept(cluster: FakeCluster) -> int:
    return sum(len(node.fetching.sessions) for node in cluster.nodes.values())


async def until(is_true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not is_true():
            await anyio.sleep(0.01)


async def test_later_fetches_name_no_queue(cluster: FakeCluster) -> None:
    fill(cluster, queues=60, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 180)
        assert sum(len(request.queues) for request in asked(cluster)) == 60
        clear(cluster)
        for round_ in range(3):
            for queue in range(4):
                add(cluster, QUEUE + queue, 3)
            assert len(await read_all(c, 12)) == 12, round_
        await until(lambda: len(asked(cluster)) >= 3)
        assert all(request.session and not request.queues for request in asked(cluster))


async def test_seek_sends_the_queue_that_moved_and_drops_what_comes_of_it_too_late(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=30, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 90)
        await until(lambda: len(asked(cluster)) >= 6)
        clear(cluster)
        # It comes after the seek, for where the queue was read before.
        await c.seek(queue=4, offset=1)
        add(cluster, QUEUE + 4, 3)
        got = await read_all(c, 5)
        assert got == [b"4:%d" % n for n in range(1, 6)]
        named = [(item.queue, item.offset) for r in asked(cluster) for item in r.queues]
        assert named == [(QUEUE + 4, 1)]
        assert len(await c.fetch(wait=0.05)) == 0


async def test_node_that_knows_no_session_is_sent_all_queues_again(cluster: FakeCluster) -> None:
    fill(cluster, queues=9, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 27)
        for _ in range(3):
            for node in cluster.nodes.values():
                node.fetching.forget_sessions()
            for queue in range(9):
                add(cluster, QUEUE + queue, 2)
            got = await read_all(c, 18)
            assert len(got) == len(set(got)) == 18


async def test_node_that_keeps_no_session_is_sent_all_queues_each_time(
    cluster: FakeCluster,
) -> None:
    for node in cluster.nodes.values():
        node.fetching.keeps_sessions = False
    fill(cluster, queues=9, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 27)
        await c.seek(queue=1, offset=2)
        assert await read_all(c, 1) == [b"1:2"]
        await until(lambda: all(len(node.fetching.asked) > 1 for node in cluster.nodes.values()))
        assert all(len(request.queues) == 3 for request in asked(cluster) if request.epoch == 0)
        assert not any(request.session for request in asked(cluster))


async def test_consumer_that_is_closed_leaves_no_session(cluster: FakeCluster) -> None:
    fill(cluster, queues=9, messages=3)
    async with opened(cluster) as mq:
        async with mq.consumer("orders") as c:
            await read_all(c, 27)
            await until(lambda: kept(cluster) == 3)
        await until(lambda: kept(cluster) == 0)
        # So does a session whose first answer has not come yet.
        async with mq.consumer("orders", start="latest") as c:
            assert len(await c.fetch(wait=0.01)) == 0
        await until(lambda: kept(cluster) == 0)


async def test_queues_follow_their_leader_and_come_back(cluster: FakeCluster) -> None:
    fill(cluster, queues=9, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        got = await read_all(c, 27)
        group = cluster.catalog.group_of(QUEUE)
        assert group is not None
        first = cluster.leaders[group]
        for leader in (first % 3 + 1, first, first % 3 + 1, first):
            cluster.move(group, leader)
            for queue in range(9):
                add(cluster, QUEUE + queue, 2)
            got += await read_all(c, 18)
        assert len(got) == len(set(got)) == 27 + 4 * 18
        for queue in range(9):
            of = [int(body.split(b":")[1]) for body in got if body.startswith(b"%d:" % queue)]
            assert of == sorted(of)


async def test_lost_and_refused_answers_begin_the_session_again(cluster: FakeCluster) -> None:
    """The node has moved on by an answer that the client never saw."""
    fill(cluster, queues=6, messages=3)
    fates = [*[Fate.DONE] * 4, Fate.UNAVAILABLE, Fate.NOT_APPLIED, Fate.BUSY]

    def fate(_node: FakeNode, frame: Frame) -> Fate:
        return cluster.random.choice(fates) if frame.kind == FrameKind.FETCH else Fate.DONE

    async with opened(cluster) as mq, mq.consumer("orders") as c:
        cluster.fate = fate
        got = await read_all(c, 18)
        for _ in range(10):
            for queue in range(6):
                add(cluster, QUEUE + queue, 2)
            got += await read_all(c, 12)
        assert len(got) == len(set(got)) == 18 + 120


async def test_queue_that_is_given_up_is_forgotten_and_named_again_when_it_comes_back(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=6, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders") as c:
        await read_all(c, 18)
        fetcher = c._fetcher
        assert fetcher is not None
        await until(lambda: len(asked(cluster)) >= 6)
        clear(cluster)
        cursor = fetcher.cursors[QUEUE]
        fetcher.remove([cursor])
        add(cluster, QUEUE, 3)
        await until(lambda: [QUEUE] in [request.forgotten for request in asked(cluster)])
        assert len(await c.fetch(wait=0.05)) == 0
        clear(cluster)
        fetcher.add([cursor])
        assert await read_all(c, 3) == [b"0:3", b"0:4", b"0:5"]
        named = [(item.queue, item.offset) for r in asked(cluster) for item in r.queues]
        assert named == [(QUEUE, 3)]


@pytest.mark.parametrize("keeps", [True, False])
async def test_many_queues_of_a_leader_are_read_in_several_sessions(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    monkeypatch.setattr("raftmq.client.consume.read_ahead.LIST_MAX", 4)
    for node in cluster.nodes.values():
        node.fetching.keeps_sessions = keeps
    fill(cluster, queues=30, messages=3)
    async with opened(cluster) as mq:
        async with mq.consumer("orders") as c:
            got = await read_all(c, 90)
            await until(lambda: kept(cluster) == (9 if keeps else 0))
            for queue in range(30):
                add(cluster, QUEUE + queue, 2)
            got += await read_all(c, 60)
            # Queues move between sessions, as one leader has fewer of them and another one more.
            group = cluster.catalog.group_of(QUEUE)
            assert group is not None
            cluster.move(group, cluster.leaders[group] % 3 + 1)
            for queue in range(30):
                add(cluster, QUEUE + queue, 2)
            got += await read_all(c, 60)
            assert len(got) == len(set(got)) == 210
            await c.seek(queue=4, offset=1)
            assert await read_all(c, 6) == [b"4:%d" % n for n in range(1, 7)]
            assert len(await c.fetch(wait=0.05)) == 0
            assert max(len(request.queues) for request in asked(cluster)) == 4
        await until(lambda: kept(cluster) == 0)
