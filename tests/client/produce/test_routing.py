"""Messages without a key go where they are stored quickly; those with a key stay where they are."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import trio.testing

from raftmq.batch import queue_of
from raftmq.client import Producer, connect
from raftmq.client.routing.weights import PROBE_SECONDS, RAMP_SECONDS, WEIGHT_MIN
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Only trio has a clock that jumps."""
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0.0)}


@pytest.fixture
async def cluster(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[FakeCluster]:
    """Queue n of 6 is led by node n % 3 + 1; a batch takes about 5 ms."""
    async with anyio.create_task_group() as tasks:
        made = FakeCluster(tasks)
        made.create_topic(queues=6)
        made.produce_seconds = lambda _: made.random.uniform(0.004, 0.006)
        made.zones = {1: "a", 2: "b", 3: "c"}
        yield made
        tasks.cancel_scope.cancel()


async def send(producer: Producer, count: int) -> Counter[int]:
    """Send messages one after the other; how many each node got."""
    found: Counter[int] = Counter()
    for _ in range(count):
        found[(await producer.send(b"x")).queue % 3 + 1] += 1
    return found


async def test_slow_node_gets_few_messages_and_its_share_again_when_it_is_quick(
    cluster: FakeCluster,
) -> None:
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert await send(p, 60) == {1: 20, 2: 20, 3: 20}
        cluster.produce_seconds = lambda node: 0.05 if node == 2 else 0.005
        await send(p, 60)
        found = await send(p, 600)
        assert 0 < found[2] < 60
        assert found[1] == pytest.approx(found[3], abs=10)
        assert 0 < p.statistics().weights[2] < 0.2
        cluster.produce_seconds = lambda _: 0.005
        await send(p, 6000)
        assert await send(p, 60) == {1: 20, 2: 20, 3: 20}
        assert p.statistics().weights == {1: 1, 2: 1, 3: 1}


async def test_messages_that_gather_at_a_slow_node_are_no_more_than_at_others(
    cluster: FakeCluster,
) -> None:
    # At this pace a quick node has answered before the next message, and a slow one has not: the
    # turn would stay with the slow one until 64 KiB went out.
    cluster.produce_seconds = lambda node: 0.1 if node == 2 else 0.005
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        for _ in range(1000):
            p.send_nowait(b"x" * 10)
            await anyio.sleep(0.02)
        await p.flush()
    stored = [len(bodies) for bodies in cluster.stored()]
    assert sum(stored) == 1000
    assert 0 < stored[1] + stored[4] < 200


async def test_failed_node_gets_nothing_and_comes_back_step_by_step(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await send(p, 60)
        cluster.kill(2)
        with anyio.fail_after(1.0):
            found = await send(p, 100)
        assert found[2] == 0
        assert p.statistics().weights[2] == 0
        # Its groups have another leader for a while, and all queues are used.
        cluster.move(2, 3)
        await mq.admin.cluster()
        await anyio.sleep(31.0)
        await send(p, 60)
        assert p.statistics().weights == {1: 1, 3: 1}
        cluster.unreachable.discard(2)
        cluster.move(2, 2)
        found, start, shares = Counter(), anyio.current_time(), list[float]()
        while anyio.current_time() < start + 2 * RAMP_SECONDS:
            found = await send(p, 60)
            shares.append(found[2] / 60)
        assert shares[0] < 0.1
        assert any(0.1 < share < 0.25 for share in shares), "neither nothing nor all"
        assert shares[-1] == pytest.approx(1 / 3, abs=0.02)


async def test_busy_node_gets_nothing_until_it_is_probed(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await send(p, 6)
        cluster.fate = busy_at(2)
        waiting = p.send_nowait(b"x", queue=1)
        await anyio.sleep(0.02)
        assert p.statistics().weights == {1: 1, 2: 0, 3: 1}
        assert (await send(p, 60))[2] == 0
        cluster.fate = lambda _node, _frame: Fate.DONE
        await waiting.wait()
        assert 0 < p.statistics().weights[2] < 0.1, "it has answered"


def busy_at(number: int) -> Any:
    def fate(node: FakeNode, frame: Frame) -> Fate:
        is_busy = node.number == number and frame.kind == FrameKind.PRODUCE
        return Fate.BUSY if is_busy else Fate.DONE

    return fate


async def test_producers_of_a_client_learn_from_each_other(cluster: FakeCluster) -> None:
    cluster.produce_seconds = lambda node: 0.2 if node == 2 else 0.005
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as p:
            await send(p, 60)
        async with mq.producer("orders") as p:
            assert (await send(p, 60))[2] <= 5


async def test_node_that_is_silent_loses_its_weight_before_any_answer(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await send(p, 60)
        cluster.fate = lambda node, _frame: Fate.IGNORED if node.number == 2 else Fate.DONE
        p.send_nowait(b"x", queue=1)
        await anyio.sleep(0.3)
        assert 0 < p.statistics().weights[2] <= 0.05
        await anyio.sleep(1.0)
        assert p.statistics().weights[2] == 0
        cluster.fate = lambda _node, _frame: Fate.DONE


async def test_messages_go_on_if_every_node_has_failed(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await send(p, 6)
        for node in (1, 2, 3):
            cluster.nodes[node].cut()
        with anyio.fail_after(6.0):
            assert (await send(p, 600)).keys() == {1, 2, 3}


async def test_message_with_a_key_keeps_its_queue_and_order_at_a_slow_or_failed_node(
    cluster: FakeCluster,
) -> None:
    key = next(f"k{n}" for n in range(100) if queue_of(f"k{n}", 6) == 1)
    cluster.produce_seconds = lambda node: 0.05 if node == 2 else 0.005
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await send(p, 60)
        for n in range(50):
            p.send_nowait(b"k%d" % n, key=key)
            p.send_nowait(b"x")
            if n == 25:
                cluster.nodes[2].cut()
            await anyio.sleep(0.01)
        await p.flush()
    keyed = [body for body in cluster.stored()[1] if body.startswith(b"k")]
    assert keyed == [b"k%d" % n for n in range(50)]


@pytest.mark.parametrize(
    ("pace", "is_noisy"),
    [(0.0002, False), (0.001, False), (0.003, False), (0.001, True)],
    ids=["fast", "usual", "slow", "noisy"],
)
async def test_batches_are_as_full_as_with_one_node(
    cluster: FakeCluster, pace: float, is_noisy: bool
) -> None:
    # With one node no weight can differ. A turn that passed too soon would make more batches.
    if is_noisy:
        cluster.produce_seconds = lambda _: cluster.random.expovariate(1 / 0.005)
    batches = {}
    for nodes in (1, 3):
        for group in (1, 2, 3):
            cluster.move(group, (group - 1) % nodes + 1)
        before = count_batches(cluster)
        async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
            for _ in range(2000):
                p.send_nowait(b"x" * 10)
                await anyio.sleep(pace)
            await p.flush()
        batches[nodes] = count_batches(cluster) - before
    assert batches[3] <= (1.2 if is_noisy else 1.03) * batches[1]


def count_batches(cluster: FakeCluster) -> int:
    return sum(node.requests.count(FrameKind.PRODUCE) for node in cluster.nodes.values())


async def test_client_of_a_zone_prefers_its_leaders_and_falls_back_to_others(
    cluster: FakeCluster,
) -> None:
    async with connect(URL, world=cluster, zone="b") as mq, mq.producer("orders") as p:
        await send(p, 60)
        found = await send(p, 640)
        assert found[2] >= 600
        assert found[1] > 0, "other zones are measured as well"
        assert p.statistics().weights == {1: WEIGHT_MIN, 2: 1, 3: WEIGHT_MIN}
        cluster.produce_seconds = lambda node: 0.2 if node == 2 else 0.005
        await send(p, 300)
        assert (await send(p, 300))[2] < 30, "overloaded"
        cluster.produce_seconds = lambda _: 0.005
        cluster.kill(2)
        await send(p, 10)
        with anyio.fail_after(2.0):
            assert (await send(p, 300))[2] == 0
        cluster.unreachable.discard(2)
        await anyio.sleep(PROBE_SECONDS)
        await send(p, 6000)
        assert (await send(p, 300))[2] > 270


async def test_zone_in_the_url_is_that_of_the_client_and_the_option_goes_before(
    cluster: FakeCluster,
) -> None:
    url = f"{URL}?zone=c"
    for zone, node in (("", 3), ("a", 1)):
        async with connect(url, world=cluster, zone=zone) as mq, mq.producer("orders") as p:
            assert (await send(p, 64))[node] >= 60
