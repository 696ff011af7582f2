"""The consumer that pops, when a pop asks for another lease time: no lease in hand gets shorter."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from raftmq.client import PoppedMessage
from raftmq.client.pop.prefetcher import Prefetcher
from raftmq.client.pop.settlements import Settlements
from raftmq.client.pop.tally import Waiter
from raftmq.errors import OutcomeUnknown, Rejected
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import QUEUE, add, fill
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate
from tests.client.popping_cluster import audit, opened

pytestmark = [
    pytest.mark.anyio,
    # Waiting costs nothing on trio's mock clock.
    pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True),
]


async def test_pop_for_a_shorter_time_leaves_what_is_in_hand_its_time(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (first,) = await c.pop(1, wait=5.0)
        # The request for more reaches the leader.
        await anyio.sleep(0.05)
        (second,) = await c.pop(1, wait=5.0, invisible=1.0)
        assert second.remaining == pytest.approx(1.0, abs=0.1)
        assert first.remaining == pytest.approx(30.0, abs=0.1)
        await anyio.sleep(5.0)
        async with mq.consumer("orders", group="g", mode="pop") as other:
            got = await other.pop(10, wait=20.0)
            assert first.body not in got.bodies
            await first.ack()
            assert audit(cluster)["acked"] == 1


async def test_pop_for_a_longer_time_extends_what_is_in_hand_of_the_same_lease(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=2)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (first,) = await c.pop(1, wait=5.0)
        add(cluster, QUEUE, 1)
        await anyio.sleep(0.05)
        second, third = await c.pop(2, wait=5.0, invisible=600.0)
        assert first.token == second.token
        assert first.token < third.token
        times = [each.remaining for each in (first, second, third)]
        assert times == pytest.approx([600.0] * 3, abs=0.1)


async def test_pop_for_a_shorter_time_without_a_wait_finds_what_was_buffered(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=4)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        (first,) = await c.pop(1, wait=5.0)
        await anyio.sleep(0.05)
        rest = await c.pop(3, wait=0, invisible=2.0)
        assert rest.bodies == [b"0:1", b"0:2", b"0:3"]
        assert max(m.remaining for m in rest) <= 2.0
        assert first.remaining == pytest.approx(30.0, abs=0.1)


async def test_pops_for_several_times_at_once_are_refused(cluster: FakeCluster) -> None:
    """The second one would cut the first one's leases short, or take them away."""
    fill(cluster, queues=1, messages=0)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=4.0) as c,
        anyio.create_task_group() as tasks,
    ):
        got: list[PoppedMessage] = []

        async def pop() -> None:
            got.extend(await c.pop(1, wait=5.0, invisible=60.0))

        for _ in range(2):
            tasks.start_soon(pop)
        await anyio.sleep(0.5)
        with pytest.raises(Rejected, match=r"invisible=60 is under way: .* a consumer each"):
            await c.pop(1, wait=0, invisible=2.0)
        add(cluster, QUEUE, 2)
        await anyio.sleep(0.5)
        assert [m.remaining for m in got] == pytest.approx([60, 60], abs=2)
        # Both have ended.
        assert not await c.pop(1, wait=0.1, invisible=2.0)


class Extending:
    """A prefetcher whose leases are being extended until `answer` is called."""

    make_invisible = Prefetcher.make_invisible

    def __init__(self) -> None:
        router: Any = SimpleNamespace(seconds_max=1.0, last_error="", start=None)
        self._router = router
        self.settlements = Settlements(router, router, router)
        self.buffered = [_lease_of_2_seconds()]
        self._waiter = Waiter()

    def _extend_short(
        self, milliseconds: int, waiter: Waiter, *, is_again: bool = False
    ) -> list[Any]:
        short = [lease for lease in self.buffered if lease.invisible_ms != milliseconds]
        assert short or is_again
        waiter.open += len(short)
        self._waiter = waiter
        return short

    def answer(self) -> None:
        while self._waiter.open:
            self._waiter.close_one()


def _lease_of_2_seconds() -> Any:
    return SimpleNamespace(invisible_ms=2_000, set_stale=lambda _now: None)


async def test_message_that_comes_to_an_earlier_request_during_an_extension_is_extended() -> None:
    prefetcher: Any = Extending()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(prefetcher.make_invisible, 60_000, 1.0)
        await anyio.wait_all_tasks_blocked()
        prefetcher.buffered.append(_lease_of_2_seconds())
        prefetcher.answer()
        await anyio.wait_all_tasks_blocked()
        prefetcher.answer()
    assert [lease.invisible_ms for lease in prefetcher.buffered] == [60_000, 60_000]


async def test_message_that_is_given_back_for_its_time_is_not_kept_by_a_pop_that_ends(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=4)

    def deaf(_: FakeNode, frame: Frame) -> Fate:
        return Fate.UNAVAILABLE if frame.kind == FrameKind.SETTLE else Fate.DONE

    async with (
        opened(cluster, timeout=3.0) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
    ):
        (first,) = await c.pop(1, wait=5.0)
        await anyio.sleep(0.05)
        cluster.fate = deaf
        with pytest.raises(OutcomeUnknown):
            await c.pop(1, wait=5.0, invisible=1.0)
        cluster.fate = lambda _node, _frame: Fate.DONE
        rest = await c.pop(3, wait=5.0)
        assert set(rest.bodies) <= {b"0:1", b"0:2", b"0:3"}
        assert max(m.remaining for m in rest) <= 1.0
        await first.ack()


async def test_request_for_another_time_that_stands_is_replaced(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0) as c,
    ):
        await (await c.pop(1, wait=5.0)).ack()
        assert not await c.pop(1, wait=0.1)

        async def add_later() -> None:
            await anyio.sleep(0.5)
            add(cluster, QUEUE, 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add_later)
            (m,) = await c.pop(1, wait=4.0, invisible=60.0)
        assert m.remaining == pytest.approx(60.0, abs=1.0)


async def test_message_of_a_request_for_another_time_is_extended_before_it_is_returned(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=1, messages=1)
    asked = 0

    def unheard(_: FakeNode, frame: Frame) -> Fate:
        nonlocal asked
        asked += frame.kind == FrameKind.POP
        return Fate.APPLIED_AND_IGNORED if asked == 1 else Fate.DONE

    cluster.fate = unheard
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=1.0) as c,
    ):
        assert not await c.pop(1, wait=0.1)
        (m,) = await c.pop(1, wait=4.0, invisible=60.0)
        assert m.attempt == 1
        assert m.remaining == pytest.approx(60.0, abs=1.0)
