"""Searches by key, and in the events: the limits count them, and a search ends with its client."""

from functools import partial

import pytest
import trio

from raftmq.broker.serve import key_search
from raftmq.broker.settings import Limits, Log
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, FindKey, FrameKind, Hello
from raftmq.wire.traces import FindEvents
from tests.broker.harness import Cluster, RawClient
from tests.broker.scenario import QUEUE, in_cluster

MIB = 1 << 20
SEARCH = pack(FindKey(1, QUEUE >> QUEUE_BITS, b"k", 0, 1000))


async def fill(cluster: Cluster, batches: int, size: int) -> None:
    """A topic whose batches all have the key."""
    await cluster.found("t", 1)
    async with cluster.client(cluster.leader_of(QUEUE)) as client:
        for n in range(batches):
            await client.produce(QUEUE, [bytes(size)], n, keys=[b"k"])


async def send_searches(
    client: RawClient, count: int, *, kind: int = FrameKind.KEY, header: bytes = SEARCH
) -> None:
    """Send searches all at once, and read no answer."""
    hello = encode_frame(FrameKind.HELLO, 0, pack(Hello(PROTOCOL, "", 0, "", "x")))
    searches = [encode_frame(kind, n, header) for n in range(1, count + 1)]
    await client._stream.send_all(b"".join(part for parts in (hello, *searches) for part in parts))


@pytest.mark.parametrize(
    ("kind", "header"),
    [(FrameKind.KEY, SEARCH), (FrameKind.EVENTS, pack(FindEvents(1, 1, bytes_max=MIB)))],
    ids=["key", "events"],
)
def test_searches_that_no_client_reads_hold_no_more_than_the_limits(
    kind: FrameKind, header: bytes
) -> None:
    async def scenario(cluster: Cluster) -> int:
        cluster.limits = Limits(
            connection_bytes_max=MIB, requests_bytes_max=8 * MIB, fetch_bytes_max=MIB
        )
        cluster.log = Log(segment_bytes=MIB, cache_bytes=MIB, reserve_bytes=0)
        await fill(cluster, 15, 100_000)
        node, most = cluster.nodes[cluster.leader_of(QUEUE)], 0
        async with (
            cluster.connection(node.id, is_lockstep=True) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(send_searches, client, 40, kind=kind, header=header))
            for _ in range(100):
                await trio.sleep(0.01)
                most = max(most, node.load.request_bytes)
            nursery.cancel_scope.cancel()
        return most

    # The search that passes the limit, and one batch more than it may read.
    assert MIB < in_cluster(scenario) < 2.5 * MIB


def test_searches_that_may_bring_all_bytes_of_a_connection_are_answered() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.limits = Limits(connection_bytes_max=2 * MIB, fetch_bytes_max=MIB)
        await fill(cluster, 3, 100)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            frames = await client.request_all(*[(FrameKind.KEY, SEARCH, ())] * 5)
        assert {frame.kind & ~REPLY for frame in frames} == {FrameKind.KEY}

    in_cluster(scenario)


def test_search_whose_client_has_left_reads_nothing_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_search, "KEY_CHUNK", 1)
    looks = 0
    look_on = key_search._Search.look_on

    def counted(search: key_search._Search) -> bool:
        nonlocal looks
        looks += 1
        return look_on(search)

    monkeypatch.setattr(key_search._Search, "look_on", counted)

    async def scenario(cluster: Cluster) -> None:
        await fill(cluster, 50, 10)
        async with cluster.connection(cluster.leader_of(QUEUE)) as client:
            await send_searches(client, 1)
            await cluster.wait_until(lambda: looks > 0)
        await trio.sleep(1)

    in_cluster(scenario)
    assert 0 < looks < 50
