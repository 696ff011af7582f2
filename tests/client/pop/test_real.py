"""Consumers that pop from real brokers in this process, and their face for plain code."""

import threading
from pathlib import Path

import anyio
import pytest

import raftmq
import raftmq.blocking
from raftmq.client.pop.consumer import PopConsumer
from raftmq.errors import Reason, Rejected
from raftmq.testing import in_process

pytestmark = pytest.mark.process

QUICK = {"raft": {"tick_ms": 20}}


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Real time: these brokers have threads of their own."""
    name: str = request.param
    return name


@pytest.mark.anyio
async def test_leaders_that_fall_cost_no_message_and_repeat_no_ack() -> None:
    acked: list[bytes] = []
    tokens: set[tuple[str, int]] = set()

    async def consume(c: PopConsumer) -> None:
        while len(acked) < 600:
            batch = await c.pop(20, wait=0.5)
            for m in batch:
                assert (m.id, m.token) not in tokens
                tokens.add((m.id, m.token))
            settlement = await batch.ack()
            fenced = set(settlement.fenced)
            acked.extend(m.body for m in batch if (m.id, m.token) not in fenced)

    async with in_process(settings=QUICK) as nodes, nodes.connect() as mq:
        await mq.admin.create_topic("orders", queues=6)
        await mq.admin.create_consumer_group("g", schedule=[0.1])
        async with (
            mq.consumer("orders", group="g", mode="pop", prefetch=50) as one,
            mq.consumer("orders", group="g", mode="pop", prefetch=0) as two,
            mq.producer("orders") as p,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consume, one)
            tasks.start_soon(consume, two)
            for number in range(600):
                await p.send(b"%d" % number)
                if number in (200, 400):
                    leader = await nodes.leader(1)
                    await nodes.kill(leader)
                    await nodes.restart(leader)
    assert sorted(acked, key=int) == [b"%d" % n for n in range(600)]


@pytest.mark.anyio
@pytest.mark.parametrize("run", [1, None])
async def test_ordered_group_hands_out_the_messages_of_a_key_in_order(
    tmp_path: Path, run: int | None
) -> None:
    seen: dict[str | None, list[bytes]] = {}
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=1)
        await mq.admin.create_consumer_group("g", mode="ordered", run=run)
        async with mq.producer("orders") as p:
            for n in range(30):
                await p.send(b"%d" % n, key="abc"[n % 3])
        async with mq.consumer("orders", group="g", mode="ordered") as c:
            failed = False
            while sum(map(len, seen.values())) < 30:
                batch = await c.pop(6, wait=5.0)
                keys = [m.key for m in batch]
                assert run is None or len(keys) == len(set(keys)), "two of one key at once"
                behind: set[str | None] = set()
                for m in batch:
                    if m.key in behind:
                        continue
                    if m.body == b"4" and not failed:
                        failed = True
                        behind.add(m.key)
                        await m.nack(delay=0.2)
                    else:
                        seen.setdefault(m.key, []).append(m.body)
                        await m.ack()
    assert seen == {"abc"[k]: [b"%d" % n for n in range(k, 30, 3)] for k in range(3)}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_plain_code_pops(tmp_path: Path, backend: str) -> None:
    with raftmq.blocking.open(tmp_path, backend=backend) as mq:
        mq.admin.create_topic("orders", queues=2)
        with mq.producer("orders") as p:
            p.send_many(bodies=[b"%d" % n for n in range(20)])
        with mq.consumer("orders", group="g", mode="pop", invisible=30.0, renew=30.0) as c:
            for m in c:
                assert 0 < m.remaining <= 30.0
                m.extend(60.0)
                assert m.remaining > 30.0
                m.ack()
                with pytest.raises(Rejected) as caught:
                    m.nack()
                assert caught.value.reason is Reason.FENCED
                break
            batch = c.pop(4, wait=5.0)
            assert [m.body for m in batch] == batch.bodies
            assert batch.extend(20.0).is_complete
            batch[0].nack(delay=60.0)
            batch[1].reject("not for us")
            batch[2].give_back()
            assert c.ack([batch[3]]).settled == 1
            left = 20 - 4
            while left:
                popped = c.pop(left, wait=5.0)
                popped.ack_nowait()
                left -= len(popped)
            assert c.flush().settled == 20 - 4
    assert not [t for t in threading.enumerate() if t.name.startswith("raftmq")]


@pytest.mark.anyio
async def test_claimed_work_is_done_once_and_a_released_claim_again(tmp_path: Path) -> None:
    async with raftmq.open(tmp_path) as mq:
        await mq.admin.create_topic("orders", queues=3)
        async with (
            mq.consumer("orders", group="g", mode="pop") as one,
            mq.consumer("orders", group="g", mode="pop") as two,
        ):
            held = await one.claim("payment-17", ttl=60)
            assert held is not None
            assert await one.claim("payment-17", ttl=60) is None
            assert await two.claim("payment-17", ttl=60) is None
            assert await two.claim("payment-18", ttl=60) is not None
            assert await held.release()
            assert not await held.release()
            assert await two.claim("payment-17", ttl=0.05) is not None
            await anyio.sleep(0.1)
            assert await one.claim("payment-17", ttl=60) is not None
            with pytest.raises(Rejected, match="up to 30 days"):
                await one.claim("payment-19", ttl=1e9)


def test_claim_without_await(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.consumer("orders", group="g", mode="pop") as consumer:
            held = consumer.claim("payment-17", ttl=60)
            assert held is not None
            assert consumer.claim("payment-17", ttl=60) is None
            assert held.release()
