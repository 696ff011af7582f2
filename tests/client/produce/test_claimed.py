"""Claimed sessions: work done piece by piece stores each message once, whichever client does it."""

from random import Random

import anyio
import pytest

from raftmq.client import Client, connect
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.producers import Producers
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

QUEUE = 0x10000


async def test_next_holder_learns_what_was_stored_and_goes_on(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as other:
            await other.send(b"other", queue=0)
        async with mq.claimed_producer("orders", "import") as p:
            assert p.stored == {}
            await p.send_many([b"0", b"1"], queue=0)
        async with mq.claimed_producer("orders", "import") as p:
            assert p.stored == {0: (2, 1)}
            await p.send(b"2", queue=0)
            await p.send(b"3", queue=1)
        async with mq.claimed_producer("orders", "import") as p:
            assert p.stored == {0: (3, 1), 1: (1, 0)}
    assert cluster.stored() == [[b"other", b"0", b"1", b"2"], [b"3"]]


async def test_holder_that_was_replaced_can_store_nothing_more(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.claimed_producer("orders", "import") as old:
        await old.send(b"0", queue=0)
        async with mq.claimed_producer("orders", "import") as new:
            await new.send(b"1", queue=0)
            for queue in (0, 1):
                with pytest.raises(Rejected) as refused:
                    await old.send(b"zombie", queue=queue)
                assert refused.value.reason is Reason.FENCED
            await new.send(b"2", queue=0)
        old.send_nowait(b"zombie", queue=0)
        with pytest.raises(Rejected) as refused:
            await old.flush()
        assert refused.value.reason is Reason.FENCED
    assert cluster.stored() == [[b"0", b"1", b"2"], []]


async def test_label_that_is_over_cannot_be_claimed(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        async with mq.claimed_producer("orders", "import", label=2) as p:
            await p.send(b"0")
        with pytest.raises(Rejected) as refused:
            await mq.claimed_producer("orders", "import", label=1).__aenter__()
        assert refused.value.reason is Reason.FENCED
        async with mq.claimed_producer("orders", "import", label=3) as p:
            assert p.stored == {}
            await p.send(b"1")
    assert cluster.stored() == [[b"0", b"1"]]


async def test_session_that_the_broker_forgot_ends_the_producer(cluster: FakeCluster) -> None:
    cluster.create_topic()
    machine = cluster.log_of(QUEUE).machine
    async with connect(URL, world=cluster) as mq, mq.claimed_producer("orders", "import") as p:
        machine._producers = Producers(10)
        for _ in range(2):
            with pytest.raises(Rejected) as refused:
                await p.send(b"0")
            assert refused.value.reason is Reason.UNKNOWN_PRODUCER
    assert cluster.stored() == [[]]


async def test_message_given_up_in_doubt_ends_the_producer(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        async with mq.claimed_producer("orders", "import", batch_messages=1) as p:
            cluster.fate = lambda _, frame: (
                Fate.APPLIED_AND_IGNORED if frame.kind == FrameKind.PRODUCE else Fate.DONE
            )
            with pytest.raises(OutcomeUnknown):
                await p.send(b"0", timeout=1)
            cluster.fate = lambda *_: Fate.DONE
            with pytest.raises(Unavailable, match="claim it again"):
                await p.send(b"1")
        async with mq.claimed_producer("orders", "import") as p:
            assert p.stored[0].count == len(cluster.stored()[0])


async def test_queues_are_those_of_the_claim(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    async with connect(URL, world=cluster) as mq, mq.claimed_producer("orders", "import") as p:
        await mq.admin.alter_topic("orders", 4)
        await mq.admin.describe_topic("orders")
        await p.send_many(bodies=[b"x"] * 20, keys=[f"k{n}" for n in range(20)])
        assert p.queues == 1
        async with mq.claimed_producer("orders", "import") as later:
            assert later.queues == 4
    assert [len(bodies) for bodies in cluster.stored()] == [20, 0, 0, 0]


@pytest.mark.parametrize(("session", "label"), [("", 1), ("s", 0), ("s", 1 << 63)])
async def test_malformed_session_is_refused(cluster: FakeCluster, session: str, label: int) -> None:
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(Rejected, match=r"a session has a name|a label is 1"):
            mq.claimed_producer("orders", session, label=label)


FAULTS = [fate for fate in Fate if fate not in {Fate.IGNORED, Fate.APPLIED_AND_IGNORED, Fate.DONE}]


async def attempt(mq: Client, random: Random, bodies: list[bytes]) -> None:
    """One try at storing these bodies in order in queue 0, which may end anywhere."""
    with anyio.move_on_after(random.choice([0.2, 2, 60])):
        async with mq.claimed_producer("orders", "import", batch_messages=3) as p:
            done = p.stored[0].count if 0 in p.stored else 0
            for body in bodies[done:]:
                p.send_nowait(body, queue=0, timeout=random.choice([0.5, 10]))
                if random.random() < 0.2:
                    await anyio.sleep(random.random())


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
@pytest.mark.parametrize("seed", range(12))
async def test_attempts_side_by_side_under_faults_store_each_message_once(
    cluster: FakeCluster, seed: int
) -> None:
    random = Random(seed)
    cluster.create_topic()

    def fate(_: FakeNode, frame: Frame) -> Fate:
        is_ours = frame.kind in {FrameKind.PRODUCE, FrameKind.SESSIONS}
        return random.choice(FAULTS) if is_ours and random.random() < 0.2 else Fate.DONE

    bodies = [b"%d" % n for n in range(40)]
    async with connect(URL, world=cluster) as mq:
        cluster.fate = fate

        async def tries() -> None:
            for _ in range(3):
                await anyio.sleep(random.random())
                try:
                    await attempt(mq, random, bodies)
                except RaftmqError:
                    continue

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(tries)
        stored = cluster.stored()[0]
        assert stored == bodies[: len(stored)]
        cluster.fate = lambda *_: Fate.DONE
        async with mq.claimed_producer("orders", "import") as p:
            done = p.stored[0].count if 0 in p.stored else 0
            assert done == len(cluster.stored()[0])
            await p.send_many(bodies[done:], queue=0)
    assert cluster.stored() == [bodies]
