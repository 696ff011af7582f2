"""Changes that are sent again: a refusal may come from an attempt that took effect."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import raftmq.client.consume.offsets
from raftmq.client import PoppedMessage, connect
from raftmq.client.admin.dead_letters import DeadLetter, change_dead
from raftmq.client.message import format_id
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.topics import DeleteTopic
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import Admin, FrameKind
from raftmq.wire.popping import DeadChanged
from tests.client.consume.test_consumer import fill

from .fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

PATIENCE = 2.0
"""Seconds until a change is given up, long enough for the parts that are done on a busy machine."""


async def test_refusal_of_a_change_that_an_earlier_attempt_may_have_done_leaves_it_open(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    fates = [Fate.APPLIED_AND_CUT]
    async with connect(URL, world=cluster) as mq:
        cluster.fate = lambda _, f: (
            fates.pop() if f.kind == FrameKind.ADMIN and fates else Fate.DONE
        )
        # As older software does: without a number, and by name.
        change = Admin.of(DeleteTopic("orders"))
        with pytest.raises(OutcomeUnknown, match="an earlier attempt of ADMIN may have been done"):
            await mq._router.call_leader(SYSTEM_GROUP, FrameKind.ADMIN, change, is_change=True)
        with pytest.raises(Rejected) as refused:
            await mq.admin.delete_topic("orders")
        assert refused.value.reason is Reason.UNKNOWN_TOPIC
        fates.append(Fate.APPLIED_AND_CUT)
        with pytest.raises(Rejected) as refused:
            await mq.admin.create_topic("a topic")
        assert refused.value.reason is Reason.BAD_NAME


async def test_claim_whose_release_was_not_answered_is_not_said_to_be_over(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.consumer("orders", group="g", mode="pop") as consumer,
    ):
        claim = await consumer.claim("k", ttl=60)
        assert claim is not None
        fates = [Fate.APPLIED_AND_CUT]
        cluster.fate = lambda _, f: (
            fates.pop() if f.kind == FrameKind.CLAIM and fates else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown):
            await claim.release()
        assert not await claim.release()
        again = await consumer.claim("k", ttl=60)
        assert again is not None
        assert await again.release()


async def test_attachment_that_did_not_begin_everywhere_is_not_unavailable(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    cluster.fate = lambda _, f: Fate.BUSY if f.kind == FrameKind.RESET else Fate.DONE
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(OutcomeUnknown, match="done before: attachment"):
            await mq.admin.attach("orders", "g", timeout=PATIENCE)
        assert (await mq.admin.consumer_groups(name="g"))[0].attachments


async def test_group_that_was_made_and_could_not_be_looked_up_is_not_unavailable(
    cluster: FakeCluster,
) -> None:
    cluster.fate = lambda _, f: Fate.BUSY if f.kind == FrameKind.GROUPS else Fate.DONE
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(OutcomeUnknown, match="done before: consumer group"):
            await mq.admin.create_consumer_group("g", timeout=PATIENCE)


@pytest.mark.parametrize("is_any_done", [True, False])
async def test_call_of_which_a_part_is_done_is_not_unavailable(
    cluster: FakeCluster, is_any_done: bool
) -> None:
    """The leaders of three partition groups; one, or each, says that it is busy."""
    fill(cluster, queues=3, messages=2)
    expected = OutcomeUnknown if is_any_done else Unavailable
    busy = {3} if is_any_done else {1, 2, 3}
    changes = {FrameKind.COMMIT, FrameKind.SETTLE, FrameKind.RESET}

    def fate(node: FakeNode, frame: Frame) -> Fate:
        return Fate.BUSY if frame.kind in changes and node.number in busy else Fate.DONE

    async with connect(URL, world=cluster) as mq:
        async with mq.consumer("orders", group="pull") as consumer:
            while sum(consumer.position.values()) < 6:
                await consumer.fetch(6, wait=5.0)
            cluster.fate = fate
            with pytest.raises(expected) as raised:
                await consumer.commit(timeout=PATIENCE)
            assert ("done before: the commit of queues [0, 1]" in str(raised.value)) is is_any_done
            with pytest.raises(expected):
                await mq.admin.reset_group("pull", "orders", to="earliest", timeout=PATIENCE)
            cluster.fate = lambda _, __: Fate.DONE
        progress = await mq.progress("orders", "job")
        cluster.fate = fate
        with pytest.raises(expected, match=r"queues \[0, 1\]" if is_any_done else None):
            await progress.commit({0: 1, 1: 1, 2: 1}, timeout=PATIENCE)
        cluster.fate = lambda _, __: Fate.DONE
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as popping:
            messages: list[PoppedMessage] = []
            while len(messages) < 6:
                messages += await popping.pop(6, wait=5.0)
            cluster.fate = fate
            with pytest.raises(expected, match="4 of its messages" if is_any_done else None):
                await popping.ack(messages, timeout=PATIENCE)
            cluster.fate = lambda _, __: Fate.DONE
            assert (await popping.ack(messages)).settled == 6


def busy_at(kind: FrameKind, *nodes: int) -> Callable[[FakeNode, Frame], Fate]:
    """These nodes are too busy for such requests."""
    return lambda node, frame: (
        Fate.BUSY if frame.kind == kind and node.number in nodes else Fate.DONE
    )


async def test_producer_that_claimed_some_queues_is_not_unavailable(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=3)
    async with (
        connect(URL, world=cluster, timeout=PATIENCE) as mq,
        mq.claimed_producer("orders", "job") as first,
    ):
        cluster.fate = busy_at(FrameKind.SESSIONS, 1, 2, 3)
        with pytest.raises(Unavailable):
            await mq.claimed_producer("orders", "job").__aenter__()
        await first.send(b"0", queue=0)
        cluster.fate = busy_at(FrameKind.SESSIONS, 3)
        with pytest.raises(OutcomeUnknown, match=r"the claim of queues \[0, 1\]"):
            await mq.claimed_producer("orders", "job").__aenter__()
        with pytest.raises(Rejected) as refused:
            await first.send(b"1", queue=0)
        assert refused.value.reason is Reason.FENCED


@pytest.mark.parametrize(
    ("kind", "nodes", "done"),
    [
        (FrameKind.ADMIN, [1], None),
        (FrameKind.RESET, [1, 2, 3], ["attachment", "filter"]),
        (FrameKind.RESET, [3], ["attachment", "beginning in partition group 1", "filter"]),
    ],
)
async def test_popping_consumer_that_is_half_open_is_not_unavailable(
    cluster: FakeCluster, kind: FrameKind, nodes: list[int], done: list[str] | None
) -> None:
    cluster.create_topic(queues=3)
    cluster.fate = busy_at(kind, *nodes)
    async with connect(URL, world=cluster, timeout=PATIENCE) as mq:
        options: dict[str, Any] = {"mode": "pop", "start": "latest", "filter": "a = 1"}
        with pytest.raises(Unavailable if done is None else OutcomeUnknown) as raised:
            await mq.consumer("orders", group="g", **options).__aenter__()
        assert all(f"'{part}'" in str(raised.value) for part in done or [])
        assert len(await mq.admin.list_subscriptions()) == (done is not None)


async def test_pulling_consumer_that_has_subscribed_is_not_unavailable(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster, timeout=PATIENCE) as mq:
        for filter_ in (None, "a = 1"):
            cluster.fate = busy_at(FrameKind.COMMITTED, 1, 2, 3)
            with pytest.raises(OutcomeUnknown if filter_ else Unavailable) as raised:
                await mq.consumer("orders", group="g", filter=filter_).__aenter__()
            assert ("the filter of group ['g']" in str(raised.value)) is (filter_ is not None)


async def test_member_that_did_not_get_its_queues_is_not_unavailable(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster, timeout=PATIENCE) as mq:
        member: dict[str, Any] = {"group": "g", "queues": "assigned", "session": 2.0}
        cluster.fate = busy_at(FrameKind.ADMIN, 1, 2, 3)
        with pytest.raises(Unavailable):
            await mq.consumer("orders", **member).__aenter__()
        cluster.fate = busy_at(FrameKind.HEARTBEAT, 1, 2, 3)
        with pytest.raises(OutcomeUnknown, match="done before: the joining of member"):
            await mq.consumer("orders", **member).__aenter__()
        assert not await mq.admin.members("g"), "it has left"
        with anyio.move_on_after(0.2) as cancelled:
            await mq.consumer("orders", **member).__aenter__()
        assert cancelled.cancelled_caught
        assert not await mq.admin.members("g"), "it has left"


async def test_commit_that_began_its_transaction_is_not_unavailable(cluster: FakeCluster) -> None:
    fill(cluster, queues=1, messages=1)
    async with (
        connect(URL, world=cluster) as mq,
        mq.producer("orders") as producer,
        mq.consumer("orders", group="g", mode="pop") as consumer,
    ):
        messages = await consumer.pop(wait=5.0)
        cluster.fate = busy_at(FrameKind.END, 1, 2, 3)
        for expected in (OutcomeUnknown, Unavailable):
            # The second commit of a transaction has begun nothing.
            if expected is OutcomeUnknown:
                transaction = producer.transaction(acks=messages, timeout=PATIENCE)
            with pytest.raises(expected) as raised:
                await transaction.commit()
            assert ("the beginning of transaction" in str(raised.value)) is (
                expected is OutcomeUnknown
            )
        cluster.fate = lambda _, __: Fate.DONE
        await transaction.commit()


async def test_calls_of_a_transaction_end_with_its_timeout(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    cluster.fate = busy_at(FrameKind.PRODUCE, 1, 2, 3)
    # On a busy machine the last request is under way when the time is over.
    late = Unavailable, OutcomeUnknown
    async with connect(URL, world=cluster, timeout=3600.0) as mq, mq.producer("orders") as producer:
        transaction = producer.transaction(group="shop", timeout=0.3)
        with pytest.raises(late):
            await transaction.send(b"1")
        cluster.fate = busy_at(FrameKind.END, 1, 2, 3)
        with pytest.raises(late):
            await transaction.rollback()


@pytest.mark.parametrize("what", ["claimed producer", "popping", "pulling"])
async def test_openings_have_one_timeout_for_all_that_they_ask(
    cluster: FakeCluster, what: str
) -> None:
    """Each kind of request is refused for 0.4 s: one after the other does not fit in 0.6 s."""
    fill(cluster, queues=1, messages=1)
    since: dict[tuple[int, int], float] = {}

    def fate(node: FakeNode, frame: Frame) -> Fate:
        now = anyio.current_time()
        is_early = now < since.setdefault((frame.kind, node.number), now) + 0.4
        return Fate.BUSY if is_early else Fate.DONE

    async with connect(URL, world=cluster, timeout=0.6) as mq:
        cluster.fate = fate
        opening: Any = {
            "claimed producer": lambda: mq.claimed_producer("orders", "job"),
            "popping": lambda: mq.consumer(
                "orders", group="g", mode="pop", start="latest", filter="a = 1"
            ),
            "pulling": lambda: mq.consumer("orders", group="g", filter="a = 1"),
        }[what]
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await opening().__aenter__()


async def test_progress_that_fenced_an_earlier_holder_is_not_unavailable(
    cluster: FakeCluster,
) -> None:
    fill(cluster, queues=3, messages=2)
    async with connect(URL, world=cluster, timeout=PATIENCE) as mq:
        first = await mq.progress("orders", "job")
        cluster.fate = busy_at(FrameKind.COMMITTED, 1, 2, 3)
        with pytest.raises(OutcomeUnknown, match="an earlier holder is out of group"):
            await mq.progress("orders", "job")
        with pytest.raises(Rejected) as refused:
            await first.commit({0: 1})
        assert refused.value.reason is Reason.FENCED


async def test_commit_of_many_queues_of_which_a_part_is_done_is_not_unavailable(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raftmq.client.consume.offsets, "LIST_MAX", 1)
    fill(cluster, queues=6, messages=1)
    commits: list[int] = []

    def fate(node: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.COMMIT:
            commits.append(node.number)
        return Fate.BUSY if frame.kind == FrameKind.COMMIT and len(commits) > 1 else Fate.DONE

    async with connect(URL, world=cluster) as mq:
        cluster.fate = fate
        with pytest.raises(OutcomeUnknown, match="'1 queues'"):
            await mq.admin.reset_group("g", "orders", to="latest", timeout=PATIENCE)


async def test_redrive_of_which_a_part_is_done_is_not_unavailable() -> None:
    asked: list[int] = []

    async def call_leader(group: int, *_: Any, **__: Any) -> Any:
        asked.append(group)
        if len(asked) > 1:
            raise Unavailable("no leader")
        return SimpleNamespace(header=pack(DeadChanged(1)))

    router: Any = SimpleNamespace(seconds_max=1.0, call_leader=call_leader, draw_request=lambda: 7)
    letters = [
        DeadLetter("g", "orders", 5, n, 1, 0, 1, "failed", 0, (format_id(n, 0),)) for n in (1, 2)
    ]
    with pytest.raises(OutcomeUnknown, match=r"dead letters of partition groups \[1\]"):
        await change_dead(router, letters, is_purge=False)
    assert asked == [1, 2]


async def test_call_under_which_the_client_is_closed_may_have_been_done(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    ends: list[BaseException] = []
    async with anyio.create_task_group() as tasks, connect(URL, world=cluster) as mq:
        cluster.fate = lambda _, f: (
            Fate.APPLIED_AND_IGNORED if f.kind == FrameKind.ADMIN else Fate.DONE
        )

        async def create() -> None:
            with pytest.raises(OutcomeUnknown) as raised:
                await mq.admin.create_topic("more")
            ends.append(raised.value)

        tasks.start_soon(create)
        await anyio.sleep(0.1)
    assert len(ends) == 1
    assert "more" in [topic.name for topic in cluster.catalog.topics.values()]


async def test_topic_that_was_made_before_the_client_was_closed_is_named(
    cluster: FakeCluster,
) -> None:
    raised: list[RaftmqError] = []
    async with anyio.create_task_group() as tasks, connect(URL, world=cluster) as mq:

        async def create() -> None:
            with pytest.raises(OutcomeUnknown) as caught:
                await mq.admin.create_topic("new")
            raised.append(caught.value)

        await mq.admin.create_topic("first")
        cluster.fate = lambda _, f: Fate.BUSY if f.kind == FrameKind.METADATA else Fate.DONE
        tasks.start_soon(create)
        await anyio.sleep(0.1)
    assert "done before: topic ['new']" in str(raised[0])
