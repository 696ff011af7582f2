"""A client's state for calls that may never come is bounded."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from raftmq.client import connect
from raftmq.client.pop import session, settlement_sender
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.leases import HeldLease
from raftmq.client.pop.session import PopSession
from raftmq.client.pop.settlement_sender import SettlementSender
from raftmq.client.produce import producer
from raftmq.errors import Unavailable
from tests.client.consume.test_consumer import fill

from .fake_cluster import URL, FakeCluster
from .popping_cluster import opened

pytestmark = pytest.mark.anyio


async def test_errors_that_nobody_heard_are_kept_up_to_a_bound(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_FAILED_MAX", 3)
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        for node in cluster.nodes:
            cluster.kill(node)
        for n in range(10):
            p.send_nowait(b"%d" % n, timeout=0.05)
        await anyio.sleep(0.5)
        assert len(p._failed) == 3
        with pytest.raises(Unavailable):
            await p.flush(timeout=1.0)
        assert not p._failed
        cluster.unreachable.clear()
        await p.send(b"later")


def test_fenced_messages_that_nobody_asked_about_are_kept_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settlement_sender, "GONE_MAX", 3)
    settler: Any = SimpleNamespace(_tally=SimpleNamespace(gone=[]))
    for token in range(1, 11):
        lease = HeldLease(group=1, token=token, queue_number=7, attempt=1, base=0)
        SettlementSender._tell_gone(settler, lease, 0b1, [])
    assert [gone.token for gone in settler._tally.gone] == [1, 2, 3]


def sessions_of(consumer: PopConsumer) -> list[PopSession]:
    assert consumer._prefetcher is not None
    return list(consumer._prefetcher.sessions.values())


async def test_leases_that_were_settled_are_forgotten(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=200, batch=1)
    most = 0
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=0) as c,
    ):
        for _ in range(200):
            (message,) = await c.pop(1, wait=5.0)
            await message.ack()
            most = max(most, *(len(each.leases) for each in sessions_of(c)))
    # The table drops ended calls each time that it has doubled.
    assert 10 <= most <= 17


async def test_leases_that_ran_out_are_forgotten_though_the_application_keeps_the_messages(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.01)
    fill(cluster, queues=1, messages=100, batch=1)
    kept: list[Any] = []
    most = 0
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", prefetch=0, invisible=1) as c,
    ):
        for _ in range(100):
            kept += await c.pop(1, wait=5.0)
            for each in sessions_of(c):
                for lease in each.leases.values():
                    # As if the application took a minute for each message.
                    lease.deadline -= 60
            most = max(most, *(len(each.leases) for each in sessions_of(c)))
    assert len(kept) == 100
    assert 10 <= most <= 17
