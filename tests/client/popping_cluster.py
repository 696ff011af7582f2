"""Shared parts of the tests of consumers that pop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from raftmq.client import Client, connect
from raftmq.client.pop.consumer import PopConsumer

from .fake_cluster import URL, FakeCluster


@asynccontextmanager
async def opened(cluster: FakeCluster, **options: Any) -> AsyncIterator[Client]:
    async with connect(URL, world=cluster, **options) as mq:
        yield mq


def audit(cluster: FakeCluster) -> dict[str, int]:
    """How many messages are in each state, over all partition groups, now that time has passed."""
    total: dict[str, int] = {}
    for group, log in cluster.logs.items():
        cluster.nodes[cluster.leaders[group]].popping.pass_time(log)
        for attached in log.machine.pop_groups.attached.values():
            for state, count in attached.group.audit().items():
                total[state] = total.get(state, 0) + count
    return {state: count for state, count in total.items() if count}


async def pop_all(c: PopConsumer, count: int) -> list[bytes]:
    """Pop and ack until this many came."""
    got: list[bytes] = []
    while len(got) < count:
        batch = await c.pop(7, wait=5.0)
        assert batch, f"nothing after {len(got)}"
        assert (await batch.ack()).is_complete
        got += batch.bodies
    return got
