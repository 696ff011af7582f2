"""Broadcast groups in whole simulated clusters: each instance gets each message."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raftmq.client import Client, Consumer, options
from raftmq.errors import Reason, Rejected
from raftmq.machine.machine import PartitionMachine
from tests.broker.harness import Cluster
from tests.broker.serve.test_assignment import read_on, send, with_clients


def opened(mq: Client, instance: str | None = None, **settings: Any) -> Consumer:
    found: Consumer = mq.consumer(
        "orders", group="g", mode="broadcast", instance=instance, session=5.0, **settings
    )
    return found


async def take(c: Consumer, wait: float = 3) -> list[int]:
    """Numbers of all messages until no more come, sorted."""
    got: list[int] = []
    while batch := await c.fetch(100, wait=wait):
        got += [int(m.body) for m in batch]
    return sorted(got)


def with_two(job: Callable[[Cluster, list[Client]], Awaitable[Any]]) -> Any:
    return with_clients(job, clients=3)


def cursors(cluster: Cluster) -> dict[str, int]:
    """Name → queues with a committed offset, in the machines of one node."""
    found: dict[str, int] = {}
    for group in cluster.nodes[1].groups.values():
        if isinstance(group.machine, PartitionMachine):
            for name, of_group in group.machine.committed.items():
                found[name] = found.get(name, 0) + len(of_group)
    return found


def test_each_instance_gets_each_message_that_comes_after_it() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[2], 24)
        async with opened(mqs[0], "a") as a, opened(mqs[1], "b") as b, opened(mqs[2]) as c:
            await send(mqs[2], 48, first=24)
            for each in (a, b, c):
                assert await take(each) == list(range(24, 72))
        async with opened(mqs[0], "d", start="earliest") as d:
            assert await take(d) == list(range(72))

    with_two(job)


def test_instance_goes_on_where_it_was_and_misses_nothing_meanwhile() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], "a") as a:
            await send(mqs[2], 24)
            assert await take(a) == list(range(24))
        await send(mqs[2], 24, first=24)
        async with opened(mqs[1], "a") as a:
            await send(mqs[2], 24, first=48)
            assert await take(a) == list(range(24, 72))
        async with opened(mqs[1], "a") as a:
            assert await take(a) == []

    with_two(job)


async def send_to_new_queues(mq: Client, numbers: range) -> None:
    """Give the topic more queues, and send at once."""
    count = len((await mq.admin.describe_topic("orders")).queues)
    await mq.admin.alter_topic("orders", count + 4)
    async with mq.producer("orders") as p:
        for number in numbers:
            await p.send(b"%d" % number, queue=count + number % 4)


def test_instance_misses_nothing_in_queues_that_are_added_while_it_runs() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], "a") as a, opened(mqs[1]) as b:
            await send_to_new_queues(mqs[2], range(40))
            for each in (a, b):
                assert await take(each) == list(range(40))

    with_two(job)


def test_instance_misses_nothing_in_queues_that_were_added_while_it_was_closed() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], "a") as a:
            await send(mqs[2], 24)
            assert await take(a) == list(range(24))
        await send_to_new_queues(mqs[2], range(24, 64))
        async with opened(mqs[1], "a") as a, opened(mqs[0], "new") as new:
            assert await take(a) == list(range(24, 64))
            assert await take(new) == []

    with_two(job)


def test_instance_that_had_read_nothing_still_knows_where_it_began() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[2], 12)
        async with opened(mqs[0], "a"):
            pass
        await send(mqs[2], 12, first=12)
        async with opened(mqs[0], "a") as a:
            assert await take(a) == list(range(12, 24))

    with_two(job)


def test_process_that_died_is_followed_at_once_and_repeats_only_the_last_second() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[1], "b") as b:
            with trio.CancelScope() as scope:
                async with opened(mqs[0], "a") as a:
                    await send(mqs[2], 24)
                    assert await take(a, wait=1.5) == list(range(24))
                    await send(mqs[2], 24, first=24)
                    batch = await a.fetch(5, wait=1)
                    assert batch
                    # Neither a commit nor a leave is sent: as if the process had died.
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
            begun = trio.current_time()
            async with opened(mqs[2], "a") as a:
                assert trio.current_time() - begun < 1
                assert await take(a) == list(range(24, 48))
            assert await take(b) == list(range(48))

    with_two(job)


def test_what_the_application_has_committed_is_not_set_back_by_the_next_automatic_commit() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        with trio.CancelScope() as scope:
            async with opened(mqs[0], "a", start="earliest") as a:
                await send(mqs[2], 24)
                got = 0
                while got < 24:
                    got += len(await a.fetch(24, wait=3))
                await a.commit()
                committed = await a.committed()
                await trio.sleep(2.5 * options.BROADCAST_COMMIT_SECONDS)
                assert await a.committed() == committed
                # No leave is sent: as if the process had died.
                scope.cancel()
                await trio.lowlevel.checkpoint()
        async with opened(mqs[1], "a") as a:
            assert await take(a) == []

    with_two(job)


def test_second_process_of_an_instance_takes_the_place_of_the_first() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], "a") as first:
            await send(mqs[2], 12)
            assert await take(first) == list(range(12))
            async with opened(mqs[1], "a") as second:
                await send(mqs[2], 12, first=12)
                with pytest.raises(Rejected, match="another process") as refused:
                    await read_on(first)
                assert refused.value.reason is Reason.FENCED
                assert await take(second) == list(range(12, 24))

    with_two(job)


def test_idle_instance_is_remembered_and_one_that_is_gone_for_long_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "INSTANCE_KEPT_MS", 20_000)

    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0], "a"):
            async with opened(mqs[1], "b"):
                pass
            await trio.sleep(1)
            assert cursors(cluster) == {"g@a": 12, "g@b": 12}
            await trio.sleep(60)
            # Time passes in the log with records only.
            await send(mqs[2], 12)
            await trio.sleep(1)
            assert cursors(cluster) == {"g@a": 12}

    with_two(job)


def test_name_of_group_and_instance_is_bounded() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        with pytest.raises(Rejected) as refused:
            async with opened(mqs[0], "x" * 126):
                pass
        assert refused.value.reason is Reason.BAD_NAME

    with_two(job)


def test_no_group_takes_the_name_of_an_instance() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        mq = mqs[0]
        for mode in ("pull", "pop", "broadcast"):
            with pytest.raises(Rejected) as refused:
                mq.consumer("orders", group="g@a", mode=mode)
            assert refused.value.reason is Reason.BAD_NAME
        for change in (
            mq.admin.create_consumer_group("g@a"),
            mq.admin.attach("orders", "g@a"),
            mq.progress("orders", "g@a"),
        ):
            with pytest.raises(Rejected) as refused:
                await change
            assert refused.value.reason is Reason.BAD_NAME

    with_clients(job, clients=1)
