"""Members and broadcast instances in one process, on trio and asyncio, with real threads."""

from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.client import Consumer
from raftmq.errors import Reason, Rejected

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def take(c: Consumer, count: int) -> list[int]:
    got: list[int] = []
    while len(got) < count:
        batch = await c.fetch(count, wait=10)
        assert batch, got
        got += [int(m.body) for m in batch]
    return sorted(got)


async def shares(c: Consumer, queues: int) -> None:
    """Wait until a consumer has this many queues."""
    with anyio.fail_after(10):
        while len(c.assignment) != queues:
            await anyio.sleep(0.01)


async def test_members_share_out_the_queues_and_go_on_after_a_restart(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=4)
        async with (
            mq.consumer("orders", group="g", queues="assigned") as a,
            mq.producer("orders") as producer,
        ):
            async with mq.consumer("orders", group="g", queues="assigned") as b:
                await shares(a, 2)
                await shares(b, 2)
                for n in range(40):
                    producer.send_nowait(b"%d" % n, queue=n % 4)
                await producer.flush()
                assert len({*await take(a, 20), *await take(b, 20)}) == 40
                await a.commit()
                with pytest.raises(Rejected) as refused:
                    await b.commit({a.assignment[0]: 1})
                assert refused.value.reason is Reason.FENCED
            await shares(a, 4)
            # Messages that the other consumer had read and not committed.
            assert len(await take(a, 20)) == 20
            await a.commit()
    async with (
        raftmq.open(tmp_path) as mq,
        mq.consumer("orders", group="g", queues="assigned") as a,
    ):
        assert not await a.fetch(1, wait=0.2)


async def test_instances_hear_everything_once_over_a_restart(tmp_path: Path) -> None:
    for first in (0, 10):
        async with raftmq.open(tmp_path) as mq:
            await mq.admin.create_topic("news", queues=2)
            async with (
                mq.consumer("news", group="g", mode="broadcast", instance="a") as a,
                mq.consumer("news", group="g", mode="broadcast", instance="b") as b,
                mq.producer("news") as producer,
            ):
                await producer.send_many(bodies=[b"%d" % n for n in range(first, first + 10)])
                assert await take(a, 10) == await take(b, 10) == list(range(first, first + 10))
                assert not await a.fetch(1, wait=0.2)
