"""Delayed messages on real processes: the leader dies while they fall due."""

import anyio
import pytest

import raftmq
from raftmq.testing import cluster

pytestmark = [pytest.mark.process, pytest.mark.anyio]

COUNT = 2_000


async def test_messages_come_once_and_not_early_though_their_leader_dies() -> None:
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("later", queues=2)
        async with mq.producer("later") as p, mq.consumer("later") as c:
            messages = [b"%d" % n for n in range(COUNT)]
            delays = [2.0 + n / COUNT for n in range(COUNT)]
            sent = (await p.send_many(messages, delay=delays)).receipts()
            dues = {
                body: receipt.deliver_at_ms for body, receipt in zip(messages, sent, strict=True)
            }
            cancelled = {b"%d" % n for n in range(0, COUNT, 100)}
            for body in sorted(cancelled):
                message_id = sent[int(body)].id
                assert message_id is not None
                assert await mq.cancel(message_id)
            await anyio.sleep(2.2 - len(cancelled) * 0.005)
            nodes.kill(await nodes.leader(1))
            got: dict[bytes, int] = {}
            with anyio.fail_after(40):
                while len(got) < COUNT - len(cancelled):
                    for m in await c.fetch(1_000, wait=1.0):
                        assert m.body not in got
                        got[m.body] = m.timestamp
            assert got.keys() == dues.keys() - cancelled
            assert all(at >= dues[body] for body, at in got.items())
            assert not await c.fetch(1_000, wait=1.0)
