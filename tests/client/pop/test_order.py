"""The consumer in a group that keeps the order of queues: no unacked message is overtaken."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from raftmq.client.pop.popped import PoppedMessage
from raftmq.errors import OutcomeUnknown, Rejected, Unavailable
from raftmq.machine.catalog.consumer_groups import PutConsumerGroup
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster, Fate
from tests.client.popping_cluster import audit, opened, pop_all

pytestmark = pytest.mark.anyio
# Waiting costs nothing on trio's mock clock.
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)

BODIES = [b"0:%d" % n for n in range(10)]


@pytest.fixture
def ordered(cluster: FakeCluster) -> FakeCluster:
    """Ten messages of one queue, and a group that takes them in order."""
    fill(cluster, queues=1, messages=10)
    policy = Policy(schedule_ms=(50,), attempts_max=3, order=Order.QUEUE)
    cluster.change_catalog(PutConsumerGroup("g", Mode.ORDERED, policy))
    return cluster


def group_of(cluster: FakeCluster) -> PopGroup:
    (attached,) = cluster.log_of(QUEUE).machine.pop_groups.attached.values()
    return attached.group


Verb = Callable[[PoppedMessage], Awaitable[None]]
VERBS: dict[str, Verb] = {
    "nack": lambda m: m.nack(),
    "nack at once": lambda m: m.nack(delay=0),
    "give back": lambda m: m.give_back(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_message_that_failed_comes_before_what_was_taken_ahead(
    ordered: FakeCluster, verb: str, is_one_by_one: bool
) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        got: list[PoppedMessage] = []
        while len(got) < 11:
            messages = [await anext(c)] if is_one_by_one else list(await c.pop(1, wait=5.0))
            got += messages
            for m in messages:
                await (VERBS[verb](m) if len(got) == 4 else m.ack())
        assert [m.body for m in got] == BODIES[:4] + BODIES[3:]
        # The other messages get their attempt back.
        attempts = [2 if n == 4 and verb != "give back" else 1 for n in range(11)]
        assert [m.attempt for m in got] == attempts
        assert audit(ordered) == {"acked": 10}


async def test_dead_letter_does_not_hold_up_what_comes_after_it(ordered: FakeCluster) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        (first,) = await c.pop(1, wait=5.0)
        await first.reject()
        (second,) = await c.pop(1, wait=5.0)
        assert second.token > first.token, "it is handed out anew"
        await second.ack()
        assert await pop_all(c, 8) == BODIES[2:]
        assert audit(ordered) == {"dead": 1, "acked": 9}


async def test_what_was_handed_on_with_a_message_that_failed_is_known_to_be_lost(
    ordered: FakeCluster,
) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        batch = await c.pop(5, wait=5.0)
        await batch[0].ack()
        await batch[2].nack()
        settles = sum(n.requests.count(FrameKind.SETTLE) for n in ordered.nodes.values())
        for m in batch[3:]:
            with pytest.raises(Rejected, match="no longer yours"):
                await m.ack()
        assert settles == sum(n.requests.count(FrameKind.SETTLE) for n in ordered.nodes.values())
        await batch[1].ack()
        assert await pop_all(c, 8) == BODIES[2:]


async def test_part_of_a_lease_that_comes_late_is_not_handed_on(ordered: FakeCluster) -> None:
    for node in ordered.nodes.values():
        node.popping.answer_messages = 2
    ordered.pop_seconds = 0.05
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        (first,) = await c.pop(1, wait=5.0)
        # The rest of the lease is on its way, and the leader hears late of the failure.
        ordered.fate = lambda _, f: Fate.BUSY if f.kind == FrameKind.SETTLE else Fate.DONE
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.nack)
            await anyio.sleep(0.01)
            assert not await c.pop(10, wait=0.3)
            ordered.fate = lambda _node, _frame: Fate.DONE
        assert await pop_all(c, 10) == BODIES


@on_trio
async def test_nack_that_is_taken_back_leaves_the_rest_to_whoever_comes(
    ordered: FakeCluster,
) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        first, second = await c.pop(2, wait=5.0)
        for node in ordered.nodes:
            ordered.kill(node)
        await anyio.sleep(0.01)
        with pytest.raises(Unavailable):
            await first.nack(timeout=0.5)
        ordered.unreachable.clear()
        await c.flush()
        await anyio.sleep(5.0)
        assert audit(ordered) == {"leased": 2, "ready": 8}
        await first.ack()
        await second.ack()
        assert await pop_all(c, 8) == BODIES[2:]


@on_trio
async def test_nack_in_doubt_hands_nothing_on(ordered: FakeCluster) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        (first,) = await c.pop(1, wait=5.0)
        ordered.fate = lambda _, f: (
            Fate.APPLIED_AND_IGNORED if f.kind == FrameKind.SETTLE else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown):
            await first.nack(delay=60.0, timeout=0.5)
        assert not await c.pop(1, wait=1.0)
        ordered.fate = lambda _node, _frame: Fate.DONE
        assert not await c.pop(1, wait=20.0)
        assert audit(ordered) == {"waiting": 1, "ready": 9}


@on_trio
@pytest.mark.parametrize("how", ["expired", "reset"])
async def test_lease_of_which_an_ack_is_refused_is_not_handed_on(
    ordered: FakeCluster, how: str
) -> None:
    async with (
        opened(ordered) as mq,
        mq.consumer("orders", group="g", mode="ordered", invisible=2) as c,
    ):
        (first,) = await c.pop(1, wait=5.0)
        group = group_of(ordered)
        if how == "expired":
            # The lease is over by the leader's clock, and not by ours.
            (held,) = group.held_by(c._consumer, 0)
            group.pass_time(held.deadline)
        else:
            group.reset({QUEUE: 0})
        with pytest.raises(Rejected, match="no longer yours"):
            await first.ack()
        assert await pop_all(c, 10) == BODIES


async def test_message_that_was_handed_on_twice_is_refused_under_the_older_token(
    ordered: FakeCluster,
) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        (first,) = await c.pop(1, wait=5.0)
        # The consumer does not hear that it no longer holds the messages taken ahead.
        group_of(ordered).reset({QUEUE: 8})
        add(ordered, QUEUE, 1)
        await anyio.sleep(0.05)
        both = await c.pop(12, wait=5.0)
        assert both.bodies == [*BODIES[1:], *BODIES[8:], b"0:10"]
        old, new = both.tokens[0], both.tokens[-1]
        assert old == first.token < new
        settlement = await both.ack()
        assert settlement.settled == 3
        assert settlement.fenced == [(m.id, old) for m in both[:9]]


async def test_acks_alone_cost_nothing_of_what_was_taken_ahead(ordered: FakeCluster) -> None:
    async with opened(ordered) as mq, mq.consumer("orders", group="g", mode="ordered") as c:
        (first,) = await c.pop(1, wait=5.0)
        await first.ack()
        rest = await c.pop(9, wait=5.0)
        assert (rest.bodies, set(rest.tokens)) == (BODIES[1:], {first.token})
