"""The cluster of threads: acknowledged messages outlive their leader."""

import threading
from pathlib import Path

import pytest

from raftmq.testing import in_process

pytestmark = [pytest.mark.anyio, pytest.mark.process]

QUICK = {"raft": {"tick_ms": 20}}


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_acknowledged_messages_outlive_the_leader() -> None:
    async with in_process(settings=QUICK) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic("orders", queues=3)
        async with mq.producer("orders") as producer:
            await producer.send_many(bodies=[b"%d" % n for n in range(50)])
            leader = await nodes.leader(1)
            await nodes.kill(leader)
            assert not nodes.is_running(leader)
            await producer.send_many(bodies=[b"%d" % n for n in range(50, 100)])
        await nodes.restart(leader)
        async with mq.consumer("orders") as consumer:
            got: list[bytes] = []
            while len(got) < 100:
                got += (await consumer.fetch(100)).bodies
        assert sorted(got, key=int) == [b"%d" % n for n in range(100)]


async def test_folder_that_is_given_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    for _ in range(2):
        async with in_process(folder=tmp_path, settings=QUICK) as nodes, nodes.connect() as mq:
            await mq.admin.create_topic("orders", queues=1)
            await nodes.stop(2)
            assert [nodes.is_running(node) for node in nodes.nodes] == [True, False, True]


async def test_no_thread_outlives_the_block() -> None:
    async with in_process(settings=QUICK):
        pass
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("raftmq")]
