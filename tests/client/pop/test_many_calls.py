"""Many calls that wait on one consumer: messages wake as many as they are for, in order."""

import anyio
import pytest

from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import PoppedMessages
from raftmq.client.pop.prefetcher import Prefetcher
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster
from tests.client.popping_cluster import opened

pytestmark = pytest.mark.anyio

CALLS = 50


async def _pop(consumer: PopConsumer, got: list[PoppedMessages]) -> None:
    got.append(await consumer.pop(1, wait=30.0))


@pytest.mark.parametrize("prefetch", [0, 500])
async def test_each_message_goes_to_a_waiting_call(cluster: FakeCluster, prefetch: int) -> None:
    fill(cluster, queues=1, messages=0)
    got: list[PoppedMessages] = []
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=prefetch) as c,
    ):
        async with anyio.create_task_group() as tasks:
            for _ in range(CALLS):
                tasks.start_soon(_pop, c, got)
            await anyio.sleep(0.01)
            for _ in range(CALLS):
                add(cluster, QUEUE, 1)
        assert sorted(m.bodies[0] for m in got) == sorted(b"0:%d" % n for n in range(CALLS))


async def test_message_wakes_one_of_the_waiting_calls(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, queues=1, messages=0)
    woken = 0
    wait_turn = Prefetcher._wait_turn

    async def counted(self: Prefetcher, count: int) -> None:
        nonlocal woken
        await wait_turn(self, count)
        woken += 1

    monkeypatch.setattr(Prefetcher, "_wait_turn", counted)
    got: list[PoppedMessages] = []
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(CALLS):
            tasks.start_soon(_pop, c, got)
        await anyio.sleep(0.01)
        woken = 0
        for number in range(CALLS):
            add(cluster, QUEUE, 1)
            with anyio.fail_after(5):
                while len(got) <= number:
                    await anyio.sleep(0.001)
    assert woken < 4 * CALLS, "each message woke all calls"


async def test_call_that_is_cancelled_when_its_turn_comes_passes_it_on(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=0)
    got: list[PoppedMessages] = []
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
        anyio.create_task_group() as tasks,
    ):
        scopes = [anyio.CancelScope() for _ in range(CALLS)]

        async def pop(scope: anyio.CancelScope) -> None:
            with scope:
                await _pop(c, got)

        for scope in scopes:
            tasks.start_soon(pop, scope)
        await anyio.sleep(0.01)
        add(cluster, QUEUE, 1)
        prefetcher = c._prefetcher
        assert prefetcher is not None
        tell = prefetcher.tell

        def told() -> None:
            tell()
            # All but the last are cancelled in the step that woke the first.
            for scope in scopes[:-1]:
                scope.cancel()

        prefetcher.tell = told  # type: ignore[method-assign]
        with anyio.fail_after(5):
            while not got:
                await anyio.sleep(0.001)
        assert got[0].bodies == [b"0:0"]
        tasks.cancel_scope.cancel()
