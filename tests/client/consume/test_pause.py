"""Queues that a consumer does not read for a while."""

import anyio
import pytest

from raftmq.client import connect
from tests.client.consume.test_consumer import QUEUE, add, fill, of_queue, read_all
from tests.client.fake_cluster import URL, FakeCluster

pytestmark = pytest.mark.anyio


async def test_paused_queue_is_neither_asked_for_nor_handed_out(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=6)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        assert c._fetcher is not None
        await anyio.sleep(0.3)
        c._fetcher.pause({QUEUE})
        await anyio.sleep(0.3)
        # More than one answer later: only an answer under way could bring some of these.
        for queue in (QUEUE, QUEUE + 1):
            add(cluster, queue, 6)
        await anyio.sleep(0.3)
        assert c._fetcher.cursors[QUEUE].fetched == 6
        assert await read_all(c, 12) == [b"1:%d" % n for n in range(12)]
        assert not await c.fetch(wait=0.3)
        assert c.position == {0: 0, 1: 12}
        c._fetcher.pause(set())
        assert await read_all(c, 12) == [b"0:%d" % n for n in range(12)]


async def test_answer_under_way_to_a_paused_queue_is_kept(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=3)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        assert c._fetcher is not None
        await read_all(c, 6)
        await anyio.sleep(0.3)
        c._fetcher.pause({QUEUE})
        # Before the node learns of the pause.
        add(cluster, QUEUE, 3)
        await anyio.sleep(0.3)
        assert c._fetcher.cursors[QUEUE].fetched == 6, "the answer was under way"
        assert not await c.fetch(wait=0.1)
        c._fetcher.pause(set())
        assert await read_all(c, 3) == [b"0:%d" % n for n in range(3, 6)]


async def test_seek_drops_what_its_queue_had_fetched_before_a_pause(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=6)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders") as c:
        assert c._fetcher is not None
        await anyio.sleep(0.3)
        c._fetcher.pause({QUEUE, QUEUE + 1})
        await c.seek(queue=0, offset=4)
        c._fetcher.pause(set())
        got = await read_all(c, 8)
        assert of_queue(got, 0) == [b"0:4", b"0:5"]
        assert of_queue(got, 1) == [b"1:%d" % n for n in range(6)]
