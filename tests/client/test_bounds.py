"""What a client keeps for calls that may never come has a bound."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from raftmq.client import connect, producer, settling
from raftmq.client.leases import HeldLease
from raftmq.client.settling import Settler
from raftmq.errors import Unavailable

from .fake_cluster import URL, FakeCluster

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
    monkeypatch.setattr(settling, "GONE_MAX", 3)
    settler: Any = SimpleNamespace(_tally=SimpleNamespace(gone=[]))
    for token in range(1, 11):
        lease = HeldLease(group=1, token=token, queue_number=7, attempt=1, base=0)
        Settler._tell_gone(settler, lease, 0b1, [])
    assert [gone.token for gone in settler._tally.gone] == [1, 2, 3]
