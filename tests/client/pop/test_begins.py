"""Where a group that pops begins, and what `pop(wait=0)` and leaving do with "try again"."""

import anyio
import pytest

from raftmq.errors import Unavailable
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate
from tests.client.popping_cluster import audit, opened

from .test_faults import LOST, once

# Waiting costs nothing on trio's mock clock.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True),
]


@pytest.mark.parametrize("fate", [Fate.DONE, *LOST])
async def test_latest_begins_when_the_consumer_is_open(cluster: FakeCluster, fate: Fate) -> None:
    fill(cluster, queues=3, messages=5)
    cluster.fate = once(FrameKind.RESET, fate)
    async with (
        opened(cluster) as mq,
        mq.producer("orders") as producer,
        mq.consumer("orders", group="g", mode="pop", start="latest") as c,
    ):
        await producer.send_many(bodies=[b"new"] * 6, keys=[f"k{n}" for n in range(6)])
        got: list[bytes] = []
        while len(got) < 6:
            batch = await c.pop(7, wait=5.0)
            assert batch, f"only {len(got)} of 6 came"
            got += batch.bodies
            await batch.ack()
        assert got == [b"new"] * 6


@pytest.mark.parametrize("fate", LOST)
async def test_pop_without_waiting_asks_again_after_a_refusal(
    cluster: FakeCluster, fate: Fate
) -> None:
    fill(cluster, queues=1, messages=30)
    cluster.fate = once(FrameKind.POP, fate)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        got: list[bytes] = []
        while batch := await c.pop(100, wait=0):
            got += batch.bodies
            await batch.ack()
        assert len(got) == 30, "empty means that each leader said so"


async def test_pop_without_waiting_gives_up_after_the_timeout(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)

    def decide(_: FakeNode, frame: Frame) -> Fate:
        return Fate.UNAVAILABLE if frame.kind == FrameKind.POP else Fate.DONE

    async with (
        opened(cluster, timeout=3.0) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
    ):
        cluster.fate = decide
        begun = anyio.current_time()
        with pytest.raises(Unavailable, match="has not reported"):
            await c.pop(10, wait=0)
        assert 2.9 <= anyio.current_time() - begun <= 4.0
        cluster.fate = lambda *_: Fate.DONE
        assert len(await c.pop(10, wait=0)) == 10


@pytest.mark.parametrize("fate", [Fate.UNAVAILABLE, Fate.NOT_LEADER, Fate.UNKNOWN_APPLIED])
async def test_leaving_gives_back_what_a_leader_has_that_is_looked_for(
    cluster: FakeCluster, fate: Fate
) -> None:
    fill(cluster, queues=1, messages=30)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", prefetch=20) as c:
            await c.pop(1, wait=5.0)
            # Leaving asks for the messages on their way; that request is refused at first.
            cluster.fate = once(FrameKind.POP, fate)
        assert audit(cluster).get("leased", 0) == 1


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_latest_begins_in_all_queues_though_the_client_knows_the_topic_as_it_was(
    cluster: FakeCluster, is_made_again: bool
) -> None:
    cluster.create_topic(queues=1)
    async with opened(cluster) as mq, mq.producer("orders"):
        # By another client.
        if is_made_again:
            cluster.change_catalog(DeleteTopic("orders"))
            cluster.change_catalog(CreateTopic("orders", 3))
        else:
            cluster.change_catalog(AlterTopic("orders", 3))
        async with (
            opened(cluster) as other,
            mq.consumer("orders", group="g", mode="pop", start="latest") as c,
        ):
            async with other.producer("orders") as producer:
                for queue in range(3):
                    await producer.send(b"new", queue=queue)
            got: list[bytes] = []
            while len(got) < 3:
                batch = await c.pop(7, wait=5.0)
                assert batch, f"only {len(got)} of 3 came"
                got += batch.bodies


@pytest.mark.parametrize("wait", [0, 0.2])
async def test_pop_that_ends_leaves_the_requests_of_others(
    cluster: FakeCluster, wait: float
) -> None:
    fill(cluster, queues=1, messages=0)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=0) as c,
        anyio.create_task_group() as tasks,
    ):
        took: list[float] = []

        async def pop() -> None:
            begun = anyio.current_time()
            assert await c.pop(1, wait=12)
            took.append(anyio.current_time() - begun)

        tasks.start_soon(pop)
        await anyio.sleep(0.5)
        assert not await c.pop(1, wait=wait)
        await anyio.sleep(0.1)
        add(cluster, QUEUE, 1)
        await anyio.sleep(5)
        assert took
