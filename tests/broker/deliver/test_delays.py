"""Delayed messages in whole simulated clusters: on time, once, through crashes and retention."""

from datetime import UTC, datetime, timedelta

import pytest
import trio

from raftmq.batch import encode
from raftmq.broker.settings import KIB, MIB, Limits, Log
from raftmq.client import Client, Consumer, Outgoing
from raftmq.errors import Reason, Rejected
from raftmq.machine.delays import RELEASER
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.messages import FrameKind
from tests.broker.cluster.test_reconfiguration import DATA_GROUPS
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, bodies, in_cluster, with_client


async def take(c: Consumer, count: int) -> list[tuple[bytes, int]]:
    """Body and time of the next `count` messages."""
    got: list[tuple[bytes, int]] = []
    while len(got) < count:
        batch = await c.fetch(count - len(got), wait=600)
        assert batch, got
        got += [(m.body, m.timestamp) for m in batch]
    return got


def waiting(cluster: Cluster, queue: int = QUEUE) -> int:
    """Delayed messages of the queue's group, as its leader has them."""
    node = cluster.nodes[cluster.leader_of(queue)]
    number = node.catalog.group_of(queue)
    assert number is not None
    machine = node.groups[number].machine
    assert isinstance(machine, PartitionMachine)
    return machine.delays.count


def test_delayed_message_comes_when_it_is_due_and_not_before() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p, mq.consumer("orders") as c:
            late = await p.send(b"late", key="k", tag="t", props={"n": 1}, delay=30)
            assert (late.offset, late.queue) == (None, 0)
            await p.send(b"soon", delay=timedelta(seconds=10))
            await p.send(b"now", delay=datetime(1970, 1, 1, tzinfo=UTC))
            now = datetime.fromtimestamp(late.timestamp / 1000, UTC)
            await p.send(b"at", delay=now + timedelta(seconds=20))
            got = await take(c, 4)
            assert [body for body, _ in got] == [b"now", b"soon", b"at", b"late"]
            # The simulated clock is the same for all of them.
            behind = [time - late.timestamp for _, time in got[1:]]
            for milliseconds, due in zip(behind, (10_000, 20_000, 30_000), strict=True):
                assert due - 50 <= milliseconds <= due + 200
            assert got[3][1] >= late.deliver_at_ms
            (found,) = await mq.find("orders", key="k")
            assert (found.body, found.tag, found.props) == (b"late", "t", {"n": 1})

    with_client(job)


def test_many_messages_with_many_delays_come_in_the_order_of_their_times() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p, mq.consumer("orders") as c:
            numbers = list(range(500))
            delays = [5 + (7 * n % 500) / 100 for n in numbers]
            messages = [Outgoing(b"%d" % n, f"k{n}") for n in numbers]
            sent = await p.send_many(messages, delay=[*delays[:-1], None])
            receipts = sent.receipts()
            assert {r.offset for r in receipts} == {None}
            assert len({r.id for r in receipts}) == 500
            assert receipts[499].deliver_at_ms == 0
            await p.send_many([b"x"] * 3, delay=20)
            got = await take(c, 503)
            wanted = sorted(numbers[:-1], key=lambda n: delays[n])
            assert [body for body, _ in got[:500]] == [b"499", *(b"%d" % n for n in wanted)]
            assert waiting(cluster) == 0

    with_client(job)


@pytest.mark.parametrize("power", [False, True])
def test_delayed_messages_survive_the_death_of_their_leader_each_once(power: bool) -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            for n in range(100):
                await p.send(b"%d" % n, delay=10 + n / 20)
            await trio.sleep(11.5)
            for _ in range(4):
                # While some are being released.
                leader = cluster.leader_of(QUEUE)
                cluster.kill(leader, power=power)
                await trio.sleep(0.7)
                await cluster.start(leader)
                await cluster.wait_led(1)
            await trio.sleep(10)
        assert await bodies(cluster, QUEUE) == [b"%d" % n for n in range(100)]
        assert waiting(cluster) == 0

    with_client(job)


def test_cancelled_message_never_comes_and_one_that_came_cannot_be_cancelled() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            keep = await p.send(b"keep", delay=10)
            gone = await p.send(b"gone", delay=10)
            many = await p.send_many([b"a", b"b", b"c"], delay=20)
            assert gone.id is not None
            assert keep.id is not None
            assert await mq.cancel(gone.id) is True
            assert await p.cancel(gone.id) is False
            second = many.receipts()[1].id
            assert second is not None
            assert await mq.cancel(second)
            assert waiting(cluster) == 3
            await trio.sleep(11)
            with pytest.raises(Rejected) as refused:
                await mq.cancel(keep.id)
            assert refused.value.reason is Reason.FELL_DUE
            assert await bodies(cluster, QUEUE) == [b"keep"]
            await trio.sleep(11)
            assert await bodies(cluster, QUEUE) == [b"keep", b"a", b"c"]

    with_client(job)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10000-2a", Reason.BAD_ARGUMENT),
        ("hello", Reason.BAD_ARGUMENT),
        ("90000-ffffffffffff-10000", Reason.UNKNOWN_TOPIC),
        ("10009-ffffffffffff-10000", Reason.BAD_ARGUMENT),
    ],
)
def test_cancelling_what_is_no_message_is_refused(text: str, reason: Reason) -> None:
    async def job(_: Cluster, mq: Client) -> None:
        with pytest.raises(Rejected) as refused:
            await mq.cancel(text)
        assert refused.value.reason is reason
        assert await mq.cancel("10000-ffffffffffff-ffff10000") is False

    with_client(job)


def test_delays_that_make_no_sense_are_refused_before_anything_is_sent() -> None:
    async def job(_: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            for wrong in (
                11 * 366 * 86_400,
                float("nan"),
                float("inf"),
                True,
                "1s",
                datetime(2030, 1, 1),  # noqa: DTZ001  # what users write
            ):
                with pytest.raises(Rejected) as refused:
                    await p.send(b"x", delay=wrong)  # type: ignore[arg-type]
                assert refused.value.reason is Reason.BAD_ARGUMENT
            with pytest.raises(Rejected):
                await p.send_many([b"x", b"y"], delay=[1.0])
            assert p.statistics().buffer_messages == 0

    with_client(job)


def test_delayed_messages_outlive_retention() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            far = await p.send_many([b"far %d" % n for n in range(50)], delay=60)
            single = await p.send(b"single", delay=55)
            dropped = far.receipts()[7].id
            for _ in range(250):
                await p.send(b"x" * 20_000)
                await trio.sleep(0.1)
            await trio.sleep(5)
            node = cluster.nodes[cluster.leader_of(QUEUE)]
            group = node.groups[1]
            # The first copies are gone long since.
            assert group.machine.log_start > single.number >> 16
            assert group.store.first_index > single.number >> 16
            assert waiting(cluster) == 51
            assert dropped is not None
            assert await mq.cancel(dropped)
            cluster.kill(cluster.leader_of(QUEUE), power=True)
            await trio.sleep(5)
            await trio.sleep(40)
            found = (await tail(cluster))[-50:]
            assert found == [b"single", *(b"far %d" % n for n in range(50) if n != 7)]

    async def tail(cluster: Cluster) -> list[bytes]:
        group = cluster.nodes[cluster.leader_of(QUEUE)].groups[1]
        first = group.index.earliest(QUEUE)
        assert first is not None
        return await bodies(cluster, QUEUE, first)

    with_client(job, log=Log(segment_bytes=256 * 1024, retention_ms=5_000))


@pytest.mark.parametrize("mode", ["pop", "ordered"])
def test_groups_that_pop_get_what_fell_due_and_what_was_committed(mode: str) -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p, mq.consumer("orders", group="g", mode=mode) as c:  # type: ignore[call-overload]
            await p.send(b"late", key="k", delay=3)
            await p.send(b"now", key="k")
            async with p.transaction(group="shop") as t:
                await t.send(b"all", key="k")
                await t.send(b"or nothing", key="k")
            got: list[bytes] = []
            with trio.fail_after(60):
                while len(got) < 4:
                    for m in await c.pop(10, wait=10.0):
                        got.append(m.body)
                        await m.ack()
            assert got == [b"now", b"all", b"or nothing", b"late"]
            (backlog,) = await mq.admin.backlogs(topic="orders", group="g")
            assert (backlog.acked, backlog.leased) == (4, 0)

    with_client(job)


def test_messages_that_wait_for_a_deleted_topic_are_dropped() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            await p.send(b"x", delay=60)
        await mq.admin.delete_topic("orders")
        leader = max(
            (node for node in cluster.nodes.values() if node.groups[1].is_leader),
            key=lambda node: node.groups[1].raft.term,
        )
        machine = leader.groups[1].machine
        assert isinstance(machine, PartitionMachine)
        await cluster.wait_until(lambda: machine.delays.count == 0)
        assert machine.delays.dropped == 1

    with_client(job)


def test_nothing_moves_while_a_message_waits() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        async with mq.producer("orders") as p:
            await p.send(b"x", delay=100)
            await trio.sleep(5)
            machine = cluster.nodes[cluster.leader_of(QUEUE)].groups[1].machine
            before = machine.applied
            await trio.sleep(30)
            assert machine.applied == before

    with_client(job)


def test_producer_of_the_brokers_own_is_refused_from_outside() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            batch = encode([b"x"]).to_bytes(queue=QUEUE, producer=RELEASER)
            with pytest.raises(Refused) as refused:
                await client.request(FrameKind.PRODUCE, b"", [batch])
            assert refused.value.reply.code == Reason.BAD_ARGUMENT.value

    in_cluster(scenario)


async def lead(cluster: Cluster, group: int, node: int) -> None:
    """Have a node lead a group, and wait until it has committed something."""
    while cluster.leader(group) != node or not cluster.nodes[node].groups[group].is_current:
        leader = cluster.nodes.get(cluster.leader(group))
        if leader is not None:
            leader.groups[group].transfer(cluster.nodes[node].groups[group].raft.id)
        await trio.sleep(0.1)


def test_replica_that_left_and_came_back_releases_what_falls_due() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 3)
        due = cluster.nodes[1].now_ms() + 120_000
        batch = encode([b"later"], deliver_at_ms=[due])
        for queue in range(QUEUE, QUEUE + 3):
            async with cluster.client(cluster.leader_of(queue)) as client:
                data = [batch.to_bytes(queue=queue, producer=5)]
                await client.request(FrameKind.PRODUCE, b"", data)
        # Each replica that ever led has looked when the message is due.
        for group in DATA_GROUPS:
            for node in (1, 2, 3):
                await lead(cluster, group, node)
        await cluster.change("add", 4, host="node4", port=7400)
        await cluster.start(4)
        await cluster.wait_until(lambda: cluster.has_joined(4))
        placed = cluster.nodes[1].catalog.groups
        old, group = next(
            (n, g) for g in DATA_GROUPS for n in (1, 2, 3) if n not in placed[g].members
        )
        await cluster.wait_until(lambda: group not in cluster.nodes[old].groups)
        await cluster.change("remove", 4)
        await cluster.wait_until(lambda: old in cluster.members(group))
        await cluster.wait_until(lambda: group in cluster.nodes[old].groups)
        await lead(cluster, group, old)
        cluster.kill(next(node for node in (1, 2) if node != old))
        queue = next(
            q for q in range(QUEUE, QUEUE + 3) if cluster.nodes[old].catalog.group_of(q) == group
        )
        await trio.sleep((due - cluster.nodes[old].now_ms()) / 1000 + 5)
        assert await bodies(cluster, queue) == [b"later"]

    in_cluster(scenario)


def test_releases_of_large_properties_pass_through_frames_of_any_size() -> None:
    """One that no frame between nodes held kept its partition group from all that came after."""

    async def scenario(cluster: Cluster) -> None:
        cluster.log = Log(cache_bytes=32 * MIB, reserve_bytes=0)
        cluster.limits = Limits(batch_bytes_max=256 * KIB, frame_bytes_max=8 * MIB)
        await cluster.found("orders", 1)
        leader = cluster.leader_of(QUEUE)
        due = cluster.nodes[leader].now_ms() + 30_000
        async with cluster.client(leader) as client:
            for n in range(50):
                props = [{"s": bytes([n]) * 200_000}]
                await client.produce(QUEUE, [b"%d" % n], n, props=props, deliver_at_ms=[due])
            await trio.sleep(60)
            with trio.fail_after(30):
                placed = await client.produce(QUEUE, [b"next"], 50)
        assert placed.base_offset == 50
        assert sorted(map(int, (await bodies(cluster, QUEUE))[:50])) == list(range(50))

    in_cluster(scenario)
