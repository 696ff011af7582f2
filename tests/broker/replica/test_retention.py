"""Retention and dead letters: their messages stay for a while longer, within bounds."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from raftmq.broker import leader_tasks, loop_budget
from raftmq.broker.replica.after_apply import AfterApply
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.retention import Retention, Survey, dead_start, retention_start
from raftmq.broker.settings import Log
from raftmq.client import Client
from raftmq.errors import Rejected
from raftmq.log.store import SegmentSize
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import Attached, PopGroups
from raftmq.pop.calls import Lose
from raftmq.pop.dead_letters import DeadLetter
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Policy
from raftmq.pop.spans import Span, run
from raftmq.results import Result
from tests.broker.harness import Cluster
from tests.broker.scenario import QUEUE, with_client

LOG = Log(segment_bytes=256 * 1024, retention_ms=5_000, dead_ms=120_000)


class NoTimes:
    """No topic has a time of its own."""

    def times(self) -> Mapping[int, int]:
        return {}

    def is_fresh(self) -> bool:
        return True


def kept_ms(settings: Log) -> Callable[[SegmentSize], int]:
    """The node's own time, for each segment."""
    return lambda _: settings.retention_ms


SEGMENTS = [SegmentSize(100 * n + 1, 100 * n + 100, 10, 1000 * n) for n in range(6)]


async def bury(mq: Client, count: int = 3) -> list[str]:
    """Reject the first messages of a group, ack the others: the ids of the dead."""
    async with mq.producer("orders") as p:
        await p.send_many([b"%d" % n for n in range(10)])
    async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
        for message in await consumer.pop(10, wait=5.0):
            if int(message.body) < count:
                await message.reject("never")
            else:
                await message.ack()
    return [i for letter in await mq.admin.dead_letters("orders", "g") for i in letter.ids]


async def go_on(mq: Client, count: int = 150) -> None:
    """Store many more messages, and let time pass."""
    async with mq.producer("orders") as p:
        for _ in range(count):
            await p.send(b"x" * 20_000)
            await trio.sleep(0.1)
    await trio.sleep(8)


def of_leader(cluster: Cluster) -> dict[str, Any]:
    """Status of the queue's group, as its leader reports it."""
    node = cluster.nodes[cluster.leader_of(QUEUE)]
    number = node.catalog.group_of(QUEUE)
    found: list[dict[str, Any]] = node.status()["groups"]
    (status,) = [each for each in found if each["group"] == number]
    return status


def led(cluster: Cluster) -> tuple[int, dict[str, Any] | None]:
    """The first index of the queue's log, and the bytes that its leader keeps for dead letters."""
    status = of_leader(cluster)
    return status["first_index"], status["kept_for_dead"]


def test_messages_of_dead_letters_outlive_retention_until_they_are_redriven() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        dead = await bury(mq)
        begun = led(cluster)
        await go_on(mq)
        first, kept = led(cluster)
        assert (first, None) == begun
        assert of_leader(cluster)["dead_gone"] == 0
        assert kept is not None
        assert kept["bytes"] > 2_000_000
        cluster.kill(cluster.leader_of(QUEUE), power=True)
        await trio.sleep(8)
        assert led(cluster)[0] == first
        assert sorted([(await mq.get(each)).body for each in dead]) == [b"0", b"1", b"2"]
        letters = await mq.admin.dead_letters("orders", "g")
        assert await mq.admin.redrive(letters) == 3
        async with mq.consumer("orders", group="g", mode="pop", prefetch=0) as consumer:
            found = await consumer.pop(3, wait=5.0)
            assert sorted(message.body for message in found) == [b"0", b"1", b"2"]
            await consumer.ack(found)
        await trio.sleep(12)
        first, kept = led(cluster)
        assert first > 100
        assert kept is None

    with_client(job, log=LOG)


def test_dead_letters_keep_no_more_than_the_settings_say() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        (dead,) = await bury(mq, 1)
        assert of_leader(cluster)["dead_gone"] == 0
        await go_on(mq)
        first, kept = led(cluster)
        assert first > 100
        assert kept is None
        letters = await mq.admin.dead_letters("orders", "g")
        assert [letter.ids for letter in letters] == [(dead,)]
        with pytest.raises(Rejected):
            await mq.get(dead)
        # Each leader reports the loss until an operator attends to the letter.
        assert of_leader(cluster)["dead_gone"] == 1
        cluster.kill(cluster.leader_of(QUEUE))
        await trio.sleep(8)
        assert of_leader(cluster)["dead_gone"] == 1
        assert await mq.admin.redrive(letters) == 0
        (backlog,) = await mq.admin.backlogs(group="g")
        assert (backlog.dead, backlog.lost >= 1) == (0, True)
        await trio.sleep(12)
        assert of_leader(cluster)["dead_gone"] == 0

    with_client(job, log=Log(segment_bytes=256 * 1024, retention_ms=5_000, dead_bytes=512 * 1024))


@pytest.mark.parametrize("has_group", [True, False])
@pytest.mark.parametrize("told_at_once", [leader_tasks.LOST_MAX, 1])
def test_consumer_groups_are_told_of_what_retention_takes_before_a_replica_drops_it(
    told_at_once: int, has_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims, dropped = AfterApply._trim, list[tuple[int, int]]()

    def trim(self: AfterApply, group: Group) -> None:
        machine = group.machine
        if isinstance(machine, PartitionMachine) and machine.log_start > group.trimmed:
            # A group that is opened before the drop, on a queue without one, goes by it as well.
            for queue in machine.ends:
                first = group.index.earliest(queue, since=machine.log_start)
                if first is not None:
                    dropped.append((machine.pop_groups.earliest.get(queue, 0), first))
        trims(self, group)

    monkeypatch.setattr(AfterApply, "_trim", trim)
    monkeypatch.setattr(leader_tasks, "LOST_MAX", told_at_once)

    async def job(_: Cluster, mq: Client) -> None:
        if has_group:
            await bury(mq, 0)
        await go_on(mq)

    # Three queues in each data group.
    with_client(job, queues=9, log=LOG)
    assert len(dropped) >= 9
    # Replicas have segments of their own: of some, more than that is left.
    assert all(told >= first for told, first in dropped), dropped
    assert any(told == first > 0 for told, first in dropped)


@pytest.mark.campaign
def test_retention_goes_on_where_segments_are_closed_faster_than_groups_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_tasks, "LOST_MAX", 1)
    stop = 2.0

    async def flood(mq: Client, queue: int) -> None:
        async with mq.producer("orders") as p:
            while trio.current_time() < stop:
                await p.send(b"x" * 60_000, queue=queue)
                await trio.sleep(0.005)

    async def job(cluster: Cluster, mq: Client) -> int:
        nonlocal stop
        await bury(mq, 0)
        stop += trio.current_time()
        async with trio.open_nursery() as nursery:
            for queue in range(24):
                nursery.start_soon(flood, mq, queue)
        return led(cluster)[0]

    log = Log(segment_bytes=64 * 1024, retention_bytes=1_000_000)
    assert with_client(job, queues=24, log=log) > 100


def test_record_that_tells_of_retention_counts_each_consumer_group_of_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_tasks, "LOST_MAX", 4)
    lose, told = PopGroups._lose, list[tuple[int, int]]()

    def noted(self: PopGroups, call: Lose, ends: Mapping[int, int]) -> Result:
        told.append((len(call.queues), len(self.attached)))
        return lose(self, call, ends)

    monkeypatch.setattr(PopGroups, "_lose", noted)

    async def job(cluster: Cluster, mq: Client) -> None:
        for group in ("g", "h"):
            async with mq.consumer("orders", group=group, mode="pop", prefetch=0) as consumer:
                await consumer.pop(1, wait=0.1)
        async with mq.producer("orders") as p:
            for at in range(300):
                await p.send(b"x" * 20_000, queue=at % 12)
        await trio.sleep(5)
        assert led(cluster)[0] > 50

    log = Log(segment_bytes=256 * 1024, retention_bytes=256 * 1024)
    with_client(job, queues=12, log=log)
    assert told
    assert max(queues * groups for queues, groups in told) == 4


def test_leader_looks_for_what_its_log_lacks_once_an_office_and_when_retention_moves() -> None:
    """A look at 20,000 queues holds the loop for tens of milliseconds."""
    looks, node, unused = list[int](), SimpleNamespace(settings=None), cast("Any", None)
    group: Any = replica(letters=0)
    group.raft = SimpleNamespace(term=1)
    group.machine.ends[7] = 100
    group.index.earliest = lambda queue, *, since: looks.append(queue)
    # No message of the queue is kept; the log has its end.
    group.machine.pop_groups.earliest[7] = 100
    own = leader_tasks.LeaderTasks(
        cast("Any", node),
        keep_up=unused,
        retention=unused,
        trimmable=unused,
        is_behind_filters=unused,
    )

    def count() -> int:
        for _ in range(2):
            own._lose(group)
        return len(looks)

    assert count() == 1
    group.machine.pop_groups.attached[2] = group.machine.pop_groups.attached[1]
    assert count() == 1, "a consumer group that is opened begins by what was told"
    group.index.drops += 1
    assert count() == 2
    # A snapshot may have come in place of the log while another node led.
    group.raft.term = 3
    assert count() == 3


def test_without_dead_letters_nothing_is_kept_longer() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await bury(mq, 0)
        await go_on(mq)
        assert led(cluster)[0] > 100
        assert led(cluster)[1] is None

    with_client(job, log=LOG)


def test_dead_letters_may_keep_segments_up_to_an_age_and_a_size() -> None:
    now = 6000
    # Of the segments 2000 and 3000 ms is the newest record's time: both are too old by 1000 ms.
    settings = Log(retention_ms=2000, dead_ms=2000, dead_bytes=1000)
    wanted = retention_start(SEGMENTS, settings, kept_ms(settings), now=now)
    assert wanted == 401
    assert dead_start(SEGMENTS, settings, kept_ms(settings), wanted=wanted, now=now) == 201
    small = Log(retention_ms=2000, dead_ms=2000, dead_bytes=19)
    assert dead_start(SEGMENTS, small, kept_ms(small), wanted=wanted, now=now) == 301
    none = Log(retention_ms=2000, dead_ms=2000, dead_bytes=0)
    assert dead_start(SEGMENTS, none, kept_ms(none), wanted=wanted, now=now) == wanted


class Index:
    """An index of a log of which the queues 7 and 8 are kept from an offset on."""

    def earliest(self, queue: int) -> int | None:
        return {7: 12, 8: 5}.get(queue)

    def lookup(self, queue: int, offset: int, _: int) -> list[Any]:
        return [SimpleNamespace(index=100 * queue + offset)]


def needs_of(*dead: tuple[int, Span]) -> tuple[int | None, int]:
    index: Any = Index()
    survey = Survey(index)
    survey.add(DeadLetter(queue, which, "failed", 0) for queue, which in dead)
    return survey.needs()


def test_what_dead_letters_need_and_what_they_lost_is_counted_by_message() -> None:
    assert needs_of() == (None, 0)
    # Of 10, 11 and 13 the last one is kept.
    assert needs_of((7, Span(10, 0b1011))) == (712, 2)
    assert needs_of((7, run(20, 3)), (8, run(6, 1))) == (720, 0)
    # All before, and a queue of which nothing is left.
    assert needs_of((7, run(2, 10)), (9, run(50, 3))) == (None, 13)


def replica(letters: int, groups: int = 1) -> Any:
    """A replica of which retention wants to drop 400 records, with dead letters in each of its
    consumer groups; its batches have one message each and begin with record 200."""
    machine = PartitionMachine()
    for number in range(1, groups + 1):
        group = PopGroup(Policy())
        group.dead = {n: DeadLetter(7, run(500 + n, 1), "", 0) for n in range(1, letters + 1)}
        group.buried = letters
        machine.pop_groups.attached[number] = Attached(1, f"g{number}", 1, group)
    store = SimpleNamespace(segments=lambda: SEGMENTS)
    index = SimpleNamespace(
        drops=0,
        earliest=lambda queue: 0,
        lookup=lambda queue, offset, limit: [SimpleNamespace(index=200 + offset)],
    )
    return SimpleNamespace(number=1, machine=machine, index=index, store=store, full=False)


def test_dead_letters_of_many_groups_are_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_budget, "TURN_SECONDS", 0)
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        retaining = Retention(lambda: Log(retention_ms=2000), NoTimes())
        group = replica(5000, groups=4)
        assert retaining.keep_from(group, now=6000) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await retaining.look(group, now=6000)
            nursery.cancel_scope.cancel()
        # Twenty turns, of which the first or the last may go before the others' first.
        assert passes >= 15

    trio.run(main)


def test_letter_that_is_buried_while_others_are_looked_at_is_kept_too() -> None:
    async def main() -> None:
        retaining = Retention(lambda: Log(retention_ms=2000, dead_ms=10**6), NoTimes())
        group = replica(0)
        await retaining.look(group, now=6000)
        assert retaining.keep_from(group, now=6000) == 401
        attached = group.machine.pop_groups.attached[1].group
        attached.buried = 1
        attached.dead[1] = DeadLetter(8, run(50, 1), "", 0)
        assert retaining.keep_from(group, now=6000) == 201
        # A later wish of retention waits until letters were looked for.
        assert retaining.keep_from(replica(0), now=10**9) == 401

    trio.run(main)


def test_bound_of_bytes_alone_has_no_age() -> None:
    settings = Log(retention_ms=0, retention_bytes=20, dead_ms=1, dead_bytes=30)
    wanted = retention_start(SEGMENTS, settings, kept_ms(settings), now=10**9)
    assert wanted == 401
    assert dead_start(SEGMENTS, settings, kept_ms(settings), wanted=wanted, now=10**9) == 101
