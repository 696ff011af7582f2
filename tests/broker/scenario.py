"""Running a scenario against three simulated nodes, and reading a queue as a whole."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio

from raftmq.broker.settings import Log
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.world import run
from raftmq.client import Client

from .harness import Cluster

QUEUE = 1 << 16


def in_cluster(
    scenario: Callable[[Cluster], Awaitable[Any]],
    *,
    seed: int = 1,
    size: int = 3,
    log: Log | None = None,
) -> Any:
    """Run a scenario with a cluster of simulated nodes; none of them is started yet."""

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, seed=seed, size=size)
            cluster.log = log or cluster.log
            with trio.fail_after(3600):
                result = await scenario(cluster)
            assert cluster.stopped == {}, "a node gave up"
            assert not cluster.broken, "\n".join(cluster.broken.values())
            nursery.cancel_scope.cancel()
        return result

    return run(main, seed=seed)


def with_client(
    job: Callable[[Cluster, Client], Awaitable[Any]],
    *,
    queues: int = 1,
    seed: int = 1,
    log: Log | None = None,
) -> Any:
    """Run a job with a client of a new cluster that has a topic "orders"."""

    async def scenario(cluster: Cluster) -> Any:
        await cluster.found("orders", queues)
        async with trio.open_nursery() as nursery:
            clients = Clients(cluster, nursery, seed=1)
            found: list[Any] = []

            async def run(mq: Client, _: object) -> None:
                found.append(await job(cluster, mq))

            await clients.once(run)
            assert not clients.failures, clients.failures
            nursery.cancel_scope.cancel()
        return found[0]

    return in_cluster(scenario, seed=seed, log=log)


async def bodies(cluster: Cluster, queue: int, offset: int = 0) -> list[bytes]:
    """All messages of a queue from an offset on, read from its leader."""
    found: list[bytes] = []
    async with cluster.client(cluster.leader_of(queue)) as client:
        while batches := await client.read(queue, offset):
            for base, batch in batches:
                found += batch.bodies[max(0, offset - base) :]
                offset = base + len(batch)
    return found


async def kill_some(cluster: Cluster, random: Random, seconds: float) -> None:
    """For `seconds`, kill one node after the other, half by a power loss, and start it again."""
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        await trio.sleep(random.uniform(0.3, 3))
        node = random.choice(sorted(cluster.nodes))
        cluster.kill(node, power=random.random() < 0.5)
        await trio.sleep(random.uniform(0.1, 3))
        await cluster.start(node)
