"""Memory of fetch sessions: measured, bounded over the node, and given back."""

import gc
import tracemalloc

import msgspec
import pytest
import trio

from raftmq.broker.serve.fetch_sessions import IDLE_SECONDS, QUEUE_BYTES, QUEUES_LEAST, SESSIONS_MAX
from raftmq.broker.settings import Limits
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.wire.codec import pack
from raftmq.wire.fetches import Fetch, FetchFrom
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import in_cluster

from .test_fetch_sessions import Reader, fetches_of, led_by, opened


async def _read(reader: Reader, asked: list[FetchFrom]) -> None:
    """Ask until messages come; a full connection may get an empty answer."""
    while not reader.bodies:
        await reader.ask(*asked)


def test_idle_session_gives_way_to_another_where_the_node_is_at_its_bound() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(fetch_session_queues_max=9)
        await cluster.found("t", 9)
        queues = led_by(cluster, 1, 9)
        fetches = fetches_of(cluster, 1)
        async with cluster.client(1) as client:
            idle, later, waiting = [await opened(cluster, client, queues) for _ in range(3)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read, waiting, [])
                await trio.sleep(0.5 * IDLE_SECONDS)
                # All sessions were busy a moment ago: none is dropped for the new one.
                assert (await opened(cluster, client, queues)).session == 0
                later.wait_ms = 0
                await later.ask()
                await trio.sleep(0.5 * IDLE_SECONDS + 1)
                newcomer = await opened(cluster, client, queues)
                assert newcomer.session
                assert fetches.sessions.queues == 9
                with pytest.raises(Refused, match="there is no fetch session"):
                    await idle.ask()
                # A session that waits and one that asked a minute ago stay.
                await later.ask()
                await client.produce(queues[0], [b"x"], 0)
            assert waiting.bodies == {queues[0]: [b"x"]}

    in_cluster(scenario)


def test_sessions_without_queues_are_bounded_over_the_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(fetch_session_queues_max=QUEUES_LEAST * 1500)
        await cluster.found("t", 1)
        fetches = fetches_of(cluster, 1)
        kept: list[int] = []
        for _ in range(2):
            async with cluster.client(1) as client:
                readers = [await opened(cluster, client, []) for _ in range(SESSIONS_MAX)]
                kept.append(sum(1 for reader in readers if reader.session))
                if len(kept) == 1:
                    async with cluster.client(1) as other:
                        readers = [await opened(cluster, other, []) for _ in range(SESSIONS_MAX)]
                        assert sum(1 for reader in readers if reader.session) == 1500 - SESSIONS_MAX
                        assert len(fetches.sessions) == 1500
        assert kept == [SESSIONS_MAX, SESSIONS_MAX]

    in_cluster(scenario)


def test_fetch_that_is_kept_in_no_session_counts_with_what_its_queues_take() -> None:
    async def scenario(cluster: Cluster) -> None:
        bound = 100 * 2 * QUEUE_BYTES
        cluster.limits = Limits(fetch_session_queues_max=1, requests_bytes_max=bound)
        await cluster.found("t", 300)
        queues = led_by(cluster, 1, 300)
        assert len(queues) == 100
        load = cluster.nodes[1].load
        before = load.request_bytes
        asked = [FetchFrom(queue, 0) for queue in queues]
        async with cluster.client(1) as client, trio.open_nursery() as nursery:
            readers = [Reader(client, wait_ms=20_000) for _ in range(20)]
            for reader in readers:
                nursery.start_soon(_read, reader, asked)
            await trio.sleep(5)
            # Some requests wait; the node does not read the others.
            waiting = list(fetches_of(cluster, 1).sessions._open.values())
            assert sum(map(len, waiting)) == 2
            assert bound <= load.request_bytes < 1.1 * bound + before
            async with cluster.client(1) as other:
                await other.produce(queues[0], [b"x"], 0)
        assert all(reader.bodies == {queues[0]: [b"x"]} for reader in readers)
        await trio.sleep(1)
        assert load.request_bytes <= before

    in_cluster(scenario)


@pytest.mark.parametrize("sessions", [1, 10])
@pytest.mark.parametrize("consumer_group", ["", "g"])
def test_queue_of_a_session_takes_no_more_than_it_is_counted_with(
    consumer_group: str, sessions: int
) -> None:
    async def scenario(cluster: Cluster) -> float:
        await cluster.found("t", 1500)
        queues = led_by(cluster, 1, 1500)
        async with cluster.client(cluster.leader(0)) as admin:
            await admin.admin(*msgspec.to_builtins(Subscribe("t", "g", "n > 10")))
        await trio.sleep(2)
        asked = pack(
            Fetch([FetchFrom(q, 0) for q in queues], 0, 1, consumer_group=consumer_group, epoch=0)
        )
        async with cluster.client(1) as client:
            await client.request(FrameKind.FETCH, asked)
            fetches_of(cluster, 1).closed(next(iter(fetches_of(cluster, 1).sessions._kept)))
            gc.collect()
            tracemalloc.start(1)
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(sessions):
                await client.request(FrameKind.FETCH, asked)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert fetches_of(cluster, 1).sessions.queues == sessions * len(queues)
        return taken / sessions / len(queues)

    taken = in_cluster(scenario)
    print(f"{sessions} sessions, filter {consumer_group or 'none'}: {taken:.0f} bytes a queue")
    assert 100 < taken <= QUEUE_BYTES
