"""Consumers that pop, when answers are lost, leaders change and time runs out."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from raftmq.client.pop import session
from raftmq.errors import OutcomeUnknown, Rejected, Unavailable
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from raftmq.wire.popping import Pop, Popped
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate
from tests.client.fake_popping import FakePopping
from tests.client.popping_cluster import audit, opened, pop_all

pytestmark = pytest.mark.anyio
# Waiting costs nothing on trio's mock clock.
on_trio = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)


def once(kind: FrameKind, fate: Fate, *, after: int = 0) -> Callable[[FakeNode, Frame], Fate]:
    """This fate for one request of a kind, after this many others."""
    left = after

    def decide(_: FakeNode, frame: Frame) -> Fate:
        nonlocal left
        if frame.kind != kind:
            return Fate.DONE
        left -= 1
        return fate if left == -1 else Fate.DONE

    return decide


def move_all(cluster: FakeCluster) -> None:
    for group in cluster.logs:
        cluster.move(group, cluster.leaders[group] % 3 + 1)


LOST = [
    Fate.NOT_APPLIED,
    Fate.APPLIED_AND_CUT,
    Fate.UNKNOWN_NOT_APPLIED,
    Fate.UNKNOWN_APPLIED,
    Fate.BUSY,
    Fate.UNAVAILABLE,
    Fate.NOT_LEADER,
    Fate.APPLIED_LATE,
]


@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("after", [0, 1])
async def test_lost_answer_to_a_request_costs_nothing(
    cluster: FakeCluster, fate: Fate, after: int
) -> None:
    fill(cluster, queues=1, messages=60)
    cluster.fate = once(FrameKind.POP, fate, after=after)
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", prefetch=40) as c:
            got: list[bytes] = []
            while len(got) < 60:
                batch = await c.pop(7, wait=5.0)
                assert set(batch.attempts) == {1}, "what was not seen comes under the same token"
                got += batch.bodies
                await batch.ack()
        assert len(set(got)) == 60
        assert audit(cluster) == {"acked": 60}


@pytest.mark.parametrize("fate", LOST)
async def test_lost_answer_to_an_ack_is_told_once_more(cluster: FakeCluster, fate: Fate) -> None:
    fill(cluster, queues=1, messages=10)
    cluster.fate = once(FrameKind.SETTLE, fate)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(10, wait=5.0)
        settlement = await batch.ack()
        assert (settlement.settled, settlement.fenced) == (10, [])
        assert audit(cluster) == {"acked": 10}


@on_trio
@pytest.mark.parametrize("fate", [Fate.IGNORED, Fate.APPLIED_AND_IGNORED])
async def test_answer_that_never_comes_is_asked_for_again(cluster: FakeCluster, fate: Fate) -> None:
    fill(cluster, queues=1, messages=10)
    cluster.fate = once(FrameKind.SETTLE, fate)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(10, wait=5.0)
        assert (await batch.ack()).settled == 10
        cluster.fate = once(FrameKind.POP, fate)
        add(cluster, QUEUE, 5)
        assert (await (await c.pop(5, wait=30.0)).ack()).settled == 5
        assert audit(cluster) == {"acked": 15}


async def test_leases_survive_a_change_of_leader(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first = await c.pop(5, wait=5.0)
        tokens = first.tokens
        move_all(cluster)
        got = await pop_all(c, 25)
        assert not set(got) & set(first.bodies), "what is in hand is not handed on twice"
        assert first.tokens == tokens
        assert (await first.ack()).is_complete
        assert audit(cluster) == {"acked": 30}


async def test_closed_connections_cost_nothing(cluster: FakeCluster) -> None:
    fill(cluster, queues=3, messages=30)
    got: list[bytes] = []
    async with opened(cluster) as mq:
        async with mq.consumer("orders", group="g", mode="pop", prefetch=5) as c:
            while len(got) < 90:
                batch = await c.pop(3, wait=5.0)
                got += batch.bodies
                if len(got) % 2:
                    for node in cluster.nodes.values():
                        node.cut()
                assert (await batch.ack()).is_complete
        assert len(set(got)) == 90
        assert audit(cluster) == {"acked": 90}


@on_trio
async def test_lease_that_the_leader_does_not_list_is_lost(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first = await c.pop(10, wait=5.0)
        (attached,) = cluster.log_of(QUEUE).machine.pop_groups.attached.values()
        # As if the time of the lease had run out by the leader's clock, and not by ours.
        held = list(attached.group.held_by(c._consumer, 0))
        attached.group.pass_time(held[0].deadline)
        for node in cluster.nodes.values():
            node.cut()
        assert not await c.pop(10, wait=6.0)
        assert (await first.ack()).settled == 0
        with pytest.raises(Rejected, match="no longer yours"):
            await first[0].ack()
        settles = sum(n.requests.count(FrameKind.SETTLE) for n in cluster.nodes.values())
        assert settles == 0, "what is known to be lost is not asked for"


def lie_once(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections close, and the first list after that lacks everything."""
    answer, lies = FakePopping._answer, [True]

    def lying(self: FakePopping, log: Any, request: Pop, told: dict[int, int]) -> Any:
        if request.is_resumed and lies:
            lies.clear()
            answer(self, log, request, told)
            return Popped([], [], False, False), []
        return answer(self, log, request, told)

    monkeypatch.setattr(FakePopping, "_answer", lying)
    for node in cluster.nodes.values():
        node.cut()


@on_trio
async def test_lease_that_is_listed_again_after_a_wrong_list_is_in_hand_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, queues=1, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first = await c.pop(4, wait=5.0)
        lie_once(cluster, monkeypatch)
        assert not await c.pop(10, wait=6.0)
        for node in cluster.nodes.values():
            node.cut()
        assert not await c.pop(10, wait=6.0), "what is in hand is not handed on twice"
        assert (await first.ack()).is_complete
        assert audit(cluster) == {"acked": 4}


@on_trio
async def test_message_that_the_application_was_told_is_lost_stays_lost(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, queues=1, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first = await c.pop(4, wait=5.0)
        lie_once(cluster, monkeypatch)
        assert not await c.pop(10, wait=6.0)
        with pytest.raises(Rejected, match="no longer yours"):
            await first[0].ack()
        with pytest.raises(Rejected, match="no longer yours"):
            await first[1].extend(30)
        for node in cluster.nodes.values():
            node.cut()
        assert not await c.pop(10, wait=6.0)
        with pytest.raises(Rejected, match="no longer yours"):
            await first[0].ack()
        assert (await first.ack()).settled == 2
        assert audit(cluster) == {"acked": 2, "leased": 2}


@on_trio
async def test_ack_without_a_leader_is_unavailable_and_may_be_repeated(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(3, wait=5.0)
        for node in cluster.nodes:
            cluster.kill(node)
        await anyio.sleep(0.01)
        with pytest.raises(Unavailable):
            await batch[0].ack(timeout=1.0)
        assert audit(cluster) == {"leased": 3}
        cluster.unreachable.clear()
        await batch[0].reject("now it is wanted otherwise")
        assert audit(cluster) == {"dead": 1, "leased": 2}


@on_trio
async def test_ack_that_was_sent_and_not_answered_is_in_doubt_and_a_repeat_tells(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(3, wait=5.0)
        cluster.fate = lambda _, frame: (
            Fate.APPLIED_AND_IGNORED if frame.kind == FrameKind.SETTLE else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown):
            await batch.ack(timeout=1.0)
        assert audit(cluster) == {"acked": 3}
        # A settlement under way cannot be replaced by another.
        with pytest.raises(Rejected, match="no longer yours"):
            await batch[0].nack(timeout=1.0)
        # The next one has not left yet, and is taken back.
        with pytest.raises(OutcomeUnknown):
            await c.ack([batch[0]], timeout=0.5)
        cluster.fate = lambda _node, _frame: Fate.DONE
        assert (await batch.ack()).settled == 3


@on_trio
async def test_acks_that_gather_behind_one_in_doubt_are_taken_back(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(3, wait=5.0)
        cluster.fate = lambda _, frame: (
            Fate.IGNORED if frame.kind == FrameKind.SETTLE else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown):
            await batch[0].ack(timeout=0.5)
        with pytest.raises(Unavailable):
            await batch[1].ack(timeout=0.5)
        batch[2].ack_nowait()
        with pytest.raises(OutcomeUnknown):
            await c.flush(timeout=0.5)
        cluster.fate = lambda _node, _frame: Fate.DONE
        assert (await c.flush()).settled == 1
        await batch[1].nack(delay=0.0)
        assert audit(cluster) == {"acked": 2, "ready": 1}


@on_trio
async def test_leader_that_is_away_for_long_is_told(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=3)
    async with (
        opened(cluster, timeout=2.0) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
    ):
        batch = await c.pop(3, wait=5.0)
        for node in cluster.nodes:
            cluster.kill(node)
        with pytest.raises(Unavailable, match="has not been found for 2 s"):
            await c.pop(1, wait=60.0)
        with pytest.raises(Unavailable):
            await anext(c)
        cluster.unreachable.clear()
        assert (await batch.ack()).settled == 3


@on_trio
async def test_leaving_without_a_leader_ends_in_time(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=30)
    async with opened(cluster, timeout=2.0) as mq:
        before = anyio.current_time()
        with pytest.raises((Unavailable, OutcomeUnknown)):  # noqa: PT012
            async with mq.consumer("orders", group="g", mode="pop") as c:
                (await c.pop(3, wait=5.0)).ack_nowait()
                await c.flush()
                (await c.pop(3, wait=5.0)).ack_nowait()
                for node in cluster.nodes:
                    cluster.kill(node)
        assert anyio.current_time() - before < 5.0


async def test_retention_takes_the_lowest_of_what_is_acked(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=10)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        batch = await c.pop(10, wait=5.0)
        (attached,) = cluster.log_of(QUEUE).machine.pop_groups.attached.values()
        attached.group.trim(QUEUE, 4)
        settlement = await batch.ack()
        assert settlement.settled == 6
        assert settlement.fenced == [(m.id, m.token) for m in batch[:4]]


@pytest.mark.parametrize("header", [b"\x00", pack(Popped([], [])) + b"x"])
async def test_answer_that_breaks_the_protocol_closes_the_connection(
    cluster: FakeCluster, header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, queues=1, messages=10)
    original = unpack
    count = 0

    def damaged(type_: type[Popped], given: bytes) -> Popped:
        nonlocal count
        count += 1
        return original(type_, header if count == 1 else given)

    monkeypatch.setattr(session, "unpack", damaged)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        assert len(await pop_all(c, 10)) == 10
    assert audit(cluster) == {"acked": 10}
