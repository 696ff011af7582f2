"""Clients that leave before their requests are acted on, whose answers need the disk."""

import trio

from raftmq.wire.codec import pack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import FrameKind
from raftmq.wire.popping import Pop
from raftmq.wire.traces import FindEvents
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer
from tests.broker.scenario import QUEUE

CACHE_BYTES = 1 << 20
"""Of each log: less than `BATCHES` hold."""
BATCHES, BATCH_BYTES = 6, 600_000
SETTLED_SECONDS = 5.0
"""Until nothing is read for clients that have left."""


async def ask_for_events(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
    """EVENTS, whose reads of the log are linearizable: they wait for the other nodes."""
    await client.produce(QUEUE, [b"x"], 0)
    first = cluster.nodes[cluster.leader_of(QUEUE)].groups[1].index.first
    for _ in range(3):
        await _leave(cluster, FrameKind.EVENTS, pack(FindEvents(1, first)))
    await trio.sleep(SETTLED_SECONDS)


async def resume(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
    """A consumer comes back whose lease holds a batch that the cache has dropped."""
    for n in range(BATCHES):
        await client.produce(QUEUE, [bytes(BATCH_BYTES)], n)
    await alice.pop(1, invisible_ms=600_000)
    request = Pop(1, alice.number, alice.me, 0, 0, 600_000, 2 << 20, is_resumed=True)
    for _ in range(3):
        await _leave(cluster, FrameKind.POP, pack(request))
    await trio.sleep(SETTLED_SECONDS)


async def _leave(cluster: Cluster, kind: int, header: bytes) -> None:
    async with cluster.client(cluster.leader_of(QUEUE)) as leaver:
        await leaver._stream.send_all(b"".join(encode_frame(kind, 1, header)))
