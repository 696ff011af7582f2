"""The client as a whole: connecting, leaving, cancelling, bugs, routing, lookups, admin."""

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import anyio
import pytest
from msgspec.structs import replace

import raftmq
from raftmq.client import connect
from raftmq.client.pop.handles import handle_of
from raftmq.client.produce.queue_sender import QueueSender
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ClusterView, ErrorReply, FrameKind
from tests.client.consume.test_consumer import fill

from .fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio


async def test_any_one_address_that_answers_is_enough(cluster: FakeCluster) -> None:
    cluster.unreachable |= {1, 3}
    async with connect("raftmq://nowhere:9,node1:1,node2:2", world=cluster) as mq:
        cluster.unreachable.clear()
        assert len((await mq.admin.cluster()).nodes) == 3


async def test_cluster_that_does_not_answer_is_unavailable_in_time(cluster: FakeCluster) -> None:
    cluster.unreachable |= {1, 2, 3}
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with connect(URL, world=cluster, timeout=0.2):
            pass


async def test_another_cluster_is_rejected(cluster: FakeCluster) -> None:
    with pytest.raises(Rejected) as caught:
        async with connect(URL, world=cluster, cluster="other"):
            pass
    assert caught.value.reason is Reason.WRONG_CLUSTER


async def test_node_of_another_cluster_at_one_address_is_passed_over(cluster: FakeCluster) -> None:
    cluster.nodes[1].welcome_cluster = "stranger"
    async with connect(URL, world=cluster, cluster="fake") as mq:
        assert len((await mq.admin.cluster(is_latest=False)).nodes) == 3


@pytest.mark.parametrize("url", ["", "http://a:1", "raftmq://", "raftmq://a:0", "raftmq://a:x"])
async def test_wrong_url_is_rejected_before_anything_happens(url: str) -> None:
    with pytest.raises(Rejected, match="no cluster URL"):
        connect(url)


async def test_block_raises_what_its_body_raised_and_unwrapped(cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with connect(URL, world=cluster):
            raise ValueError("mine")


async def test_cancelling_the_block_ends_it(cluster: FakeCluster) -> None:
    cluster.create_topic()
    with anyio.move_on_after(0.05) as scope:
        async with (
            connect(URL, world=cluster) as mq,
            mq.producer("orders"),
            mq.consumer("orders") as c,
        ):
            await c.fetch(wait=1000.0)
    assert scope.cancelled_caught


async def test_calls_after_the_block_say_that_it_is_closed(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        producer = mq.producer("orders")
        consumer = mq.consumer("orders")
        with pytest.raises(RaftmqError, match="not open"):
            await producer.send(b"x")
        with pytest.raises(RaftmqError, match="not open"):
            await consumer.fetch()
    with pytest.raises(RaftmqError, match="closed"):
        await mq.admin.list_topics()


async def test_send_that_waits_when_the_client_closes_is_told(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = lambda _, f: Fate.IGNORED if f.kind == FrameKind.PRODUCE else Fate.DONE
    told: list[BaseException] = []

    async def send(producer: raftmq.Producer) -> None:
        try:
            await producer.send(b"x", timeout=100.0)
        except RaftmqError as error:
            told.append(error)

    async with anyio.create_task_group() as tasks, connect(URL, world=cluster) as mq:
        producer = await mq.producer("orders").__aenter__()
        tasks.start_soon(send, producer)
        await anyio.sleep(0.05)
    assert len(told) == 1


async def test_bug_inside_surfaces_on_calls_and_spares_the_block(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        producer = await mq.producer("orders").__aenter__()
        await producer.send(b"x")
        monkeypatch.setattr(QueueSender, "_settle", broken)
        with pytest.raises(RaftmqError, match="planted"):
            await producer.send(b"y")
        with pytest.raises(RaftmqError, match="planted"):
            await mq.admin.list_topics()


async def test_stale_table_of_one_node_does_not_hide_the_leader(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic()
    group = cluster.catalog.group_of(0x10000)
    assert group is not None
    original = FakeNode._metadata
    old_view = cluster.view(None)

    def metadata(node: FakeNode, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        if node.number == 3:
            from raftmq.wire.codec import pack

            return pack(old_view), []
        return original(node, frame)

    cluster.nodes[3]._handlers[FrameKind.METADATA] = lambda f: metadata(cluster.nodes[3], f)
    leader = cluster.leaders[group]
    cluster.hints = False
    cluster.move(group, 2 if leader != 2 else 1)
    cluster.kill(leader)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert (await p.send(b"x", timeout=10.0)).offset == 0


async def test_node_that_is_ahead_of_the_leaders_term_does_not_hide_the_leader(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log was cut, or it campaigned in vain; it leads nothing and hears no leader."""
    cluster.create_topic()
    right, tables = cluster.view, [0] * 3

    def view(topics: list[str] | None) -> ClusterView:
        found = right(topics)
        if not tables:
            return found
        tables.pop()
        ahead = [replace(group, leader=0, term=group.term + 1) for group in found.groups]
        return replace(found, groups=ahead)

    monkeypatch.setattr(cluster, "view", view)
    cluster.hints = False
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        assert (await p.send(b"x", timeout=10.0)).offset == 0
    assert not tables


async def test_table_without_the_system_group_still_finds_its_leader(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cluster.terms[0]
    leader = cluster.leaders.pop(0)
    original = FakeNode.not_leader

    def not_leader(node: FakeNode, group: int) -> object:

        if group:
            return original(node, group)
        if node.number == leader:
            return None
        return ErrorReply("not_leader", "not here", group=0, leader=leader)

    monkeypatch.setattr(FakeNode, "not_leader", not_leader)
    async with connect(URL, world=cluster) as mq:
        assert (await mq.admin.create_topic("orders", 2)).queues == 2
        assert [topic.name for topic in await mq.admin.list_topics()] == ["orders"]


async def test_message_is_got_by_its_id(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        sent = await p.send_many([b"%d" % n for n in range(10)], queue=1)
        for at, receipt in enumerate(sent.receipts()):
            assert receipt.id is not None
            message = await mq.get(receipt.id)
            assert (message.body, message.id) == (b"%d" % at, receipt.id)
        group = cluster.catalog.group_of(0x10001)
        assert group is not None
        cluster.move(group, cluster.leaders[group] % 3 + 1)
        assert (await mq.get("10001-3")).body == b"3"
        for wrong, reason in [
            ("orders-1", Reason.BAD_ARGUMENT),
            ("10001-a", Reason.OFFSET_OUT_OF_RANGE),
            ("10001-ff", Reason.OFFSET_OUT_OF_RANGE),
            ("10009-0", Reason.OFFSET_OUT_OF_RANGE),
            ("990000-0", Reason.UNKNOWN_TOPIC),
        ]:
            with pytest.raises(Rejected) as caught:
                await mq.get(wrong)
            assert caught.value.reason is reason


async def test_messages_are_found_by_key_newest_first(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        for n in range(12):
            cluster.clock_ms += 1000
            await p.send(b"%d" % n, key=f"k{n % 2}", queue=n % 3)
        found = await mq.find("orders", key="k1")
        assert [m.body for m in found] == [b"11", b"9", b"7", b"5", b"3", b"1"]
        assert [m.body for m in await mq.find("orders", key="k1", limit=2)] == [b"11", b"9"]
        since = datetime.fromtimestamp(found[1].timestamp / 1000, UTC)
        assert [m.body for m in await mq.find("orders", key="k1", since=since)] == [b"11", b"9"]
        assert await mq.find("orders", key="none") == []


async def test_topics_are_created_listed_described_grown_and_deleted(
    cluster: FakeCluster,
) -> None:
    async with connect(URL, world=cluster) as mq:
        admin = mq.admin
        created = await admin.create_topic("orders", 4)
        assert created == await admin.create_topic("orders", 4)
        with pytest.raises(Rejected) as caught:
            await admin.create_topic("orders", 5)
        assert caught.value.reason is Reason.TOPIC_EXISTS
        with pytest.raises(Rejected, match="not a topic name"):
            await admin.create_topic("no name")
        assert (await admin.alter_topic("orders", 6)).queues == 6
        await admin.create_topic("bills", 1)
        assert [(t.name, t.queues) for t in await admin.list_topics()] == [
            ("bills", 1),
            ("orders", 6),
        ]
        async with mq.producer("orders") as p:
            await p.send_many(bodies=[b"x"] * 5, queue=3)
        described = await admin.describe_topic("orders")
        assert [(q.queue, q.earliest, q.end) for q in described.queues][2:4] == [
            (2, 0, 0),
            (3, 0, 5),
        ]
        for queue in described.queues:
            assert queue.leader == cluster.leaders[queue.partition_group]
        await admin.delete_topic("orders")
        with pytest.raises(Rejected) as caught:
            await admin.describe_topic("orders")
        assert caught.value.reason is Reason.UNKNOWN_TOPIC


async def test_change_whose_answer_was_lost_is_sent_again(cluster: FakeCluster) -> None:
    lost = [Fate.APPLIED_AND_CUT, Fate.UNKNOWN_APPLIED, Fate.UNKNOWN_NOT_APPLIED, Fate.BUSY]
    cluster.fate = lambda _, f: lost.pop() if f.kind == FrameKind.ADMIN and lost else Fate.DONE
    async with connect(URL, world=cluster) as mq:
        assert (await mq.admin.create_topic("orders", 3)).queues == 3
    assert not lost


@pytest.mark.parametrize("kind", [FrameKind.OFFSETS, FrameKind.COMMIT, FrameKind.FETCH])
async def test_leader_that_has_not_heard_of_a_new_topic_yet_is_asked_again(
    cluster: FakeCluster, kind: FrameKind
) -> None:
    cluster.create_topic()
    fates = [Fate.BEHIND] * 2
    cluster.fate = lambda _, f: fates.pop() if f.kind == kind and fates else Fate.DONE
    async with connect(URL, world=cluster) as mq:
        async with mq.producer("orders") as p:
            receipt = await p.send(b"x")
        assert receipt.id is not None
        assert (await mq.get(receipt.id)).body == b"x"
        await mq.admin.describe_topic("orders")
        async with mq.consumer("orders", group="g") as c:
            await c.fetch()
            await c.commit()
    assert not fates


@pytest.mark.parametrize(
    ("fate", "error"), [(Fate.IGNORED, OutcomeUnknown), (Fate.BUSY, Unavailable)]
)
async def test_change_without_an_answer_says_whether_it_may_have_happened(
    cluster: FakeCluster, fate: Fate, error: type[RaftmqError]
) -> None:
    cluster.fate = lambda _, f: fate if f.kind == FrameKind.ADMIN else Fate.DONE
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(error):
            await mq.admin.create_topic("orders", timeout=0.15)


async def test_lag_of_a_queue_without_a_commit_is_not_known_unless_it_is_empty(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=3)
    cluster.create_topic("others", queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send_many(bodies=[b"x"] * 10, queue=0)
        await p.send_many(bodies=[b"x"] * 4, queue=1)
        async with mq.consumer("orders", group="g") as c:
            await c.commit({0: 3})
        (group,) = await mq.admin.list_groups()
        assert [(o.topic, o.queue, o.committed, o.lag) for o in group.offsets] == [
            ("orders", 0, 3, 7),
            ("orders", 1, None, None),
            ("orders", 2, None, 0),
        ]
        assert (group.offsets[1].timestamp, group.lag) == (0, None)
        assert await mq.admin.describe_group("g") == group
        async with mq.consumer("orders", group="g") as c:
            await c.commit({1: 4})
        assert (await mq.admin.describe_group("g")).lag == 7


async def test_consumer_groups_are_listed_with_their_lag_and_reset(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send_many(bodies=[b"x"] * 10, queue=0)
        await p.send_many(bodies=[b"x"] * 4, queue=1)
        async with mq.consumer("orders", group="g") as c:
            await c.commit({0: 3, 1: 4})
        (group,) = await mq.admin.list_groups(topic="orders")
        assert (group.name, group.lag) == ("g", 7)
        assert [(o.topic, o.queue, o.committed, o.end, o.lag) for o in group.offsets] == [
            ("orders", 0, 3, 10, 7),
            ("orders", 1, 4, 4, 0),
        ]
        planned = await mq.admin.reset_group("g", "orders", to="earliest", dry_run=True)
        assert [tuple(change) for change in planned] == [(0, 3, 0), (1, 4, 0)]
        assert await mq.admin.describe_group("g") == group
        await mq.admin.reset_group("g", "orders", to=8, queues=[0, 1])
        after = await mq.admin.describe_group("g")
        assert [o.committed for o in after.offsets] == [8, 4]
        with pytest.raises(Rejected) as caught:
            await mq.admin.describe_group("nobody")
        assert caught.value.reason is Reason.UNKNOWN_GROUP


async def test_offsets_are_found_by_time_and_end(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"x", queue=0)
        cluster.clock_ms += 5000
        await p.send(b"x", queue=0)
        at = datetime.fromtimestamp(cluster.clock_ms / 1000, UTC)
        assert await mq.admin.find_offsets("orders", at) == {0: 1, 1: 0}
        assert await mq.admin.find_offsets("orders", "latest", queues=[0]) == {0: 2}
        assert await mq.admin.find_offsets("orders", 99) == {0: 2, 1: 0}


async def test_leadership_is_transferred_and_nodes_tell_their_status(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        await mq.admin.transfer(1, to=3)
        assert cluster.leaders[1] == 3
        groups = [{"group": number} for number in range(4)]
        assert await mq.admin.status(2) == {"node": 2, "groups": groups}
        with pytest.raises(Rejected) as caught:
            await mq.admin.status(9)
        assert caught.value.reason is Reason.UNKNOWN_NODE
        cluster.kill(2)
        with pytest.raises(Unavailable):
            await mq.admin.status(2)


def test_package_exports_what_the_page_promises() -> None:
    for name in raftmq.__all__:
        assert getattr(raftmq, name) is not None
    assert "connect" in dir(raftmq)
    with pytest.raises(AttributeError):
        _ = raftmq.nothing


async def test_long_answers_are_put_together_from_their_pages(cluster: FakeCluster) -> None:
    cluster.page_entries = 2
    names = [f"topic-{number}" for number in range(7)]
    for name in names:
        cluster.create_topic(name, queues=3)
    async with connect(URL, world=cluster) as mq:
        assert [topic.name for topic in await mq.admin.list_topics()] == names
        view = await mq.admin.cluster()
        assert (len(view.nodes), len(view.groups), view.next) == (3, 4, 0)
        for group in ("g1", "g2", "g3"):
            await mq.admin.reset_group(group, "topic-3", to="earliest")
        found = await mq.admin.list_groups(topic="topic-3")
        assert [(g.name, [o.queue for o in g.offsets]) for g in found] == [
            (group, [0, 1, 2]) for group in ("g1", "g2", "g3")
        ]
        status = await mq.admin.status(1)
        assert [group["group"] for group in status["groups"]] == [0, 1, 2, 3]
        assert "next" not in status


async def test_offsets_of_very_many_queues_are_asked_for_and_committed_in_parts(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.client.consume.offsets.LIST_MAX", 4)
    cluster.create_topic(queues=30)
    async with connect(URL, world=cluster) as mq:
        await mq.admin.reset_group("g", "orders", to="earliest")
        (group,) = await mq.admin.list_groups(topic="orders")
        assert [offset.queue for offset in group.offsets] == list(range(30))
    asked = sum(node.requests.count(FrameKind.COMMIT) for node in cluster.nodes.values())
    assert asked == 9


async def test_arguments_of_the_wrong_type_are_refused_at_the_call(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq:
        for group in (5, b"billing"):
            for mode in ("pull", "broadcast", "pop", "ordered"):
                with pytest.raises(Rejected, match=r"group is a text \(str\) or None") as caught:
                    mq.consumer("orders", group=group, mode=mode)  # type: ignore[call-overload]
                assert caught.value.reason is Reason.BAD_ARGUMENT
        for commit in (None, "yes", 1):
            with pytest.raises(Rejected, match="commit is True or False") as caught:
                await mq.end_transaction("t1-1", commit=commit)  # type: ignore[arg-type]
            assert caught.value.reason is Reason.BAD_ARGUMENT
        assert not any(FrameKind.END in node.requests for node in cluster.nodes.values())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "5"])
async def test_times_that_are_no_finite_numbers_are_refused(
    cluster: FakeCluster, wrong: float
) -> None:
    fill(cluster, queues=1, messages=1)
    async with (
        connect(URL, world=cluster) as mq,
        mq.consumer("orders", group="g", mode="pop") as c,
    ):
        (message,) = await c.pop(1, wait=5.0)
        handle = handle_of(message)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: message.nack(wrong),
            lambda: message.extend(wrong),
            lambda: c.claim("key", ttl=wrong),
            lambda: c.pop(1, wait=0, invisible=wrong),
            lambda: mq.settle([handle], "nack", delay=wrong),
        ]
        for call in calls:
            with pytest.raises(Rejected) as caught:
                await call()
            assert caught.value.reason is Reason.BAD_ARGUMENT
        await message.ack()


@pytest.mark.parametrize("offset", [1 << 63, 1 << 64, 1 << 70])
async def test_numbers_beyond_64_bits_are_refused(cluster: FakeCluster, offset: int) -> None:
    fill(cluster, queues=1, messages=1)
    async with connect(URL, world=cluster) as mq, mq.consumer("orders", group="g") as c:
        with pytest.raises(Rejected, match="is no 'earliest'") as caught:
            await c.seek(queue=0, offset=offset)
        assert caught.value.reason is Reason.BAD_ARGUMENT
        with pytest.raises(Rejected):
            await c.commit({0: offset})
        with pytest.raises(Rejected):
            await mq.admin.create_consumer_group("z", attempts_max=offset)
        assert (await c.fetch(1, wait=5.0)).bodies == [b"0:0"]
        await c.commit()


async def test_call_without_any_time_sends_nothing_and_says_so(cluster: FakeCluster) -> None:
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(Unavailable, match="timeout=0; nothing was sent"):
            await mq.admin.create_topic("orders", timeout=0)
        assert not any(FrameKind.ADMIN in node.requests for node in cluster.nodes.values())
