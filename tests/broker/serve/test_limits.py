"""Settings that promise a bound: each is filled, and holds."""

import trio

from raftmq.broker.settings import MIB, Limits, Log
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, in_cluster


def test_recent_records_of_all_groups_together_stay_within_their_limit() -> None:
    async def scenario(cluster: Cluster) -> list[int]:
        cluster.log = Log(cache_bytes=MIB, reserve_bytes=0)
        cluster.limits = Limits(cache_bytes_max=MIB)
        await cluster.found("t", 3)
        most: list[int] = []
        for queue in (QUEUE, QUEUE + 1, QUEUE + 2):
            async with cluster.client(cluster.leader_of(queue)) as client:
                for n in range(30):
                    await client.produce(queue, [bytes(50_000)], n)
                    most += [
                        sum(group.cache.memory_bytes() for group in node.groups.values())
                        for node in cluster.nodes.values()
                    ]
        return most

    found = in_cluster(scenario)
    # Each queue alone would fill the limit; each group has a quarter, and evicts an eighth of it.
    assert MIB // 2 < max(found) <= MIB


def test_record_larger_than_its_share_is_kept_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(cache_bytes_max=MIB)
        await cluster.found("t", 1)
        leader = cluster.nodes[cluster.leader_of(QUEUE)]
        await trio.sleep(2)
        async with cluster.client(leader.id) as client:
            await client.produce(QUEUE, [b"small"], 0)
            await client.produce(QUEUE, [bytes(600_000)], 1)
            cache = leader.groups[1].cache
            assert cache.memory_start() == cache.last_index()
            assert [len(batch) for _, batch in await client.read(QUEUE, 0)] == [1, 1]

    in_cluster(scenario)


def test_fetch_waits_no_longer_than_its_limit_and_brings_a_batch_more_at_most() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(fetch_wait_ms_max=300, fetch_bytes_max=10_000)
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            started = trio.current_time()
            fetched, body = await client.fetch(QUEUE, 0, wait_ms=60_000)
            assert 0.3 <= trio.current_time() - started < 5
            assert not body
            for n in range(10):
                await client.produce(QUEUE, [bytes(4_000)], n)
            # The third batch was begun below the limit.
            fetched, body = await client.fetch(QUEUE, 0)
            assert len(memoryview(fetched.queues[0].sizes).cast("I")) == 3
            assert len(body) < 10_000 + 4_200

    in_cluster(scenario)


def test_connection_with_as_many_requests_as_allowed_is_not_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(connection_requests_max=3)
        await cluster.found("t", 1)
        wait = pack(Fetch([FetchFrom(QUEUE, 0)], 1_000, 1 << 20))
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            for correlation in range(1_000, 1_003):
                frame = encode_frame(FrameKind.FETCH, correlation, wait)
                await client._stream.send_all(b"".join(frame))
            started = trio.current_time()
            fetched = await client.request(FrameKind.FETCH, pack(Fetch([], 0, 1)))
            # The request was taken when one of the three had ended.
            assert trio.current_time() - started > 0.9
            assert unpack(Fetched, fetched.header).queues == []

    in_cluster(scenario)
