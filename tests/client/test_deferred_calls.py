"""Callers that one answer wakes share the next request: no two halves that take turns."""

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from raftmq.client import connect
from raftmq.client.deferred_calls import DeferredCalls
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import fill
from tests.client.fake_cluster import URL, FakeCluster
from tests.client.popping_cluster import audit, opened

pytestmark = pytest.mark.anyio

TASKS = 20
ROUNDS = 10


def _requests(cluster: FakeCluster, kind: FrameKind) -> int:
    return sum(node.requests.count(kind) for node in cluster.nodes.values())


async def test_calls_are_made_once_in_order_when_other_tasks_have_run() -> None:
    made: list[str] = []
    deferred = DeferredCalls()

    def first() -> None:
        made.append("first")

    def second() -> None:
        made.append("second")

    async def woken(event: anyio.Event) -> None:
        await event.wait()
        made.append("woken")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deferred.run)
        event = anyio.Event()
        for _ in range(3):
            tasks.start_soon(woken, event)
        await wait_all_tasks_blocked()
        event.set()
        for call in (first, second, first):
            deferred.add(call, is_after_answer=True)
        assert not made
        await wait_all_tasks_blocked()
        assert made == ["woken"] * 3 + ["first", "second"]
        deferred.add(first)
        await wait_all_tasks_blocked()
        assert made[5:] == ["first"]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("queues", [1, 3])
async def test_tasks_that_send_and_await_share_batches(cluster: FakeCluster, queues: int) -> None:
    cluster.create_topic(queues=queues)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:

        async def send(task: int) -> None:
            for number in range(ROUNDS):
                await p.send(b"%d:%d" % (task, number))

        async with anyio.create_task_group() as tasks:
            for task in range(TASKS):
                tasks.start_soon(send, task)
    assert sum(len(each) for each in cluster.stored()) == TASKS * ROUNDS
    # The first message of all leaves alone, and the others wait for its answer; so again where the
    # turn passes to another queue. Two halves that took turns would need twice the rounds.
    assert _requests(cluster, FrameKind.PRODUCE) <= ROUNDS + 5


async def test_tasks_that_settle_and_await_share_requests(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=TASKS * ROUNDS, batch=50)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=TASKS * ROUNDS) as c,
    ):

        async def ack() -> None:
            for _ in range(ROUNDS):
                (message,) = await c.pop(1, wait=5.0)
                await message.ack()

        async with anyio.create_task_group() as tasks:
            for _ in range(TASKS):
                tasks.start_soon(ack)
    assert audit(cluster) == {"acked": TASKS * ROUNDS}
    assert _requests(cluster, FrameKind.SETTLE) <= ROUNDS + 5
