"""Whole brokers in a made-up world: found, elect, produce, fetch, fail over."""

from typing import Any

import trio

from tests.broker.cluster import Cluster
from tests.broker.made_up import run


async def produce_and_fetch(seed: int) -> list[Any]:
    seen: list[Any] = []
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, seed=seed)
        await cluster.start()
        await cluster.wait_led(0)
        async with cluster.client(cluster.leader(0)) as client:
            while not (await client.view()).groups:
                await trio.sleep(0.05)
            assert await client.admin("create_topic", "orders", 3) == 1
        await cluster.wait_led(1, 2, 3)
        for n, group in enumerate((1, 2, 3)):
            leader = cluster.leader(group)
            queue = (1 << 16) + n
            async with cluster.client(leader) as client:
                produced = await client.produce(queue, [b"a", b"b"], 0)
                fetched, body = await client.fetch(queue, 0)
                seen.append((leader, produced.base_offset, fetched.queues[0].end, body))
        seen.append(trio.current_time())
        nursery.cancel_scope.cancel()
    return seen


def test_three_nodes_found_a_cluster_and_carry_messages() -> None:
    *seen, _ = run(produce_and_fetch, 1, seed=1)
    assert len(seen) == 3
    for _leader, base, end, body in seen:
        assert (base, end) == (0, 2)
        assert b"a" in body


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first = run(produce_and_fetch, 3, seed=3)
    assert run(produce_and_fetch, 3, seed=3) == first
    assert run(produce_and_fetch, 4, seed=4)[-1] != first[-1]
