"""Deadlines, and the memory of cancelled ones."""

import gc
import weakref
from functools import partial

import trio

from raftmq.broker.timers import SLACK, Timers
from raftmq.chaos.world import run
from raftmq.client import Client
from raftmq.wire.assignment import Heartbeat
from raftmq.wire.codec import pack
from raftmq.wire.fetches import Fetch, FetchFrom
from raftmq.wire.messages import (
    FrameKind,
)
from tests.broker.popping import BOB, Consumer, with_group
from tests.broker.scenario import QUEUE, in_cluster, with_client

from .harness import Cluster, RawClient


class Call:
    """Counts its calls."""

    def __init__(self, calls: list[int], number: int) -> None:
        self._calls, self._number = calls, number

    def __call__(self) -> None:
        self._calls.append(self._number)


def test_calls_come_in_order_and_cancelled_ones_do_not() -> None:
    async def main() -> list[int]:
        timers, calls = Timers(), list[int]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            asked = [timers.call_after(1 + n % 3, Call(calls, n)) for n in range(9)]
            asked[0].cancel()
            asked[4].cancel()
            await trio.sleep(2.5)
            # Without effect: the call was made already.
            asked[3].cancel()
            asked[2].cancel()
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert len(timers) == 0
        return calls

    assert run(main, seed=1) == [3, 6, 1, 7, 5, 8]


def test_cancelled_calls_hold_nothing_and_leave_the_heap() -> None:
    async def main() -> None:
        timers = Timers()
        kept = [timers.call_after(60, Call([], n)) for n in range(10)]
        for n in range(10_000):
            call = Call([], n)
            seen = weakref.ref(call)
            timers.call_after(60, call).cancel()
            del call
            gc.collect(0)
            assert seen() is None
            assert len(timers) <= 2 * len(kept) + 2 * SLACK + 2

    run(main, seed=1)


def test_answered_long_polls_leave_no_timers_and_a_connection_takes_its_own_along() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        leader = cluster.leader_of(QUEUE)
        timers = cluster.nodes[leader].timers
        async with cluster.client(leader) as client:
            for n in range(500):
                request = pack(Fetch([FetchFrom(QUEUE, n)], 60_000, 1 << 20))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.request, FrameKind.FETCH, request)
                    await trio.sleep(0.001)
                    await client.produce(QUEUE, [b"x"], n)
            assert len(timers) < 3 * SLACK
            async with trio.open_nursery() as nursery:
                for _ in range(1000):
                    request = pack(Fetch([FetchFrom(QUEUE, 500)], 60_000, 1 << 20))
                    nursery.start_soon(client.request, FrameKind.FETCH, request)
                await trio.sleep(1)
                assert len(timers) > 1000
                nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert len(timers) < 3 * SLACK

    in_cluster(scenario)


def test_pops_that_were_answered_leave_no_timers() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        timers = cluster.nodes[cluster.leader_of(QUEUE)].timers
        for n in range(300):
            await client.produce(QUEUE, [b"x"], n)
            popped, bodies = await alice.pop(1, wait_ms=60_000)
            assert bodies == [b"x"]
            await alice.ack(popped.leases[0])
        assert len(timers) < 3 * SLACK
        # One request takes the place of the other, and a connection takes its own along.
        async with cluster.client(cluster.leader_of(QUEUE)) as other:
            bob = Consumer(other, alice.number, me=BOB)
            async with trio.open_nursery() as nursery:
                for _ in range(300):
                    nursery.start_soon(partial(bob.pop, 1, wait_ms=60_000))
                await trio.sleep(1)
                assert len(timers) < 3 * SLACK
                many = [Consumer(other, alice.number, me=100 + n) for n in range(300)]
                for one in many:
                    nursery.start_soon(partial(one.pop, 1, wait_ms=60_000))
                await trio.sleep(1)
                assert len(timers) > len(many)
                nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert len(timers) < 3 * SLACK

    with_group(job)


def test_short_leases_beside_a_long_one_leave_no_timers() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        timers = cluster.nodes[cluster.leader_of(QUEUE)].timers
        await client.produce(QUEUE, [b"x"] * 201, 0)
        await alice.pop(1, invisible_ms=3_600_000)
        for _ in range(200):
            popped, _ = await alice.pop(1, invisible_ms=1_000)
            assert await alice.ack(popped.leases[0]) == [1]
            await trio.sleep(1.1)
        assert len(timers) < 2 * SLACK

    with_group(job)


def test_delayed_messages_that_came_before_a_late_one_leave_no_timers() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        timers = cluster.nodes[cluster.leader_of(QUEUE)].timers
        async with mq.producer("orders") as p:
            await p.send(b"late", delay=3600)
            for _ in range(300):
                await p.send(b"soon", delay=0.02)
                await trio.sleep(0.05)
        assert len(timers) < 2 * SLACK

    with_client(job)


def test_heartbeats_that_were_answered_leave_no_timers() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        timers = cluster.nodes[cluster.leader(0)].timers
        async with mq.consumer("orders", group="g", queues="assigned") as c:
            await c.fetch(1, wait=1)
            async with cluster.client(cluster.leader(0)) as client, trio.open_nursery() as nursery:
                (member,) = cluster.nodes[cluster.leader(0)].catalog.memberships.of_member
                beat = Heartbeat(member, 1 << 40, 60_000)
                for _ in range(300):
                    nursery.start_soon(client.request, FrameKind.HEARTBEAT, pack(beat))
                await trio.sleep(1)
                assert len(timers) < 3 * SLACK
                nursery.cancel_scope.cancel()

    with_client(job)
