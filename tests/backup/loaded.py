"""Messages for a small cluster, and a way to run a restored folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import raftmq
from raftmq.inprocess.cluster import InProcessCluster, in_process

TOPIC, GROUP, READERS = "orders", "billing", "readers"
QUEUES = 3
SETTINGS: dict[str, dict[str, int | str]] = {
    "raft": {"tick_ms": 20},
    "log": {"segment_bytes": 64 * 1024},
}
HOST = "in-process"
"""The host of nodes within a process; the port of a node is its number."""
NEW_CLUSTER = "shop-again"


async def send(mq: raftmq.Client, first: int, count: int) -> None:
    """Messages with these numbers, in turns over all queues; all are acknowledged on return."""
    async with mq.producer(TOPIC) as producer:
        for queue in range(QUEUES):
            bodies = [b"%d " % n + b"x" * 200 for n in range(first + queue, first + count, QUEUES)]
            await producer.send_many(bodies=bodies, queue=queue)


async def read(mq: raftmq.Client) -> dict[tuple[int, int], bytes]:
    """All messages by queue and offset."""
    ends = await mq.admin.find_offsets(TOPIC, "latest")
    found: dict[tuple[int, int], bytes] = {}
    async with mq.consumer(TOPIC) as consumer:
        while len(found) < sum(ends.values()):
            for m in await consumer.fetch(500):
                found[m.queue, m.offset] = m.body
    return found


@asynccontextmanager
async def restored(folder: Path) -> AsyncIterator[InProcessCluster]:
    """The node of a restored folder, `folder / "node-1"`, running."""
    settings: dict[str, dict[str, int | str]] = {**SETTINGS, "node": {"cluster": NEW_CLUSTER}}
    async with in_process(1, folder=folder, settings=settings) as nodes:
        yield nodes
