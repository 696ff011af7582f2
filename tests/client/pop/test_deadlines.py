"""The consumer and the remaining time of its leases: no expired message is handed on."""

import anyio
import pytest

from raftmq.client.pop import prefetcher
from raftmq.client.pop.leases import HeldLease
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.consume.test_consumer import fill
from tests.client.fake_cluster import FakeCluster, FakeNode, Fate
from tests.client.popping_cluster import opened

pytestmark = [
    pytest.mark.anyio,
    # Waiting costs nothing on trio's mock clock.
    pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True),
]


@pytest.fixture
def untended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are looked after only where messages are handed on."""
    monkeypatch.setattr(prefetcher, "TICK_SECONDS", 3600.0)


@pytest.mark.usefixtures("untended")
@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_message_whose_time_is_over_is_not_handed_on(
    cluster: FakeCluster, is_one_by_one: bool
) -> None:
    fill(cluster, queues=1, messages=5)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        for n in range(5):
            m = await anext(c) if is_one_by_one else (await c.pop(1, wait=60.0))[0]
            assert m.remaining >= 10 - 1e-6, f"message {n}"
            await m.ack()
            await anyio.sleep(25.0)


@pytest.mark.usefixtures("untended")
@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_rest_of_a_lease_that_was_cut_short_is_not_handed_on_late(
    cluster: FakeCluster, is_one_by_one: bool
) -> None:
    fill(cluster, queues=1, messages=5)
    async with opened(cluster) as mq, mq.consumer("orders", group="g", mode="pop") as c:
        first = await anext(c)
        await first.extend(0.5)
        await anyio.sleep(0.6)
        m = await anext(c) if is_one_by_one else (await c.pop(1, wait=60.0))[0]
        assert m.token > first.token
        assert m.remaining > 0


async def test_lease_that_is_told_late_goes_back_if_little_is_left(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=5)
    begun, asked = anyio.current_time(), 0

    def told_late(_: FakeNode, frame: Frame) -> Fate:
        nonlocal asked
        if frame.kind != FrameKind.POP:
            return Fate.DONE
        asked += 1
        if asked == 1:
            return Fate.APPLIED_AND_CUT
        return Fate.UNAVAILABLE if anyio.current_time() < begun + 8.5 else Fate.DONE

    cluster.fate = told_late
    async with (
        opened(cluster) as mq,
        mq.consumer("orders", group="g", mode="pop", invisible=12) as c,
    ):
        batch = await c.pop(5, wait=60.0)
        # Before that fewer than four seconds were left of the twelve.
        assert 8.5 <= anyio.current_time() - begun < 12
        assert set(batch.attempts) == {1}
        assert min(m.remaining for m in batch) >= 4


async def test_lease_that_is_told_again_does_not_run_longer() -> None:
    lease = HeldLease(group=1, token=7, queue_number=3, attempt=1, base=0)
    lease.told(asked_at=0.0, now=100.0, remaining_ms=3000, deadline_ms=50_000)
    lease.set_stale(100.0)
    assert (lease.deadline, lease.stale_at, lease.deadline_ms) == (103.0, 102.0, 50_000)
    # The answer took longer on its way than the first.
    lease.told(asked_at=0.0, now=102.5, remaining_ms=1000, deadline_ms=50_000)
    assert (lease.deadline, lease.deadline_ms) == (103.0, 50_000)
    lease.told(asked_at=0.0, now=102.5, remaining_ms=200, deadline_ms=50_000)
    assert (lease.deadline, lease.deadline_ms) == (102.7, 50_000)
    # It was extended.
    lease.told(asked_at=0.0, now=102.5, remaining_ms=9000, deadline_ms=58_000)
    assert (lease.deadline, lease.deadline_ms) == (111.5, 58_000)
    assert lease.stale_at == 102.0


async def test_answer_to_an_extension_outranks_a_page_that_was_asked_for_before() -> None:
    lease = HeldLease(group=1, token=7, queue_number=3, attempt=1, base=0)
    lease.told(asked_at=99.0, now=100.0, remaining_ms=3000, deadline_ms=50_000)
    lease.extended(101.0, 60_000)
    assert lease.deadline == 161.0
    # The page was made before the extension, and comes after the answer to it.
    lease.told(asked_at=100.5, now=102.0, remaining_ms=1000, deadline_ms=50_000)
    assert lease.deadline == 161.0
    # A page that was asked for later tells that the lease was cut short since.
    lease.told(asked_at=102.5, now=103.0, remaining_ms=500, deadline_ms=50_500)
    assert (lease.deadline, lease.deadline_ms) == (103.5, 50_500)
