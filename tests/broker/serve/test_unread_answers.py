"""Answers that come later, to a connection that takes none: it holds no more than it may."""

import pytest
import trio

from raftmq.broker.serve import group_coordinator
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.traces import EVENT_BYTES, EVENTS_MAX
from raftmq.broker.settings import Limits
from raftmq.client import Client
from raftmq.pop.actions import Action
from raftmq.wire.assignment import Heartbeat
from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import PROTOCOL, ErrorReply, FrameKind, Hello
from raftmq.wire.popping import SettleItem
from raftmq.wire.traces import FindTrace
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE, in_cluster

from .test_assignment import SESSION, opened, settled, with_clients

KIB = 1024
LIMITS = Limits(connection_bytes_max=64 * KIB)


async def send_all(client: RawClient, kind: FrameKind, headers: list[bytes]) -> None:
    """Send requests all at once, and read no answer."""
    parts = encode_frame(FrameKind.HELLO, 0, pack(Hello(PROTOCOL, "", 0, "", "x")))
    for number, header in enumerate(headers, 1):
        parts += encode_frame(kind, number, header)
    await client._stream.send_all(b"".join(parts))


async def most_held(cluster: Cluster, node: int, seconds: float) -> int:
    """The most bytes that all connections of a node hold within some seconds."""
    most = 0
    with trio.move_on_after(seconds):
        while True:
            most = max(most, cluster.nodes[node].load.request_bytes)
            await trio.sleep(0.001)
    return most


def test_heartbeats_that_wait_bring_no_more_than_the_limit_at_a_change() -> None:
    async def scenario(cluster: Cluster) -> int:
        cluster.limits = LIMITS
        await cluster.found("t", 2000)
        node = cluster.leader(0)
        async with (
            cluster.client(node) as client,
            cluster.connection(node, is_lockstep=True) as reader,
            trio.open_nursery() as nursery,
        ):
            members = range(1, 61)
            for n in members:
                join = ("t", "g", n, 60_000, f"i{n}", False, "", "broadcast")
                (version, *_) = await client.admin("join", *join)
            beats = [pack(Heartbeat(n, version, 60_000)) for n in members]
            nursery.start_soon(send_all, reader, FrameKind.HEARTBEAT, beats)
            await trio.sleep(0.2)
            await client.admin("alter_topic", "t", 2001)
            most = await most_held(cluster, node, 1)
            nursery.cancel_scope.cancel()
        return most

    assert 64 * KIB < in_cluster(scenario) < 2 * 64 * KIB


def test_member_whose_heartbeat_is_refused_asks_again_and_hears_of_the_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, until = 0, 0.0

    def unread(_: Connection) -> ErrorReply | None:
        nonlocal refused
        if trio.current_time() >= until:
            return None
        refused += 1
        return ErrorReply("busy", "read them first", retry_ms=100)

    async def job(_: Cluster, mqs: list[Client]) -> None:
        nonlocal until
        async with opened(mqs[0]) as first:
            await settled(first)
            until = trio.current_time() + SESSION / 2
            async with opened(mqs[1]) as second:
                await settled(first, second)
            assert refused

    monkeypatch.setattr(group_coordinator, "unread", unread)
    with_clients(job, clients=2)


def test_traces_bring_no_more_than_the_limit() -> None:
    most = 0

    async def job(cluster: Cluster, client: RawClient, consumer: Consumer) -> None:
        nonlocal most
        await client.produce(QUEUE, [b"x"], 0)
        for _ in range(8):
            (lease,) = (await consumer.pop(1, wait_ms=5000))[0].leases
            await consumer.settle(SettleItem(Action.NACK, lease.token, lease.base, lease.bits, 1))
        node = cluster.leader_of(QUEUE)
        why = pack(FindTrace(1, QUEUE, 0))
        async with (
            cluster.connection(node, is_lockstep=True) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(send_all, reader, FrameKind.WHY, [why] * 900)
            most = await most_held(cluster, node, 1)
            nursery.cancel_scope.cancel()

    with_group(job, limits=LIMITS)
    # The limit, and the request that passes it.
    assert most < 64 * KIB + 2 * EVENTS_MAX * EVENT_BYTES
