"""A consumer that pops from whole simulated clusters, frame by frame."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from raftmq.batch import Batch
from raftmq.broker.settings import Limits, Log
from raftmq.pop.actions import Action
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.popping import (
    BacklogView,
    FindBacklogs,
    FoundBacklogs,
    Lease,
    Pop,
    Popped,
    Settle,
    Settled,
    SettleItem,
)
from tests.broker.scenario import QUEUE, in_cluster

from .harness import Cluster, RawClient, Refused

ALICE, BOB = 11, 12


class Consumer:
    """A consumer that speaks frames over one connection to the leader of its queues."""

    def __init__(self, client: RawClient, number: int, *, me: int = ALICE, group: int = 1) -> None:
        self.client = client
        self.number = number
        self.me = me
        self.group = group
        self.sequence = 0
        self.is_new = True
        self.subscribed = 0

    async def pop(
        self,
        count: int,
        *,
        wait_ms: int = 0,
        invisible_ms: int = 10_000,
        bytes_max: int = 1 << 20,
        is_kept: bool = False,
    ) -> tuple[Popped, list[bytes]]:
        """Pop; returns the answer, and the bodies of its messages, lease by lease."""
        request = Pop(
            partition_group=self.group,
            number=self.number,
            consumer=self.me,
            count=count,
            wait_ms=wait_ms,
            invisible_ms=invisible_ms,
            bytes_max=bytes_max,
            is_resumed=self.is_new,
            subscribed=self.subscribed,
            is_kept=is_kept,
        )
        self.is_new = False
        while True:
            try:
                frame = await self.client.request(FrameKind.POP, pack(request))
                break
            except Refused as refused:
                if refused.reply.code != "unavailable" or not self.subscribed:
                    raise
                await trio.sleep(0.02)
        popped = unpack(Popped, frame.header)
        batches, position = {}, 0
        for item in popped.queues:
            bases = memoryview(item.bases).cast("Q")
            for base, size in zip(bases, memoryview(item.sizes).cast("I"), strict=True):
                data = frame.body[position : position + size]
                batch = Batch.decode(data, base_offset=base, timestamp=0)
                for n, body in enumerate(batch.bodies):
                    batches[item.queue, base + n] = body
                position += size
        assert position == len(frame.body)
        return popped, [batches[x.queue, at] for x in popped.leases for at in offsets(x)]

    async def settle(self, *items: SettleItem) -> list[int]:
        self.sequence += 1
        request = Settle(self.group, self.number, self.me, self.sequence, list(items))
        return (await self.client.ask(FrameKind.SETTLE, request, Settled)).results

    async def ack(self, lease: Lease) -> list[int]:
        return await self.settle(SettleItem(Action.ACK, lease.token, lease.base, lease.bits))

    async def backlog(self, queue: int = QUEUE) -> BacklogView:
        request = FindBacklogs(self.group, self.number)
        found = await self.client.ask(FrameKind.BACKLOGS, request, FoundBacklogs)
        return next(each for each in found.backlogs if each.queue == queue)


def offsets(lease: Lease) -> list[int]:
    bits = int.from_bytes(lease.bits, "little")
    return [lease.base + n for n in range(bits.bit_length()) if bits >> n & 1]


def with_group(
    job: Callable[[Cluster, RawClient, Consumer], Awaitable[Any]],
    *,
    is_latest: bool = False,
    mode: str = "pop",
    log: Log | None = None,
    limits: Limits | None = None,
) -> Any:
    """Run a job with a topic of one queue, a consumer group, and a connection to its leader."""

    async def scenario(cluster: Cluster) -> Any:
        cluster.limits = limits or cluster.limits
        await cluster.found("orders", 1)
        async with cluster.client(cluster.leader(0)) as client:
            number, _ = await client.admin("attach", "orders", "billing", mode, is_latest)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            return await job(cluster, client, Consumer(client, number))

    return in_cluster(scenario, log=log)
