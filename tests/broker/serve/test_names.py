"""Names of groups and instances that the cluster has not yet, at the door of whole brokers."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raftmq.broker.tickets import Callback
from raftmq.client import Client
from raftmq.errors import Reason, Rejected
from raftmq.log.record import Kind
from raftmq.machine.catalog.consumer_groups import PutConsumerGroup
from raftmq.machine.commands import encode_commands
from raftmq.pop.policy import Mode, Policy
from tests.broker.harness import Cluster
from tests.machine.hostile_names import HOSTILE

from .test_assignment import with_clients


async def refused(what: str, call: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(Rejected) as error:
        await call()
    assert error.value.reason in (Reason.BAD_NAME, Reason.BAD_ARGUMENT), what
    assert f"is not a {what} name: 1 to 127 of A-Z a-z 0-9 . _ -" in str(error.value)


async def open_(mq: Client, **options: Any) -> None:
    async with mq.consumer("orders", **options):
        pass


# A name with an @ is that of an instance, and refused in other words.
@pytest.mark.parametrize("name", [name for name in HOSTILE if "@" not in name])
def test_new_name_against_the_rule_is_refused_wherever_it_comes_in(name: str) -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        mq = mqs[0]
        for call in (
            lambda: open_(mq, group=name, mode="pop"),
            lambda: open_(mq, group=name, mode="broadcast"),
            lambda: open_(mq, group=name, queues="assigned"),
            lambda: mq.admin.create_consumer_group(name),
            lambda: mq.admin.attach("orders", name),
            lambda: mq.admin.reset_group(name, "orders", to="earliest"),
            lambda: open_(mq, group=name, filter="*"),
        ):
            await refused("consumer group", call)

        async def commit() -> None:
            async with mq.consumer("orders", group=name, queues=[0]) as consumer:
                await consumer.commit({0: 0})

        await refused("consumer group", commit)
        await refused("instance", lambda: open_(mq, group="g", mode="broadcast", instance=name))
        await refused("instance", lambda: mq.admin.reset_group(f"g@{name}", "orders", to=0))

        async def transact() -> None:
            async with mq.producer("orders") as producer, producer.transaction(group=name) as t:
                await t.send(b"x")

        await refused("producer group", transact)
        assert await mq.admin.consumer_groups() == []
        assert await mq.admin.list_groups() == []

    with_clients(job, clients=1)


def test_group_whose_name_older_software_took_stays_in_use() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        command = PutConsumerGroup("x y", Mode.POP, Policy())
        ticket = Callback(lambda _: None, lambda _: None)
        leader = next(n for n in cluster.nodes.values() if n.groups[0].is_leader)
        leader.groups[0].propose(Kind.COMMANDS, encode_commands([command]), ticket)
        await trio.sleep(1)
        await mqs[0].admin.attach("orders", "x y")
        await open_(mqs[0], group="x y", mode="pop")
        await mqs[0].admin.delete_consumer_group("x y")

    with_clients(job, clients=1)
