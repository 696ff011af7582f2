"""The producer under faults: order and once-only across retries, and the errors callers get."""

from collections.abc import Callable

import anyio
import pytest
from msgspec.structs import replace

from raftmq.batch import peek
from raftmq.client import Client, PendingSend, SomeUnsent, connect
from raftmq.client.routing import connection as connection_module
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.producers import Producers
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ClusterView, ErrorReply, FrameKind, Metadata

from .fake_cluster import URL, FakeCluster, FakeNode, Fate

pytestmark = pytest.mark.anyio

FateOf = Callable[[FakeNode, Frame], Fate]
QUEUE = 0x10000
RETRIED = [fate for fate in Fate if fate not in {Fate.IGNORED, Fate.APPLIED_AND_IGNORED, Fate.DONE}]


def nth_produce(fates: dict[int, Fate]) -> FateOf:
    """The nth batch that arrives, from 0, meets this fate; all others are done."""
    count = -1

    def fate(_: FakeNode, frame: Frame) -> Fate:
        nonlocal count
        if frame.kind != FrameKind.PRODUCE:
            return Fate.DONE
        count += 1
        return fates.get(count, Fate.DONE)

    return fate


def always(fate: Fate) -> FateOf:
    return lambda _, frame: fate if frame.kind == FrameKind.PRODUCE else Fate.DONE


async def send_ten(mq: Client) -> list[PendingSend]:
    """Ten batches of one message each, all sent before the first answer."""
    async with mq.producer("orders", batch_messages=1) as p:
        pending = [p.send_nowait(b"%d" % n) for n in range(10)]
        await p.flush()
    return pending


TEN = [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("fate", RETRIED, ids=lambda fate: fate.name)
@pytest.mark.parametrize("at", [0, 4, 9])
async def test_any_fault_at_any_batch_keeps_order_and_stores_once(
    cluster: FakeCluster, fate: Fate, at: int
) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({at: fate})
    async with connect(URL, world=cluster) as mq:
        receipts = [await one.wait() for one in await send_ten(mq)]
    assert cluster.stored() == [TEN]
    assert [receipt.offset for receipt in receipts] == list(range(10))


@pytest.mark.parametrize("fate", RETRIED, ids=lambda fate: fate.name)
async def test_faults_in_a_row_keep_order_and_store_once(cluster: FakeCluster, fate: Fate) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({0: fate, 1: fate, 9: fate, 10: fate, 12: fate, 20: fate})
    async with connect(URL, world=cluster) as mq:
        await send_ten(mq)
    assert cluster.stored() == [TEN]


async def test_repeat_is_known_by_its_receipt(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({0: Fate.APPLIED_AND_CUT})
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        receipt = await p.send(b"x")
    assert (receipt.offset, receipt.is_duplicate) == (0, True)


async def test_leader_that_moves_while_batches_are_in_flight(cluster: FakeCluster) -> None:
    cluster.create_topic()
    group = cluster.catalog.group_of(QUEUE)
    assert group is not None
    count = 0

    def fate(_: FakeNode, frame: Frame) -> Fate:
        nonlocal count
        if frame.kind == FrameKind.PRODUCE:
            count += 1
            if count in {3, 17, 30}:
                cluster.move(group, cluster.leaders[group] % 3 + 1)
        return Fate.DONE

    cluster.fate = fate
    async with connect(URL, world=cluster) as mq:
        await send_ten(mq)
    assert cluster.stored() == [TEN]


async def test_messages_without_a_key_go_around_a_queue_without_a_leader(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic(queues=3)
    async with connect(URL, world=cluster, timeout=20.0) as mq, mq.producer("orders") as p:
        for queue in range(3):
            await p.send(b"first", queue=queue)
        group = cluster.catalog.topics["orders"].groups[0]
        leader = cluster.leaders[group]
        cluster.kill(leader)
        await anyio.sleep(0.05)
        stuck = p.send_many_nowait(bodies=[b"stuck"], queue=0)
        await anyio.sleep(0.05)
        with anyio.fail_after(5.0):
            for n in range(6):
                sent = await p.send_many(bodies=[b"%d" % n])
                assert sent.receipts()[0].queue in {1, 2}
        assert not stuck.is_done
        cluster.move(group, leader % 3 + 1)


@pytest.mark.parametrize("hints", [True, False])
async def test_leader_that_dies_is_found_again(cluster: FakeCluster, hints: bool) -> None:
    cluster.create_topic()
    cluster.hints = hints
    group = cluster.catalog.group_of(QUEUE)
    assert group is not None
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"before")
        leader = cluster.leaders[group]
        cluster.kill(leader)

        async def elect() -> None:
            await anyio.sleep(0.2)
            cluster.move(group, leader % 3 + 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(elect)
            await p.send(b"after")
    assert cluster.stored() == [[b"before", b"after"]]


@pytest.mark.parametrize("is_succeeded", [True, False])
async def test_silent_leader_is_left_sooner_if_another_leads(
    cluster: FakeCluster, is_succeeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TICK_SECONDS", 0.2)
    cluster.create_topic()
    group = cluster.catalog.group_of(QUEUE)
    assert group is not None
    stopped = cluster.leaders[group]
    longest = connection_module.SILENT_TICKS_MAX * connection_module.TICK_SECONDS
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"before")
        cluster.fate = lambda node, _: Fate.IGNORED if node.number == stopped else Fate.DONE
        before = anyio.current_time()

        async def elect() -> None:
            await anyio.sleep(0.1 if is_succeeded else longest)
            cluster.move(group, stopped % 3 + 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(elect)
            await p.send(b"after")
        assert (anyio.current_time() - before < longest / 2) == is_succeeded
    assert cluster.stored() == [[b"before", b"after"]]


async def test_batch_that_was_never_written_is_unavailable(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        for node in (1, 2, 3):
            cluster.kill(node)
        await anyio.sleep(0.01)
        with pytest.raises(Unavailable, match="nothing was stored"):
            await p.send(b"x", timeout=0.2)
        pending = p.send_nowait(b"y", timeout=0.2)
        with pytest.raises(Unavailable):
            await pending.wait()
        assert p.statistics().buffer_messages == 0
        cluster.unreachable.clear()
        await p.send(b"z")
    assert cluster.stored() == [[b"z"]]


@pytest.mark.parametrize("fate", [Fate.IGNORED, Fate.APPLIED_AND_IGNORED])
async def test_batch_that_was_written_and_not_answered_is_unknown(
    cluster: FakeCluster, fate: Fate
) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({0: fate})
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(OutcomeUnknown, match="may be stored"):
            await p.send(b"x", timeout=0.1)
        assert (await p.send(b"y")).offset == (0 if fate is Fate.IGNORED else 1)
    assert cluster.stored() == [[b"y"] if fate is Fate.IGNORED else [b"x", b"y"]]


@pytest.mark.parametrize("fate", [Fate.BUSY, Fate.UNAVAILABLE])
async def test_batch_that_was_refused_until_the_end_is_unavailable(
    cluster: FakeCluster, fate: Fate
) -> None:
    cluster.create_topic()
    cluster.fate = always(fate)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await p.send(b"x", timeout=0.1)
        cluster.fate = always(Fate.DONE)
        await p.send(b"y")
    assert cluster.stored() in ([[b"y"]], [[b"x", b"y"]])


async def test_expired_batch_is_settled_before_later_ones_that_count_on_it(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    lost = {0: Fate.UNKNOWN_NOT_APPLIED}
    group = cluster.catalog.group_of(QUEUE)
    assert group is not None
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=1) as p:
        cluster.fate = nth_produce(lost | dict.fromkeys(range(1, 40), Fate.BUSY))
        short = p.send_nowait(b"short", timeout=0.05)
        long = p.send_nowait(b"long", timeout=20.0)
        with pytest.raises(OutcomeUnknown):
            await short.wait()
        cluster.fate = always(Fate.DONE)
        assert (await long.wait()).offset == 1
    assert cluster.stored() == [[b"short", b"long"]]


async def test_what_was_abandoned_is_fenced_off_by_the_next_batch(cluster: FakeCluster) -> None:
    cluster.create_topic()
    held: list[bytes] = []

    def fate(_: FakeNode, frame: Frame) -> Fate:
        if frame.kind == FrameKind.PRODUCE and not held:
            held.append(frame.body)
            return Fate.IGNORED
        return Fate.DONE

    cluster.fate = fate
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(OutcomeUnknown):
            await p.send(b"old", timeout=0.1)
        await p.send(b"new")
    # The old frame arrives after all.
    from raftmq.log.record import Kind
    from raftmq.results import Refused

    result = cluster.log_of(QUEUE).add(Kind.BATCH, held[0], 0)
    assert isinstance(result, Refused)
    assert result.reason is Reason.FENCED
    assert cluster.stored() == [[b"new"]]


async def test_forgotten_session_puts_only_what_is_in_doubt_in_doubt(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    machine = cluster.log_of(QUEUE).machine
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=1) as p:
        await p.send(b"before")
        machine._producers = Producers(10)
        # Written and lost: in doubt. The second never got an answer of its own but a refusal.
        cluster.fate = nth_produce({0: Fate.UNKNOWN_NOT_APPLIED})
        first, second = p.send_nowait(b"first"), p.send_nowait(b"second")
        with pytest.raises(OutcomeUnknown, match="no longer remembers"):
            await first.wait()
        assert (await second.wait()).offset == 1
        await p.send(b"after")
    assert cluster.stored() == [[b"before", b"second", b"after"]]


async def test_forgotten_session_without_doubt_costs_nothing(cluster: FakeCluster) -> None:
    cluster.create_topic()
    machine = cluster.log_of(QUEUE).machine
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=1) as p:
        await p.send(b"before")
        machine._producers = Producers(10)
        pending = [p.send_nowait(b"%d" % n) for n in range(5)]
        assert [(await one.wait()).offset for one in pending] == [1, 2, 3, 4, 5]


async def test_fenced_producer_goes_on_under_a_new_name(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"before")
        sessions = cluster.log_of(QUEUE).machine._producers._sessions
        for session in sessions.values():
            session.epoch += 5
        await p.send(b"after")
    assert cluster.stored() == [[b"before", b"after"]]


async def test_repeat_whose_offset_is_forgotten_is_a_receipt_without_offset(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    machine = cluster.log_of(QUEUE).machine

    def fate(_: FakeNode, frame: Frame) -> Fate:
        if frame.kind != FrameKind.PRODUCE or peek(frame.body).first_sequence != 1:
            return Fate.DONE
        sessions = list(machine._producers._sessions.values())
        if sessions[0].next_sequence == 1:
            return Fate.APPLIED_AND_CUT
        sessions[0].firsts, sessions[0].bases = [2], [2]
        return Fate.DONE

    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"0")
        cluster.fate = fate
        receipt = await p.send(b"1")
        assert (receipt.offset, receipt.id, receipt.is_duplicate) == (None, None, True)
    assert cluster.stored() == [[b"0", b"1"]]


async def test_refused_batch_leaves_no_gap_for_those_after_it(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=1) as p:
        pending = [p.send_nowait(b"%d" % n) for n in range(5)]
        original = FakeNode._produce

        def produce(node: FakeNode, frame: Frame) -> object:
            from raftmq.wire.messages import ErrorReply

            if frame.body.endswith(b"2"):
                return ErrorReply(Reason.TOO_LARGE.value, "no 2, please")
            return original(node, frame)

        for node in cluster.nodes.values():
            node._handlers[FrameKind.PRODUCE] = lambda f, node=node: produce(node, f)  # type: ignore
        with pytest.raises(Rejected, match="no 2, please"):
            await pending[2].wait()
        offsets = [(await one.wait()).offset for n, one in enumerate(pending) if n != 2]
    assert offsets == [0, 1, 2, 3]
    assert cluster.stored() == [[b"0", b"1", b"3", b"4"]]


async def test_topic_that_is_deleted_rejects_what_is_sent(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        await p.send(b"x")
        await mq.admin.delete_topic("orders")
        with pytest.raises(Rejected) as caught:
            await p.send(b"y")
        assert caught.value.reason is Reason.UNKNOWN_TOPIC


async def test_flush_raises_what_nobody_heard_and_only_once(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({0: Fate.IGNORED})
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        p.send_nowait(b"x", timeout=0.1)
        with pytest.raises(OutcomeUnknown):
            await p.flush()
        await p.flush()


async def test_flush_raises_what_a_caller_waited_for_in_vain(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = nth_produce({0: Fate.IGNORED})
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        pending = p.send_nowait(b"x", timeout=0.2)
        with pytest.raises(OutcomeUnknown, match="still under way"):
            await pending.wait(0.01)
        with anyio.move_on_after(0.01):
            await pending.wait()
        with pytest.raises(OutcomeUnknown):
            await p.flush()


async def test_flush_that_runs_out_of_time_leaves_messages_under_way(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = always(Fate.BUSY)
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        pending = p.send_nowait(b"x")
        with pytest.raises(OutcomeUnknown, match=r"^1 message still under way"):
            await p.flush(timeout=0.05)
        cluster.fate = always(Fate.DONE)
        await pending.wait()


async def test_closing_raises_if_something_was_not_stored(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = always(Fate.IGNORED)
    async with connect(URL, world=cluster) as mq:
        with pytest.raises(OutcomeUnknown):
            async with mq.producer("orders") as p:
                p.send_nowait(b"x", timeout=0.1)
        with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012
            async with mq.producer("orders") as p:
                p.send_nowait(b"x", timeout=0.1)
                raise ValueError("mine")
        assert "while the producer was closed" in str(caught.value.__notes__)


async def test_cancelled_send_is_taken_back_if_it_was_not_written(cluster: FakeCluster) -> None:
    cluster.create_topic()
    async with connect(URL, world=cluster) as mq, mq.producer("orders", linger=0.2) as p:
        with anyio.move_on_after(0.05):
            await p.send(b"cancelled")
        kept = p.send_nowait(b"kept")
        assert (await kept.wait()).offset == 0
        assert p.statistics().buffer_messages == 0
    assert cluster.stored() == [[b"kept"]]


async def test_cancelled_send_many_takes_back_what_was_not_written(cluster: FakeCluster) -> None:
    cluster.create_topic()
    cluster.fate = always(Fate.BUSY)
    async with connect(URL, world=cluster) as mq, mq.producer("orders", batch_messages=1) as p:
        with anyio.move_on_after(0.1):
            await p.send_many(bodies=[b"x"] * 200)
        assert p.statistics().buffer_messages <= 64
        cluster.fate = always(Fate.DONE)
        await p.flush()
        assert p.statistics().buffer_messages == 0


async def test_send_many_reports_for_each_message(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=2)
    bad = cluster.leaders[2]
    cluster.fate = lambda node, frame: (
        Fate.IGNORED if node.number == bad and frame.kind == FrameKind.PRODUCE else Fate.DONE
    )
    keys = [f"k{n}" for n in range(20)]
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(SomeUnsent, match="not known to be stored") as caught:
            await p.send_many(bodies=[b"x"] * 20, keys=keys, timeout=0.2)
        sent = caught.value.sent
        assert 0 < len(sent.failed) < 20
        for at, outcome in enumerate(sent):
            is_failed = at in dict(sent.failed)
            assert isinstance(outcome, RaftmqError) == is_failed
        assert isinstance(caught.value.__cause__, OutcomeUnknown)
        lenient = await p.send_many(bodies=[b"x"] * 20, keys=keys, timeout=0.2, check=False)
        assert len(lenient.failed) == len(sent.failed)


async def test_error_of_a_send_says_why_the_leader_refused(cluster: FakeCluster) -> None:
    cluster.create_topic(queues=1)
    cluster.fate = lambda _node, frame: Fate.BUSY if frame.kind == FrameKind.PRODUCE else Fate.DONE
    async with connect(URL, world=cluster) as mq, mq.producer("orders") as p:
        with pytest.raises(Unavailable, match="scripted BUSY"):
            await p.send(b"x", timeout=0.3)


def cut_off(cluster: FakeCluster, node: int, view: ClusterView) -> None:
    """A node that no other one reaches: its table is old, and it leads nothing."""
    isolated = cluster.nodes[node]

    def metadata(frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        if unpack(Metadata, frame.header).is_latest:
            return ErrorReply("not_leader", "cut off", group=0)
        return pack(view), []

    isolated._handlers[FrameKind.METADATA] = metadata
    cluster.fate = lambda at, frame: (
        Fate.NOT_LEADER if at is isolated and frame.kind != FrameKind.METADATA else Fate.DONE
    )


@pytest.mark.parametrize("knows", ["no leader", "itself as the old leader", "nothing"])
async def test_client_of_a_node_that_is_cut_off_asks_the_others(
    cluster: FakeCluster, knows: str
) -> None:
    cluster.create_topic(queues=3)
    view = cluster.view(None)
    if knows == "nothing":
        view = replace(view, nodes=[], groups=[], topics=[])
    else:
        leader = 3 if knows == "itself as the old leader" else 0
        view = replace(view, groups=[replace(g, leader=leader, term=0) for g in view.groups])
    cut_off(cluster, 3, view)
    for group, leader in cluster.leaders.items():
        cluster.leaders[group] = leader if leader != 3 else 2
    # The client knows the node that is cut off first, and stays connected to it.
    url = "raftmq://node3:3,node3:3,node1:1" if knows == "nothing" else "raftmq://node3:3"
    async with connect(url, world=cluster, timeout=5.0) as mq:
        assert list(mq._router.connections) == [3]
        assert [topic.name for topic in await mq.admin.list_topics()] == ["orders"]
        async with mq.producer("orders") as p:
            for queue in range(3):
                await p.send(b"x", queue=queue)
