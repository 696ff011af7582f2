"""`connect(check=True)` against whole brokers: leaders die, others send, pop, reset and settle."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from raftmq.chaos.world import Machine, MemoryFiles, Process, SimulatedClientWorld
from raftmq.client import Client, connect
from raftmq.client.pop.handles import handle_of
from raftmq.client.pop.leases import HeldLease
from raftmq.client.pop.settlement_sender import SettlementSender
from raftmq.errors import Inconsistent, OutcomeUnknown, RaftmqError, Rejected
from raftmq.machine.pop_groups import PopGroups
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster, kill_some

URL = "raftmq://node1:7400,node2:7400,node3:7400"


@asynccontextmanager
async def opened(cluster: Cluster, seed: int, *, check: bool = True) -> AsyncIterator[Client]:
    machine = Machine(f"client{seed}", cluster.agenda, MemoryFiles())
    world = SimulatedClientWorld(cluster.network, Process(machine, cluster.agenda, seed=seed))
    async with connect(URL, world=world, check=check) as mq:
        yield mq


async def send(mq: Client, random: Random) -> None:
    while True:
        async with mq.producer("orders") as producer:
            for _ in range(20):
                body = random.choice([b"a", b"b"])
                try:
                    match random.randrange(5):
                        case 0:
                            await producer.send(body, props={"n": random.randrange(2)})
                        case 1:
                            await producer.send_many([body] * 5)
                        case 2:
                            await producer.send(body, delay=random.random() * 3)
                        case 3:
                            async with producer.transaction(group="shop") as transaction:
                                await transaction.send(body)
                        case _:
                            await producer.send(body, key="k", timeout=random.random())
                except RaftmqError:
                    continue
                await trio.sleep(random.random() * 0.1)


async def read(mq: Client, random: Random) -> None:
    while True:
        async with mq.consumer("orders", group=random.choice([None, "r"])) as consumer:
            for _ in range(random.randrange(1, 20)):
                await consumer.fetch(random.randrange(1, 50), wait=0.2)
                await trio.sleep(random.random() * 0.2)


async def pop(mq: Client, random: Random) -> None:
    while True:
        async with mq.consumer("orders", group="g", mode="pop", invisible=1.0) as popper:
            for _ in range(random.randrange(1, 20)):
                batch = await popper.pop(random.randrange(1, 20), wait=0.2)
                try:
                    match random.randrange(6):
                        case 0:
                            await batch.nack(0.1)
                        case 1:
                            await trio.sleep(1.5)  # the leases run out
                            await batch.ack()
                        case 2:
                            await mq.settle([handle_of(each) for each in batch], "give_back")
                        case 3:
                            await batch.extend(2.0)
                        case _:
                            await batch.ack()
                except (Rejected, OutcomeUnknown):
                    continue


async def reset(mq: Client, random: Random) -> None:
    while True:
        await trio.sleep(1 + random.random() * 3)
        await mq.admin.reset_group("g", "orders", to="earliest")


async def until_done(cluster: Cluster, mq: Client, work: Any, seed: int) -> None:
    """Do the work again after errors of a cluster whose nodes die."""
    random = Random(seed)
    while True:
        try:
            await work(mq, random)
        except RaftmqError:
            await trio.sleep(0.2)


@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_cluster_whose_leaders_die_is_not_accused(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 2)
        async with AsyncExitStack() as stack:
            mine, second = [await stack.enter_async_context(opened(cluster, n)) for n in (1, 2)]
            other = await stack.enter_async_context(opened(cluster, 3, check=False))
            async with trio.open_nursery() as nursery:
                for n, (mq, work) in enumerate(
                    [
                        (mine, send), (mine, read), (mine, pop), (mine, pop),
                        (second, send), (second, pop), (other, send), (other, pop), (other, reset),
                    ]
                ):  # fmt: skip
                    nursery.start_soon(until_done, cluster, mq, work, 100 * seed + n)
                await kill_some(cluster, Random(seed), 8)
                await trio.sleep(2)
                # While the others go on.
                assert (await mine.check()).verdict == "valid"
                nursery.cancel_scope.cancel()
            for mq in (mine, second):
                result = await mq.check()
                assert result.verdict == "valid", str(result)
                assert result.counts["found as sent"] > 10, str(result)
            assert result.counts["acked"] > 10, str(result)

    in_cluster(scenario, seed=seed)


async def pop_and_ack(mq: Client) -> None:
    async with mq.consumer("orders", group="g", mode="pop", invisible=1.0) as popper:
        batch = await popper.pop(10, wait=5.0)
        assert len(batch) == 1
        await batch.ack()


async def with_one_message(cluster: Cluster, mq: Client) -> None:
    await mq.admin.create_consumer_group("g", "pop", schedule=[0.1])
    async with mq.producer("orders") as producer:
        await producer.send(b"a")


def test_ack_that_did_not_happen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(
        _: SettlementSender, lease: HeldLease, action: Any, bits: int, waiter: Any, **more: Any
    ) -> None:
        del lease, action, more
        waiter.settled += bits.bit_count()

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with opened(cluster, 1) as mq:
            await with_one_message(cluster, mq)
            with monkeypatch.context() as patch:
                patch.setattr(SettlementSender, "settle", pretend)
                await pop_and_ack(mq)
            await trio.sleep(3)
            await pop_and_ack(mq)
            with pytest.raises(Inconsistent) as caught:
                await mq.check()
            assert caught.value.anomalies == ("redelivered-after-ack",)

    in_cluster(scenario)


def test_lease_that_ran_out_before_its_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = PopGroups.begin

    def early(groups: PopGroups, now: int, version: int) -> None:
        begin(groups, now, version)
        for number, attached in groups.attached.items():
            attached.group.pass_time(now + 100_000)
            groups._touched.add(number)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with opened(cluster, 1) as mq:
            await with_one_message(cluster, mq)
            async with mq.consumer("orders", group="g", mode="pop", invisible=60.0) as popper:
                assert len(await popper.pop(1, wait=5.0)) == 1
                with monkeypatch.context() as patch:
                    patch.setattr(PopGroups, "begin", early)
                    async with mq.consumer("orders", group="g", mode="pop") as second:
                        with trio.fail_after(30):
                            while not await second.pop(1, wait=0.2):
                                pass
                with pytest.raises(Inconsistent) as caught:
                    await mq.check()
                assert caught.value.anomalies == ("two-leases",)

    in_cluster(scenario)


def test_message_that_comes_again_after_a_reset_is_no_breach() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with opened(cluster, 1) as mq, opened(cluster, 2, check=False) as other:
            await with_one_message(cluster, mq)
            await pop_and_ack(mq)
            await other.admin.reset_group("g", "orders", to="earliest")
            await pop_and_ack(mq)
            assert len(mq._judge.record.witness.leases.suspicions) == 1  # type: ignore[union-attr]
            result = await mq.check()
        assert result.verdict == "valid"
        assert result.counts["acked"] == 2
        assert not result.counts["not judged: hand-outs without a record"]

    in_cluster(scenario)


def test_message_that_another_process_gave_back_by_its_handle_is_no_breach() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with opened(cluster, 1) as mq, opened(cluster, 2, check=False) as other:
            await with_one_message(cluster, mq)
            async with mq.consumer("orders", group="g", mode="pop", invisible=60.0) as popper:
                (first,) = await popper.pop(1, wait=5.0)
                assert await other.settle([handle_of(first)], "give_back") == [True]
                assert len(await popper.pop(1, wait=5.0)) == 1
                assert len(mq._judge.record.witness.leases.suspicions) == 1  # type: ignore[union-attr]
                assert (await mq.check()).verdict == "valid"

    in_cluster(scenario)
