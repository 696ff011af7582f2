"""The consumer that pops: hand-out, settling, giving back, and redelivery."""

from functools import partial
from typing import Any

import anyio
import pytest

from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.handles import handle_of
from raftmq.client.pop.tally import Waiter
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.consumer_groups import DeleteConsumerGroup
from raftmq.machine.catalog.topics import AlterTopic
from raftmq.pop.actions import Action
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from raftmq.wire.popping import Pop
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate
from tests.client.popping_cluster import audit, opened, pop_all

pytestmark = pytest.mark.anyio
# Waiting costs nothing on trio's mock clock.
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)


def fenced() -> Any:
    return pytest.raises(Rejected, match="is no longer yours")


async def test_each_message_is_handed_out_once_and_acked(cluster: FakeCluster) -> None:
    fill(cluster, queues=5, messages=20)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as c:
            got = await pop_all(c, 100)
            assert not await c.pop(5, wait=0.05)
        assert sorted(got) == sorted(b"%d:%d" % (q, n) for q in range(5) for n in range(20))
        assert audit(cluster) == {"acked": 100}


async def test_message_tells_its_lease(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=20) as c,
    ):
        batch = await c.pop(3, wait=5.0)
        messages = list(batch)
        assert batch.attempts == [m.attempt for m in messages] == [1, 1, 1]
        assert batch.tokens == [m.token for m in messages]
        assert len(set(batch.tokens)) == 1
        assert [batch[n].body for n in (0, -1)] == [b"0:0", b"0:2"]
        assert [m.body for m in batch[1:]] == [b"0:1", b"0:2"]
        assert 19 < messages[0].remaining <= 20
        assert batch.deadline == messages[0].deadline
        (handed,) = next(
            iter(cluster.log_of(QUEUE).machine.pop_groups.attached.values())
        ).group.held_by(c._consumer, 0)
        assert abs(messages[0].deadline - handed.deadline) <= 2


async def test_async_for_hands_out_one_by_one(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=5)
    got = []
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        async for m in c:
            await m.ack()
            got.append(m.body)
            if len(got) == 10:
                break
    assert sorted(got) == sorted(b"%d:%d" % (q, n) for q in range(2) for n in range(5))
    assert audit(cluster) == {"acked": 10}


async def test_nothing_is_acked_if_the_body_raised(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=5)
    async with opened(cluster) as mq:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with mq.consumer("orders", group="g", mode="pop") as c:
                await anext(c)
                raise ValueError("mine")
        # The message that was seen stays leased, the others are ready for any consumer.
        assert audit(cluster) == {"leased": 1, "ready": 4}


async def test_leaving_gives_back_what_was_not_handed_on(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=10)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as c:
            assert await c.pop(2, wait=5.0)
            await anyio.sleep(0.05)
            # Standing requests have leased more messages.
            assert audit(cluster)["leased"] > 2
        found = audit(cluster)
        assert found["leased"] == 2
        add(cluster, QUEUE, 1)
        assert audit(cluster)["leased"] == 2
        async with mq.consumer("orders", group="g", mode="pop") as c:
            assert set((await c.pop(5, wait=5.0)).attempts) == {1}


async def test_what_is_handed_out_while_the_consumer_leaves_is_given_back(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=0)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        assert not await c.pop(1, wait=0.05)
        # The answer is under way before the client knows that the request is met.
        cluster.fate = lambda _, f: Fate.DONE
        add(cluster, QUEUE, 3)
        await c.aclose()
        assert audit(cluster) == {"ready": 3}


async def test_nacked_message_comes_again_later_and_counts(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=2)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first, second = await c.pop(2, wait=5.0)
        await first.nack(delay=0.5)
        await second.ack()
        before = anyio.current_time()
        (again,) = await c.pop(2, wait=5.0)
        assert 0.4 < anyio.current_time() - before < 1.0
        assert (again.body, again.attempt) == (b"0:0", 2)
        assert again.token > first.token
        await again.ack()
        assert audit(cluster) == {"acked": 2}


async def test_message_given_back_comes_at_once_and_does_not_count(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (m,) = await c.pop(1, wait=5.0)
        await m.give_back()
        (again,) = await c.pop(1, wait=5.0)
        assert (again.attempt, again.body) == (1, m.body)


async def test_rejected_message_is_a_dead_letter(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(3, wait=5.0)
        await batch[0].reject("no such customer")
        assert (await c.ack([batch[1], batch[2]])).settled == 2
        assert audit(cluster) == {"dead": 1, "acked": 2}
        (letter,) = next(
            iter(cluster.log_of(QUEUE).machine.pop_groups.attached.values())
        ).group.dead.values()
        assert letter.reason == "no such customer"


@pytest.mark.parametrize("reason", ["unknown user \ud800", ValueError("no"), None, 0, 7])
async def test_reason_that_is_no_text_is_refused_and_the_rest_is_settled(
    cluster: FakeCluster, reason: Any
) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(3, wait=5.0)
        handle = handle_of(batch[2])
        with pytest.raises(Rejected) as caught:
            await batch[0].reject(reason)
        assert caught.value.reason is Reason.BAD_ARGUMENT
        with pytest.raises(Rejected) as caught:
            await mq.settle([handle], "reject", reason=reason)
        assert caught.value.reason is Reason.BAD_ARGUMENT
        await batch[1].ack(timeout=5.0)
        await batch[0].reject("no such user: " + "x" * 5_000_000, timeout=5.0)
        assert await mq.settle([handle], "reject", reason="y" * 5_000_000) == [True]
        assert audit(cluster) == {"dead": 2, "acked": 1}


async def test_settlement_that_cannot_be_packed_fails_alone(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(4, wait=5.0)
        lease, _ = batch[0].part
        settler = c._open_settlements().sender(lease.group)
        alone, beside = Waiter(), Waiter()
        # Calls look at a reason before it gets here: whatever they miss must not stay under way.
        settler.settle(lease, Action.REJECT, 1, alone, reason="\ud800")
        assert isinstance(alone.error, Rejected)
        batch[1].ack_nowait()
        settler.settle(lease, Action.REJECT, 4, beside, reason="\ud800")
        assert isinstance(beside.error, Rejected)
        assert (await c.flush(timeout=5.0)).settled == 1
        await batch[0].ack(timeout=5.0)
        assert audit(cluster) == {"acked": 2, "leased": 2}


async def test_to_say_the_same_twice_is_to_say_it_once(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=2)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(2, wait=5.0)
        await batch[0].ack()
        before = sum(node.requests.count(FrameKind.SETTLE) for node in cluster.nodes.values())
        await batch[0].ack()
        after = sum(node.requests.count(FrameKind.SETTLE) for node in cluster.nodes.values())
        assert before == after, "an ack that was done is not sent again"
        with fenced():
            await batch[0].nack()
        settlement = await batch.ack()
        assert (settlement.settled, settlement.fenced) == (2, [])


async def test_two_acks_of_one_message_at_once_are_one(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (m,) = await c.pop(1, wait=5.0)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(m.ack)
        assert audit(cluster) == {"acked": 1}


@on_trio
async def test_ack_after_the_lease_is_fenced_and_somebody_else_has_it(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0) as slow,
        mq.consumer("orders", group="g", mode="pop") as quick,
    ):
        batch = await slow.pop(3, wait=5.0)
        await anyio.sleep(1.1)
        # By the group's schedule they wait for 10 s.
        again = await quick.pop(3, wait=15.0)
        assert again.attempts == [2, 2, 2]
        with fenced() as caught:
            await batch[0].ack()
        assert caught.value.reason is Reason.FENCED
        settlement = await batch.ack()
        assert (settlement.settled, settlement.is_complete) == (0, False)
        assert settlement.fenced == [(m.id, m.token) for m in batch]
        with fenced():
            await batch[1].extend(5.0)
        assert (await again.ack()).is_complete
    assert audit(cluster) == {"acked": 3}


async def test_acks_without_waiting_gather_and_flush_tells(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=100, batch=10)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", prefetch=100) as c:
            messages = list(await c.pop(100, wait=5.0))
            while len(messages) < 100:
                messages += list(await c.pop(100, wait=5.0))
            for m in messages:
                m.ack_nowait()
            settlement = await c.flush()
            assert (settlement.settled, settlement.fenced) == (100, [])
            assert (await c.flush()).settled == 0
        settles = sum(node.requests.count(FrameKind.SETTLE) for node in cluster.nodes.values())
        assert settles <= 4, "acks are merged"
        assert audit(cluster) == {"acked": 100}


@on_trio
async def test_flush_tells_what_was_fenced(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=2)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0) as c,
    ):
        batch = await c.pop(2, wait=5.0)
        await anyio.sleep(1.5)
        batch.ack_nowait()
        settlement = await c.flush()
        assert settlement.settled == 0
        assert settlement.fenced == [(m.id, m.token) for m in batch]


async def test_leaving_settles_what_gathered(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=10)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as c:
            for _ in range(5):
                (await c.pop(1, wait=5.0)).ack_nowait()
        assert audit(cluster)["acked"] == 5


async def test_without_prefetch_nothing_is_asked_for_ahead(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=20)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as c:
            await anyio.sleep(0.1)
            assert audit(cluster) == {}
            got = 0
            while got < 60:
                batch = await c.pop(6, wait=1.0)
                got += len(batch)
                await batch.ack()
                # A third of it is asked of each of the three leaders.
                assert audit(cluster).get("leased", 0) <= 4
        assert audit(cluster) == {"acked": 60}


async def test_pop_without_waiting_takes_what_is_there(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=4)
    for prefetch in (0, 100):
        async with (
            opened(cluster) as mq,
            mq.consumer("orders", group=f"g{prefetch}", mode="pop", prefetch=prefetch) as c,
        ):
            before = anyio.current_time()
            got: list[bytes] = []
            while batch := await c.pop(100, wait=0):
                got += batch.bodies
            assert len(got) == 12
            assert anyio.current_time() - before < 0.5


@on_trio
async def test_more_is_asked_for_while_all_is_taken_at_once_and_less_if_it_lies_here(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3000, batch=50)
    asked: list[int] = []

    def note(_: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.POP:
            asked.append(unpack(Pop, frame.header).count)
        return Fate.DONE

    cluster.fate = note
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        got = 0
        while got < 1500:
            batch = await c.pop(10, wait=1.0)
            got += len(batch)
            await batch.ack()
        assert asked[0] == 32
        assert max(asked) > 250, "half of 500 is gone before more is asked for"
        # The lease of 30 s, less the time on the way: prefetched messages go back.
        await anyio.sleep(25.0)
        assert "leased" not in audit(cluster)
        del asked[:]
        assert await c.pop(10, wait=1.0)
        assert asked[0] <= 250


@on_trio
async def test_rest_of_credit_is_asked_for_at_once_and_ends_with_the_consumer(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3, batch=3)
    asked: list[tuple[int, int, bool]] = []

    def note(_: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.POP:
            request = unpack(Pop, frame.header)
            asked.append((request.count, round(request.wait_ms, -3), request.is_kept))
        return Fate.DONE

    cluster.fate = note
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as c:
            assert len(await c.pop(10, wait=1.0)) == 3
            await anyio.sleep(2.0)
            # No further pop, but the leader may hand out the rest of 32, for 5 s.
            assert asked == [(32, 5000, True), (29, 5000, True)]
        async with mq.producer("orders") as producer:
            await producer.send(b"late")
        assert audit(cluster) == {"leased": 3}
        async with mq.consumer("orders", group="g", mode="pop") as c:
            assert (await c.pop(10, wait=1.0)).bodies == [b"late"]


@on_trio
async def test_slow_rounds_bring_as_many_messages_as_quick_ones_in_the_end(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3000, batch=50)
    cluster.pop_seconds = 0.5
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        begun = anyio.current_time()
        got = 0
        while got < 3000:
            batch = await c.pop(10, wait=5.0)
            got += len(batch)
            await batch.ack()
        # At 32 messages a round it would be 47 s.
        assert anyio.current_time() - begun < 10


@on_trio
async def test_extended_lease_outlives_its_first_deadline(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=2)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0) as c,
    ):
        batch = await c.pop(2, wait=5.0)
        await anyio.sleep(0.5)
        await batch[0].extend(5.0)
        assert batch[0].remaining == pytest.approx(5.0, abs=0.1)
        await anyio.sleep(2.0)
        assert (await batch.extend(1.0)).is_complete
        assert (await batch.ack()).settled == 2


@on_trio
async def test_lease_is_renewed_while_the_application_has_its_message(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=2)
    async with opened(cluster) as mq:
        options: dict[str, Any] = {"invisible": 1.0, "renew": 1.0}
        async with mq.consumer("orders", group="g", mode="pop", **options) as c:
            async for m in c:
                await anyio.sleep(5.0)
                await m.ack()
                break
            assert audit(cluster)["acked"] == 1
            batch = await c.pop(1, wait=20.0)
            await anyio.sleep(2.5)
            assert audit(cluster)["leased"] == 1
            # No consumer has the message now: it comes again.
            del batch
            await anyio.sleep(2.5)
            assert "leased" not in audit(cluster)


@on_trio
async def test_what_lies_here_for_too_long_is_given_back(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=3.0) as c,
    ):
        (m,) = await c.pop(1, wait=5.0)
        assert audit(cluster) == {"leased": 10}
        await anyio.sleep(2.5)
        await m.ack()
        assert audit(cluster) == {"acked": 1, "ready": 9}
        again = await c.pop(9, wait=5.0)
        assert set(again.attempts) == {1}
        assert m.body not in again.bodies


async def test_pop_may_ask_for_another_time(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=4.0) as c,
    ):
        (m,) = await c.pop(1, wait=5.0)
        assert m.remaining == pytest.approx(4.0, abs=0.2)
        batch = await c.pop(5, wait=5.0, invisible=60.0)
        assert batch[0].remaining == pytest.approx(60.0, abs=1.0)


async def test_answer_that_was_cut_off_goes_on(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=50, batch=7)
    for node in cluster.nodes.values():
        node.popping.answer_messages = 4
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop") as c:
            got = await pop_all(c, 100)
        assert len(set(got)) == 100
        assert audit(cluster) == {"acked": 100}


async def test_group_of_another_mode_is_refused(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop"):
            pass
        with pytest.raises(Rejected) as caught:
            async with mq.consumer("orders", group="g", mode="ordered"):
                pass
        assert caught.value.reason is Reason.GROUP_MODE
        with pytest.raises(Rejected) as caught:
            async with mq.consumer("nothing", group="g", mode="pop"):
                pass
        assert caught.value.reason is Reason.UNKNOWN_TOPIC


async def test_group_or_topic_that_is_deleted_ends_the_consumer(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (m,) = await c.pop(1, wait=5.0)
        await c.pop(1, wait=0.01)
        cluster.change_catalog(DeleteConsumerGroup("g"))
        for node in cluster.nodes.values():
            node.cut()
        for _ in range(2):
            with pytest.raises(Rejected) as caught:
                await c.pop(1, wait=20.0)
            assert caught.value.reason is Reason.UNKNOWN_GROUP
        del m


async def test_arguments_out_of_range_are_refused(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    mistakes: list[dict[str, Any]] = [
        {"prefetch": -1},
        {"prefetch_bytes": 0},
        {"invisible": 0},
        {"invisible": 0.999},
        {"invisible": 1e6},
        {"renew": -1.0},
        {"queues": [0]},
        {"auto_commit": 1.0},
        {"start": 5},
        {"filter": "a >"},
        {"group": None},
    ]
    async with opened(cluster) as mq:
        for mistake in mistakes:
            with pytest.raises(Rejected):
                mq.consumer("orders", **({"group": "g", "mode": "pop"} | mistake))
        async with mq.consumer("orders", group="g", mode="pop") as c:
            for wrong in ({"count": 0}, {"wait": -1.0}, {"invisible": 0.5}):
                with pytest.raises(Rejected):
                    await c.pop(**wrong)
            (m,) = await c.pop(1, wait=5.0)
            with pytest.raises(Rejected, match="delay is 0 to"):
                await m.nack(delay=1e7)
            for nack in (m.nack, partial(c.nack, [m])):
                with pytest.raises(Rejected, match="delay is 0 or more"):
                    await nack(delay=-0.001)
            with pytest.raises(Rejected, match="seconds is more than 0"):
                await m.extend(0)
            await m.ack()


async def test_queues_that_are_added_are_served(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        await pop_all(c, 1)
        cluster.change_catalog(AlterTopic("orders", 4))
        for queue in (1, 2, 3):
            add(cluster, QUEUE + queue, 1)
        await mq.admin.describe_topic("orders")
        assert sorted(await pop_all(c, 3)) == [b"1:0", b"2:0", b"3:0"]


async def test_many_consumers_share_a_group(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=100, batch=5)
    got: list[bytes] = []

    async def consume(c: PopConsumer) -> None:
        while batch := await c.pop(9, wait=0.3):
            got.extend(batch.bodies)
            await batch.ack()

    async with opened(cluster) as mq:
        async with (
            mq.consumer("orders", group="g", mode="pop") as one,
            mq.consumer("orders", group="g", mode="pop") as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consume, one)
            tasks.start_soon(consume, two)
        assert len(got) == len(set(got)) == 300


async def test_cancelled_pop_loses_nothing(cluster: FakeCluster) -> None:
    fill(cluster, queues=2, messages=100, batch=3)
    got: list[bytes] = []
    async with opened(cluster) as mq:
        for prefetch in (0, 50):
            got.clear()
            async with mq.consumer(
                "orders", group=f"g{prefetch}", mode="pop", prefetch=prefetch
            ) as c:
                for n in range(10_000):
                    with anyio.move_on_after(0.0005 * (n % 7)):
                        batch = await c.pop(5, wait=0.02)
                        got += batch.bodies
                        batch.ack_nowait()
                        await anyio.sleep(0.001)
                    if len(got) >= 200:
                        break
            assert len(got) == len(set(got)) == 200
        assert audit(cluster) == {"acked": 400}
