"""Moving committed offsets, also under consumers that run."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from raftmq.client import Client
from raftmq.client.admin import resets
from raftmq.errors import Reason, Rejected
from tests.broker.harness import Cluster
from tests.broker.scenario import with_client
from tests.broker.serve.test_assignment import QUEUES, opened, send, settled, with_clients

from .test_broadcast import opened as opened_instance
from .test_broadcast import take


def test_members_that_run_go_on_from_where_the_group_was_set_to() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 60)
        async with opened(mqs[0], auto_commit=0.5) as a, opened(mqs[1], auto_commit=0.5) as b:
            await settled(a, b)
            assert sorted(await take(a) + await take(b)) == list(range(60))
            shares = (a.assignment, b.assignment)
            planned = await mqs[2].admin.reset_group("g", "orders", to=3, dry_run=True)
            assert {(c.before, c.after) for c in planned} == {(5, 3)}
            assert await mqs[2].admin.reset_group("g", "orders", to=3) == planned
            again = sorted(await take(a) + await take(b))
            assert again == list(range(3 * QUEUES, 60))
            assert (a.assignment, b.assignment) == shares
            await trio.sleep(1)
            assert set((await a.committed()).values()) == {5}

    with_clients(job)


def test_owner_cannot_undo_a_reset_with_what_it_had_in_hand() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 60)
        async with opened(mqs[0]) as a:
            got = await a.fetch(60, wait=1)
            await mqs[2].admin.reset_group("g", "orders", to="earliest")
            with pytest.raises(Rejected) as refused:
                await a.commit()
            assert refused.value.reason is Reason.FENCED
            assert len(got) <= len(await take(a)) == 60

    with_clients(job)


def test_instance_of_a_broadcast_group_is_set_back_and_the_other_is_not() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened_instance(mqs[0], "a") as a, opened_instance(mqs[1], "b") as b:
            await send(mqs[3], 24)
            assert len(await take(a)) == len(await take(b)) == 24
            await mqs[2].admin.reset_group("g@a", "orders", to="earliest")
            assert await take(a) == list(range(24))
            assert await take(b) == []

    with_clients(job)


def test_group_that_does_not_run_is_set_although_its_queues_had_owners() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 24)
        async with opened(mqs[0], auto_commit=1.0) as a:
            assert len(await take(a)) == 24
        await mqs[2].admin.reset_group("g", "orders", to=1, queues=[0, 5])
        async with opened(mqs[1]) as a:
            assert await take(a) == [QUEUES, QUEUES + 5]

    with_clients(job)


@pytest.mark.parametrize("looked_at", ["find_members", "draw_epoch"])
def test_member_that_comes_during_a_reset_does_not_undo_it(
    monkeypatch: pytest.MonkeyPatch, looked_at: str
) -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 24)
        async with AsyncExitStack() as stack:
            members = [await stack.enter_async_context(opened(mqs[0], auto_commit=1.0))]
            assert len(await take(members[0])) == 24
            if looked_at == "find_members":
                await stack.aclose()
                members.clear()
            look = getattr(resets, looked_at)

            async def look_before_it_comes(*args: Any, **options: Any) -> Any:
                seen = await look(*args, **options)
                if not is_done.is_set():
                    is_done.set()
                    members.append(await stack.enter_async_context(opened(mqs[1])))
                    await settled(*members)
                    assert await take(members[-1]) == []
                return seen

            is_done = trio.Event()
            monkeypatch.setattr(resets, looked_at, look_before_it_comes)
            await mqs[2].admin.reset_group("g", "orders", to="earliest")
            assert is_done.is_set()
            assert sorted([n for member in members for n in await take(member)]) == list(range(24))

    with_clients(job)


def test_clone_of_a_group_goes_on_where_it_stands() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> Any:
        await send(mqs[3], 24)
        async with opened(mqs[0], auto_commit=1.0) as a:
            assert len(await take(a)) == 24
        await send(mqs[3], 12, first=24)
        admin = mqs[2].admin
        planned = await admin.clone_group("g", "h", "orders", dry_run=True)
        assert await admin.clone_group("g", "h", "orders") == planned
        assert {(c.before, c.after) for c in planned} == {(None, 2)}
        assert await admin.clone_group("nothing", "h", "orders") == []
        async with mqs[1].consumer("orders", group="h") as plain:
            return await take(plain)

    assert with_clients(job) == list(range(24, 36))


def test_members_are_listed() -> None:
    async def job(_: Cluster, mqs: list[Client]) -> None:
        async with opened(mqs[0]) as a, opened(mqs[1], instance="i") as b:
            await settled(a, b)
            found = await mqs[2].admin.members("g")
            assert [m.instance for m in sorted(found, key=lambda m: m.instance)] == ["", "i"]
            assert sorted(q for m in found for q in m.queues) == list(range(QUEUES))
            assert {tuple(m.queues) for m in found} == {a.assignment, b.assignment}
            assert all(0 < m.remaining_ms <= 5000 for m in found)
            assert await mqs[2].admin.members("h") == []
            assert len(await mqs[2].admin.members()) == 2

    with_clients(job)


def test_group_that_pops_goes_on_from_where_it_was_set_to_while_it_runs() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as p:
            for n in range(20):
                await p.send(b"%d" % n, queue=n % 2)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            got: list[Any] = []
            while len(got) < 20:
                got += await consumer.pop(20 - len(got), wait=5.0)
            await got[0].ack()
            planned = await mq.admin.reset_group("g", "orders", to=4, dry_run=True)
            assert [(c.queue, c.before, c.after) for c in planned] == [(0, 10, 4), (1, 10, 4)]
            assert sum(b.leased for b in await mq.admin.backlogs(group="g")) == 19
            assert await mq.admin.reset_group("g", "orders", to=4) == planned
            with pytest.raises(Rejected) as refused:
                await got[1].ack()
            assert refused.value.reason is Reason.FENCED
            again: list[Any] = []
            while len(again) < 12:
                again += await consumer.pop(12 - len(again), wait=5.0)
            assert sorted(int(m.body) for m in again) == list(range(8, 20))
            await consumer.ack(again)
            (change,) = await mq.admin.reset_group("g", "orders", to="earliest", queues=[1])
            assert (change.queue, change.before, change.after) == (1, 10, 0)
            first = await consumer.pop(20, wait=5.0)
            assert sorted(int(m.body) for m in first) == list(range(1, 20, 2))
            await mq.admin.reset_group("g", "orders", to="latest")
            assert len(await consumer.pop(1, wait=0.1)) == 0

    with_client(job, queues=2)


def test_group_that_nobody_popped_for_begins_where_it_was_set_to() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as p:
            for n in range(10):
                await p.send(b"%d" % n)
        await mq.admin.create_consumer_group("g")
        with pytest.raises(Rejected) as refused:
            await mq.admin.reset_group("g", "orders", to=4)
        assert refused.value.reason is Reason.UNKNOWN_GROUP
        await mq.admin.attach("orders", "g")
        (change,) = await mq.admin.reset_group("g", "orders", to=7)
        assert (change.before, change.after) == (0, 7)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            assert [m.body for m in await consumer.pop(9, wait=5.0)] == [b"7", b"8", b"9"]

    with_client(job)


def test_ordered_and_filtered_groups_are_told_anew_of_what_comes_again() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        await mq.admin.create_consumer_group("g", "ordered")
        await mq.admin.subscribe("orders", "g", "n <> 3")
        async with mq.producer("orders") as p:
            for n in range(8):
                await p.send(b"%d" % n, key=b"%d" % (n % 2), props={"n": n})
        for _round in range(2):
            async with mq.consumer("orders", group="g", mode="ordered", prefetch=0) as consumer:
                found: list[int] = []
                while len(found) < 7:
                    messages = await consumer.pop(9, wait=5.0)
                    found += [int(m.body) for m in messages]
                    await consumer.ack(messages)
            assert [n for n in found if n % 2] == [1, 5, 7]
            assert [n for n in found if n % 2 == 0] == [0, 2, 4, 6]
            await mq.admin.reset_group("g", "orders", to="earliest")

    with_client(job)


def test_clone_of_a_group_that_pops_gets_what_that_was_not_handed() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        admin = mq.admin
        await admin.create_consumer_group("g", schedule=[3], attempts_max=2)
        async with mq.producer("orders") as p:
            for n in range(10):
                await p.send(b"%d" % n)
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            first = await consumer.pop(4, wait=5.0)
            planned = await admin.clone_group("g", "h", "orders", dry_run=True)
            assert [(c.before, c.after) for c in planned] == [(None, 4)]
            assert await admin.consumer_groups(name="h") == []
            assert await admin.clone_group("g", "h", "orders") == planned
            await consumer.ack(first)
        (settings,) = await admin.consumer_groups(name="h")
        assert (settings.mode, settings.schedule, settings.attempts_max) == ("pop", (3.0,), 2)
        assert await bodies_of(mq, "h") == await bodies_of(mq, "g") == list(range(4, 10))
        # The group exists by now, and stands at the end.
        await admin.reset_group("g", "orders", to=2)
        (change,) = await admin.clone_group("g", "h", "orders")
        assert (change.before, change.after) == (10, 2)
        assert await bodies_of(mq, "h") == list(range(2, 10))
        # A group that reads by offset may go on there, too, and the other way round.
        (change,) = await admin.clone_group("g", "reader", "orders")
        assert change.after == 2
        await admin.reset_group("reader", "orders", to=7)
        await admin.clone_group("reader", "h", "orders")
        assert await bodies_of(mq, "h") == [7, 8, 9]

    with_client(job)


async def bodies_of(mq: Client, group: str) -> list[int]:
    """Numbers of the messages that a popping group is handed and acks."""
    async with mq.consumer("orders", group=group, mode="pop", prefetch=0) as consumer:
        found = await consumer.pop(20, wait=5.0)
        await consumer.ack(found)
        return [int(message.body) for message in found]


def test_books_tell_of_a_group_that_has_no_place_yet() -> None:
    async def job(_: Cluster, mq: Client) -> Any:
        async with mq.producer("orders") as producer:
            await producer.send(b"x")
        async with mq.consumer("orders", group="g", mode="pop") as consumer:
            (before,) = await mq.admin.backlogs(group="g")
            await consumer.pop(1, wait=0)
            (after,) = await mq.admin.backlogs(group="g")
        async with mq.consumer("orders", group="h", mode="pop", start="latest"):
            (latest,) = await mq.admin.backlogs(group="h")
        return before.has_begun, after.has_begun, latest.has_begun

    assert with_client(job) == (False, True, True)
