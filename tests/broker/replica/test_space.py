"""Full disks: a node without space gives its leadership away, and can still vote and clean up.

One node's disk is made small; the reserve is most of its free space.
"""

import pytest
import trio

from raftmq.broker.settings import Log, Raft
from raftmq.client import Client
from raftmq.errors import OutcomeUnknown, Unavailable
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, bodies, in_cluster, with_client

RESERVE = 60_000
LOG = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=RESERVE)


def shrink(cluster: Cluster, node: int, *, left: int) -> None:
    """Leave this many bytes on a node's disk."""
    files = cluster.files[node]
    files.space = files.used() + left


async def store(cluster: Cluster, first: int, count: int, *, seconds: float = 60) -> None:
    """The next messages of one producer, wherever the queue is led."""
    with trio.fail_after(seconds):
        for n in range(first, first + count):
            while True:
                try:
                    async with cluster.client(cluster.leader_of(QUEUE)) as client:
                        await client.produce(QUEUE, [b"%d" % n + b"." * 1000], n)
                    break
                except (Refused, OSError, trio.BrokenResourceError):
                    await trio.sleep(0.1)


async def numbers(cluster: Cluster) -> list[int]:
    return [int(body.split(b".")[0]) for body in await bodies(cluster, QUEUE)]


@pytest.mark.parametrize("left", [RESERVE - 1, RESERVE // 4, 0])
def test_leader_without_space_hands_over_and_gets_the_office_back_with_its_space(
    left: int,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await store(cluster, 0, 5)
        full = cluster.leader_of(QUEUE)
        shrink(cluster, full, left=left)
        await store(cluster, 5, 20, seconds=10)
        assert cluster.leader_of(QUEUE) != full
        # It is the preferred leader, and must not be made one while its disk is full.
        node = cluster.nodes[full]
        for n in range(100):
            await trio.sleep(0.3)
            assert cluster.leader_of(QUEUE) != full
            if n % 10 == 0:
                await store(cluster, 25 + n // 10, 1)
            assert node.status()["leads"] == []
        assert await numbers(cluster) == list(range(35))
        cluster.files[full].space = None
        await cluster.wait_until(lambda: cluster.leader_of(QUEUE) == full)
        await store(cluster, 35, 5)
        assert await numbers(cluster) == list(range(40))

    in_cluster(scenario, log=LOG)


def test_preferred_leader_that_declines_does_not_stop_the_group() -> None:
    """At the pace that nodes have by default, in any second."""

    async def scenario(cluster: Cluster) -> None:
        cluster.raft = Raft()
        await cluster.found("t", 1)
        await store(cluster, 0, 5)
        full = cluster.leader_of(QUEUE)
        # Enough to take and acknowledge records, too little to lead.
        shrink(cluster, full, left=RESERVE - 1)
        await store(cluster, 5, 1, seconds=20)
        await trio.sleep(8)
        leader = cluster.leader_of(QUEUE)
        assert leader != full
        taken, refused = 0, 0
        async with cluster.client(leader) as client:
            until = trio.current_time() + 65
            while trio.current_time() < until:
                try:
                    await client.produce(QUEUE, [b"x"], 6 + taken)
                    taken += 1
                except Refused:
                    refused += 1
                await trio.sleep(0.1)
        assert taken > 500
        assert refused <= 3
        cluster.files[full].space = None
        with trio.fail_after(60):
            await cluster.wait_until(lambda: cluster.leader_of(QUEUE) == full)

    in_cluster(scenario, log=LOG)


def test_refusal_names_the_node_its_folder_and_what_still_works() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await store(cluster, 0, 5)
        for node in (1, 2, 3):
            shrink(cluster, node, left=RESERVE // 2 + 10_000)
        await trio.sleep(3)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            with pytest.raises(Refused) as refused:
                await client.produce(QUEUE, [b"x"], 5)
        reply = refused.value.reply
        assert reply.code == "busy"
        assert f"the disk of node {leader} is full: /data has" in reply.message
        assert "reads go on" in reply.message
        assert reply.retry_ms > 0
        assert await numbers(cluster) == list(range(5))

    in_cluster(scenario, log=LOG)


def test_node_without_space_for_messages_still_votes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        await store(cluster, 0, 5)
        leader = cluster.leader_of(QUEUE)
        full, other = (node for node in (1, 2, 3) if node != leader)
        shrink(cluster, full, left=RESERVE // 4)
        await trio.sleep(3)
        # More than the reserve: a follower that wrote it would have nothing left for its vote.
        await store(cluster, 5, RESERVE // 1000)
        cluster.kill(leader)
        with trio.fail_after(10):
            await cluster.wait_led(0, 1, 2, 3)
        assert cluster.leader_of(QUEUE) == other
        cluster.files[full].space = None
        await store(cluster, 5 + RESERVE // 1000, 1)
        assert await numbers(cluster) == list(range(6 + RESERVE // 1000))

    in_cluster(scenario, log=LOG)


def test_full_disks_are_emptied_by_retention_and_take_messages_again() -> None:
    log = Log(
        segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=RESERVE, retention_ms=60_000
    )

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        for node in (1, 2, 3):
            shrink(cluster, node, left=400_000)
        with pytest.raises(trio.TooSlowError):
            await store(cluster, 0, 1000, seconds=30)
        stored = len(await bodies(cluster, QUEUE))
        assert 200 < stored < 400
        # Dropping old segments needs a record of its own, which only the reserve has room for.
        await trio.sleep(120)
        await store(cluster, stored, 100)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            fetched, _ = await client.fetch(QUEUE, stored + 99)
        assert fetched.queues[0].end == stored + 100
        assert fetched.queues[0].earliest > 0

    in_cluster(scenario, log=log)


def test_consumers_pop_ack_and_commit_until_half_of_the_reserve_is_left() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as producer:
            await producer.send_many([b"%d" % n for n in range(20)])
        async with (
            mq.consumer("orders", group="popping", mode="pop", prefetch=0) as popping,
            mq.consumer("orders", group="reading") as reading,
        ):
            for node in (1, 2, 3):
                shrink(cluster, node, left=RESERVE - 1)
            await trio.sleep(3)
            async with mq.producer("orders") as producer:
                with pytest.raises(Unavailable, match="takes no messages"):
                    await producer.send(b"x", timeout=2)
            for message in await popping.pop(10, wait=5):
                await message.ack()
            assert len(await reading.fetch(20, wait=5)) == 20
            await reading.commit()
            for node in (1, 2, 3):
                shrink(cluster, node, left=RESERVE // 4)
            await trio.sleep(3)
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await reading.commit({0: 5}, timeout=2)
            assert len(await popping.pop(1, wait=2)) == 0
            for node in (1, 2, 3):
                cluster.files[node].space = None
            await trio.sleep(3)
            # Acked messages stay acked, and the rest is handed out.
            rest = [int(message.body) for message in await popping.pop(20, wait=5)]
            assert rest == list(range(10, 20))
            assert await reading.committed() == {0: 20}

    with_client(job, log=LOG)
