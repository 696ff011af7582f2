"""Simulated clusters whose users, or topics, have quotas."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import trio

from raftmq.batch import encode
from raftmq.broker.node import Node
from raftmq.broker.settings import Limits
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.sim.cluster import CLUSTER
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process
from raftmq.client import Client
from raftmq.machine.catalog.quotas import Quota
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.codec import unpack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind, Produced
from tests.broker.harness import Cluster, RawClient
from tests.broker.scenario import QUEUE, in_cluster

ALICE, BOB = "alice", "bob"
TOPIC = "orders"


def with_users(job: Callable[[Cluster], Awaitable[Any]], *, limits: Limits | None = None) -> Any:
    """Run a job with a cluster that knows its users; each may do everything with topics and
    groups."""

    async def scenario(cluster: Cluster) -> Any:
        cluster.network.is_under_tls = True
        cluster.user = ADMIN
        cluster.limits = limits or cluster.limits
        await cluster.found(TOPIC, 1)
        async with cluster.client(cluster.leader(0)) as admin:
            for resource in ("topic", "group"):
                await admin.admin("put_rule", ["*", True, "any", resource, "", True])
        return await job(cluster)

    return in_cluster(scenario)


async def put_quota(cluster: Cluster, kind: str, name: str, **amounts: int) -> None:
    """Give a subject a quota, and wait until all nodes know it."""
    quota = msgspec.to_builtins(Quota(**amounts))
    async with cluster.client(cluster.leader(0)) as admin:
        await admin.admin("put_quota", [kind, name], quota)
    version = cluster.nodes[cluster.leader(0)].catalog.quotas.version
    await cluster.wait_until(
        lambda: all(node.catalog.quotas.version >= version for node in cluster.nodes.values())
    )


async def as_client(cluster: Cluster, user: str, job: Callable[[Client], Awaitable[None]]) -> None:
    """Do a job as a process of a user, with the real client."""
    machine = Machine(user, cluster.agenda, MemoryFiles())
    # With an equal seed two clients would draw the same numbers of consumers and producers.
    process = Process(machine, cluster.agenda, seed=7 + cluster.whole_clients)
    cluster.whole_clients += 1
    process.names = frozenset((CertificateName(CLUSTER, USER, user),))
    async with trio.open_nursery() as nursery:
        clients = Clients(cluster, nursery, seed=1)
        await clients.call(process, lambda mq, _: job(mq), clients._session(0))
        assert not clients.failures, clients.failures


async def alice_attaches(cluster: Cluster, alice: RawClient) -> tuple[int, int]:
    async with cluster.client(cluster.leader(0)) as admin:
        attached = await admin.admin("attach", TOPIC, "g", "pop", False)
    number, version = attached
    await cluster.wait_until(
        lambda: all(
            number in node.catalog.consumer_groups.attachments for node in cluster.nodes.values()
        )
    )
    return number, version


def leader(cluster: Cluster) -> Node:
    """The node that leads the first queue."""
    return cluster.nodes[cluster.leader_of(QUEUE)]


def in_flight(cluster: Cluster) -> int:
    """Messages of the topic in flight at the leader of the first queue."""
    group = leader(cluster).group(1)
    assert group is not None
    assert isinstance(group.machine, PartitionMachine)
    return group.machine.pop_groups.in_flight(QUEUE >> QUEUE_BITS, group.now_ms())


class Producing:
    """Batches on their way from one raw client, and when each was answered."""

    def __init__(self, client: RawClient, nursery: trio.Nursery, producer: int = 1) -> None:
        self._client = client
        self._nursery = nursery
        self._producer = producer
        self._next = 0
        self.answers: dict[int, tuple[float, Produced | ErrorReply]] = {}
        """First sequence of a batch → seconds since the start, and the answer."""
        self._begun = trio.current_time()

    async def send(self, *sizes: int, queue: int = QUEUE, **columns: Any) -> None:
        """Send batches of one message each, in order, and wait for no answer; `columns` as
        `raftmq.batch.encode` takes them."""
        client = self._client
        for size in sizes:
            sealed = encode([bytes(size)], **columns)
            batch = sealed.to_bytes(queue=queue, producer=self._producer, first_sequence=self._next)
            correlation = next(client._correlation)
            parts = encode_frame(FrameKind.PRODUCE, correlation, b"", [batch])
            await client._stream.send_all(b"".join(parts))
            self._nursery.start_soon(self._hear, correlation, self._next)
            self._next += 1

    async def _hear(self, correlation: int, first: int) -> None:
        while correlation not in self._client._answers:
            await self._client._came.wait()
        frame = self._client._answers.pop(correlation)
        is_error = frame.kind == FrameKind.ERROR
        answer = unpack(ErrorReply, frame.header) if is_error else unpack(Produced, frame.header)
        self.answers[first] = (trio.current_time() - self._begun, answer)

    @property
    def order(self) -> list[int]:
        """First sequences of the stored batches, in the order in which they are in the queue."""
        stored = {
            first: answer.base_offset
            for first, (_, answer) in self.answers.items()
            if isinstance(answer, Produced)
        }
        return sorted(stored, key=stored.__getitem__)

    async def answered(self, count: int) -> list[float]:
        """Wait for the answers to the first `count` batches; when each came."""
        with trio.fail_after(60):
            while not all(first in self.answers for first in range(count)):
                await trio.sleep(0.01)
        return [self.answers[first][0] for first in range(count)]

    def told_ms(self, first: int) -> int:
        """The throttle time that a batch's answer tells."""
        answer = self.answers[first][1]
        assert isinstance(answer, Produced)
        return answer.throttle_ms


def spread(times: Sequence[float]) -> list[float]:
    """The times, each to a tenth of a second."""
    return [round(time, 1) for time in times]
