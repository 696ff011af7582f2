"""The rest of a request is credit that stands, without another record."""

import trio

from raftmq.wire.messages import Done, FrameKind
from raftmq.wire.popping import Leave
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE


def test_what_is_left_of_credit_needs_no_record() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        group = cluster.nodes[cluster.leader_of(QUEUE)].groups[1]
        await alice.pop(0)
        found: list[bytes] = []

        async def pop() -> None:
            until = trio.current_time() + 60
            while (credit := 50 - len(found)) > 0:
                wait_ms = round(1000 * (until - trio.current_time()))
                found.extend((await alice.pop(credit, wait_ms=wait_ms, is_kept=True))[1])

        before = group.machine.applied
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pop)
            await trio.sleep(1)
            for n in range(25):
                await client.produce(QUEUE, [b"a", b"b"], 2 * n)
                await trio.sleep(0.3)
        assert found == [b"a", b"b"] * 25
        # The batches, and one request.
        assert group.machine.applied - before == 25 + 1

    with_group(job)


def test_credit_that_nobody_comes_for_ends_with_its_wait() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a"], 0)
        assert (await alice.pop(50, wait_ms=2_000, is_kept=True))[1] == [b"a"]
        await trio.sleep(2.5)
        await client.produce(QUEUE, [b"b"], 1)
        assert (await alice.backlog()).leased == 1
        assert (await alice.pop(50, wait_ms=2_000, is_kept=True))[1] == [b"b"]

    with_group(job)


def test_credit_goes_with_who_leaves() -> None:
    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await client.produce(QUEUE, [b"a"], 0)
        assert (await alice.pop(50, wait_ms=60_000, is_kept=True))[1] == [b"a"]
        await client.ask(FrameKind.LEAVE, Leave(1, alice.number, alice.me), Done)
        await client.produce(QUEUE, [b"b"], 1)
        assert (await alice.backlog()).leased == 1

    with_group(job)
