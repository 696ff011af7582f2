"""Connections and open requests of a user, on simulated nodes."""

from contextlib import AsyncExitStack

import pytest
import trio

from raftmq.broker.serve.connection import FRAME_SECONDS_MAX, Connection
from raftmq.broker.settings import Limits
from raftmq.client import Client
from raftmq.errors import Reason, Rejected
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.codec import pack
from raftmq.wire.fetches import Fetch, FetchFrom
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello, Metadata
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE

from .throttled import (
    ALICE,
    BOB,
    as_client,
    leader,
    put_quota,
    with_users,
)

MIB = 1 << 20
HELLO = encode_frame(FrameKind.HELLO, 0, pack(Hello(PROTOCOL, "", 0, "", "test")))


def test_a_user_has_as_many_connections_as_its_quota_allows() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, connections=2)
        node = cluster.leader_of(QUEUE)
        async with cluster.client(node, user=ALICE), cluster.client(node, user=BOB):
            async with (
                cluster.client(node, user=ALICE),
                cluster.connection(node, user=ALICE) as third,
            ):
                reply = await third.last_words(b"".join(HELLO))
                assert reply.code == "busy"
                assert reply.retry_ms
                assert "all 2 connections of its quota" in reply.message
            # One is gone.
            await trio.sleep(0.1)
            async with cluster.client(node, user=ALICE) as again:
                await again.view()

    with_users(scenario)


def test_an_administrator_of_the_settings_gets_in_whatever_the_quota() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", "*", connections=1)
        node = cluster.leader(0)
        async with cluster.client(node, user=ADMIN), cluster.client(node, user=ADMIN) as admin:
            await admin.admin("drop_quota", ["user", "*"])

    with_users(scenario)


def test_connections_of_a_user_with_all_its_requests_open_are_not_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.leader_of(QUEUE)
        async with (
            cluster.client(node, user=ALICE) as first,
            cluster.client(node, user=ALICE) as second,
            cluster.client(node, user=BOB) as bob,
        ):
            await put_quota(cluster, "user", ALICE, requests=2)
            wait = pack(Fetch([FetchFrom(QUEUE, 0)], 1_000, 1 << 20))
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.request, FrameKind.FETCH, wait)
                nursery.start_soon(second.request, FrameKind.FETCH, wait)
                await trio.sleep(0.1)
                await bob.view()
                assert trio.current_time() - began < 0.3
                await second.view()
                assert 1.0 <= trio.current_time() - began < 1.3
            await first.view()
            # A quota without a bound lets all of them read on.
            async with trio.open_nursery() as nursery:
                began = trio.current_time()
                nursery.start_soon(first.request, FrameKind.FETCH, wait)
                nursery.start_soon(second.request, FrameKind.FETCH, wait)
                await trio.sleep(0.1)
                nursery.start_soon(second.request, FrameKind.METADATA, pack(Metadata()))
                await put_quota(cluster, "user", ALICE)
                await first.view()
                assert trio.current_time() - began < 0.9

    with_users(scenario)


def test_a_user_that_owns_as_much_as_it_may_is_told_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, topics=1, groups=1)

        async def create(mq: Client) -> None:
            await mq.admin.create_topic("mine", 1)
            await mq.admin.attach("mine", "g1")
            for call in (mq.admin.create_topic("more", 1), mq.admin.attach("mine", "g2")):
                with pytest.raises(Rejected) as refused:
                    await call
                assert refused.value.reason is Reason.OVER_QUOTA
            with pytest.raises(Rejected, match="its quota is 1"):
                async with mq.consumer("mine", group="g3", queues="assigned") as consumer:
                    await consumer.fetch(1, wait=1)

        await as_client(cluster, ALICE, create)

    with_users(scenario)


def test_a_node_that_starts_has_its_quotas_from_the_first_request_on() -> None:
    """Its catalog may be that of a snapshot, after which nothing was applied yet."""

    async def scenario(cluster: Cluster) -> None:
        await put_quota(cluster, "user", ALICE, requests=5)
        async with cluster.client(cluster.leader(0)) as admin:
            for number in range(400):
                # A log of 64 KiB is sealed, and a snapshot taken.
                await admin.admin("put_quota", ["topic", f"{'x' * 100}{number}"], [1])
        node = next(number for number in cluster.nodes if number != cluster.leader(0))
        await cluster.wait_until(lambda: cluster.nodes[node].groups[0].store.snapshots != ())
        cluster.kill(node)
        seen: list[tuple[int, bool]] = []

        def look(number: int, what: str) -> None:
            if what == "serves":
                own = cluster.nodes[number]
                seen.append((len(own.catalog.quotas), own.quotas.is_on))

        cluster.listeners.append(look)
        await cluster.start(node)
        ((known, is_on),) = seen
        assert known > 0
        assert is_on

    with_users(scenario)


def test_connections_that_wait_for_a_share_are_woken_by_its_answers_alone_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakes = dict[str, int]()
    wake = Connection.wake

    def counted(connection: Connection) -> None:
        wakes[connection.user] = wakes.get(connection.user, 0) + 1
        wake(connection)

    monkeypatch.setattr(Connection, "wake", counted)

    async def scenario(cluster: Cluster) -> None:
        node = cluster.leader_of(QUEUE)
        async with cluster.client(node, user=BOB) as bob, AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(cluster.client(node, user=ALICE)) for _ in range(20)
            ]
            await put_quota(cluster, "user", ALICE, requests=2)
            wait = pack(Fetch([FetchFrom(QUEUE, 0)], 1_000, 1 << 20))
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for client in clients[:2]:
                    nursery.start_soon(client.request, FrameKind.FETCH, wait)
                await trio.sleep(0.1)
                for client in clients[2:]:
                    nursery.start_soon(client.request, FrameKind.METADATA, pack(Metadata()))
                await trio.sleep(0.1)
                wakes.clear()
                for _ in range(20):
                    await bob.view()
                assert not wakes.get(ALICE)
            # All have had their turn once the share was free.
            assert 1.0 <= trio.current_time() - began < 1.2
            assert wakes[ALICE] < 3 * len(clients)

    with_users(scenario)


def test_a_frame_byte_by_byte_is_given_up_in_time_where_its_user_has_all_requests_open() -> None:
    """Each wait for the share gave the frame its full time again."""

    async def scenario(cluster: Cluster) -> None:
        load = leader(cluster).load
        await put_quota(cluster, "user", ALICE, requests=1)
        async with (
            cluster.client(leader(cluster).id, user=ALICE) as slow,
            cluster.client(leader(cluster).id, user=ALICE) as other,
        ):
            frame = b"".join(encode_frame(FrameKind.METADATA, 1000, bytes(1000)))
            wait = pack(Fetch([FetchFrom(QUEUE, 0)], 1_000, 1 << 20))
            before = load.connections
            for at in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.request, FrameKind.FETCH, wait)
                    await trio.sleep(0.5)
                    await slow._stream.send_all(frame[at : at + 1])
                await trio.sleep(FRAME_SECONDS_MAX / 2)
            assert load.connections == before - 1

    with_users(scenario)


def test_a_connection_that_waits_for_its_share_lets_others_end_their_frames() -> None:
    """It was the only one that might read where the node was at its limit, and did not."""

    async def scenario(cluster: Cluster) -> None:
        load = leader(cluster).load
        await put_quota(cluster, "user", ALICE, requests=1)
        async with (
            cluster.client(leader(cluster).id, user=ALICE) as slow,
            cluster.client(leader(cluster).id, user=ALICE) as other,
            cluster.client(leader(cluster).id, user=BOB) as bob,
            trio.open_nursery() as nursery,
        ):
            frame = b"".join(encode_frame(FrameKind.PRODUCE, 1000, b"", [bytes(3 * MIB)]))
            await slow._stream.send_all(frame[: 2 * MIB])
            await trio.sleep(0.1)
            assert load.finisher is not None
            wait = pack(Fetch([FetchFrom(QUEUE, 0)], 60_000, 1 << 20))
            nursery.start_soon(other.request, FrameKind.FETCH, wait)
            await trio.sleep(0.1)
            await slow._stream.send_all(frame[2 * MIB : 2 * MIB + 1])
            began = trio.current_time()
            await bob.produce(QUEUE, [bytes(MIB // 2)], 0)
            assert trio.current_time() - began < 1
            nursery.cancel_scope.cancel()

    with_users(scenario, limits=Limits(requests_bytes_max=MIB))
