"""Commands that take long to apply, by the hundred: the leader begins a few at a time."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from raftmq.broker.host import Host
from raftmq.broker.quotas import pace, wide_changes
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.group_coordinator import GroupCoordinator
from raftmq.broker.tickets import Callback, Ticket
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.membership import RenewMembers
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FramePart, encode_frame
from raftmq.wire.messages import REPLY, Admin, ErrorReply, FrameKind
from raftmq.wire.popping import ResetGroup
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE, in_cluster

QUEUES = 1000

Request = tuple[int, bytes, tuple[()]]


def join(topic: str, member: int, session_ms: int = 3_600_000) -> Request:
    """A member of a broadcast group, which is dealt all queues of the topic."""
    command = ["join", topic, "g", member, session_ms, f"i{member}", False, "", "broadcast"]
    return FrameKind.ADMIN, pack(Admin(command)), ()


def leave(member: int) -> Request:
    return FrameKind.ADMIN, pack(Admin(["leave", member])), ()


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands of the catalog each step of its leader has applied."""
    counts: list[int] = []
    apply = Group._apply

    def counted(group: Group, message: Any) -> Any:
        if group.number == SYSTEM_GROUP and group.is_leader:
            counts.append(sum(each.kind == Kind.COMMANDS for each in message.entries))
        yield from apply(group, message)

    monkeypatch.setattr(Group, "_apply", counted)
    return counts


@pytest.mark.parametrize("size", [1, 3])
def test_changes_of_members_that_come_at_once_are_applied_in_parts(
    size: int, monkeypatch: pytest.MonkeyPatch, applied: list[int]
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 5 * QUEUES + 100)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        async with cluster.client(cluster.leader(0)) as client:
            for requests in ([join("wide", n) for n in range(1, 31)], [*map(leave, range(1, 31))]):
                applied.clear()
                frames = await client.request_all(*requests)
                for frame in frames:
                    assert frame.kind != FrameKind.ERROR, unpack(ErrorReply, frame.header)
                assert sum(applied) >= 30
                assert max(applied) == 5

    in_cluster(scenario, size=size)


def test_members_that_lapse_at_one_moment_lapse_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 2 * QUEUES)
    lapses: list[int] = []
    renewal = GroupCoordinator._renewal

    def noted(self: GroupCoordinator, now: int) -> RenewMembers:
        command = renewal(self, now)
        lapses.append(len(command.lapsed))
        return command

    monkeypatch.setattr(GroupCoordinator, "_renewal", noted)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        node = cluster.nodes[cluster.leader(0)]
        async with cluster.client(node.id) as client:
            await client.request_all(*[join("wide", n, 4000) for n in range(1, 8)])
            await cluster.wait_until(lambda: not node.catalog.memberships.of_member)
        assert [count for count in lapses if count] == [2, 2, 2, 1]

    in_cluster(scenario)


def test_wide_topics_that_are_created_at_once_are_created_in_parts(
    monkeypatch: pytest.MonkeyPatch, applied: list[int]
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 5 * QUEUES // wide_changes.CREATED_QUEUES)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("first", 1)
        async with cluster.client(cluster.leader(0)) as client:
            applied.clear()
            creations = [pack(Admin(["create_topic", f"t{n}", QUEUES])) for n in range(30)]
            frames = await client.request_all(*[(FrameKind.ADMIN, each, ()) for each in creations])
            assert {frame.kind for frame in frames} == {FrameKind.ADMIN | REPLY}
            assert sum(applied) >= 30
            assert max(applied) == 5

    in_cluster(scenario)


def test_long_filters_that_come_at_once_are_parsed_in_parts(
    monkeypatch: pytest.MonkeyPatch, applied: list[int]
) -> None:
    text = "price > 1 AND " * 50 + "price < 9"
    monkeypatch.setattr(pace, "WORK_MAX", 5 * wide_changes.CHARACTER_WORK * len(text))

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader(0)) as client:
            applied.clear()
            filters = [pack(Admin(["subscribe", "t", f"g{n}", text])) for n in range(30)]
            frames = await client.request_all(*[(FrameKind.ADMIN, each, ()) for each in filters])
            assert {frame.kind for frame in frames} == {FrameKind.ADMIN | REPLY}
            assert max(applied) == 5

    in_cluster(scenario)


def test_many_changes_of_narrow_topics_are_one_step(applied: list[int]) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("narrow", 4)
        async with cluster.client(cluster.leader(0)) as client:
            applied.clear()
            await client.request_all(*[join("narrow", n) for n in range(1, 101)])
        assert max(applied) == 100

    in_cluster(scenario, size=1)


def test_change_whose_connection_ends_before_its_turn_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 1)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        node = cluster.nodes[cluster.leader(0)]
        async with cluster.client(node.id) as other:
            async with cluster.client(node.id) as client:
                await client.request_all(join("wide", 1))
                parts = [
                    part
                    for n in range(2, 101)
                    for part in encode_frame(FrameKind.ADMIN, 1000 + n, join("wide", n)[1])
                ]
                await client._stream.send_all(b"".join(parts))
                await cluster.wait_until(lambda: len(node.catalog.memberships.of_member) > 1)
            # Others have their turn.
            await other.request_all(join("wide", 101))
            assert 101 in node.catalog.memberships.of_member
            assert len(node.catalog.memberships.of_member) < 100

    in_cluster(scenario)


def test_places_of_members_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_changes, "PLACES_MAX", 3 * QUEUES)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        async with cluster.client(cluster.leader(0)) as client:
            frames = await client.request_all(*[join("wide", n) for n in range(1, 6)])
            refused = [frame for frame in frames if frame.kind == FrameKind.ERROR]
            assert [unpack(ErrorReply, each.header).code for each in refused] == [
                Reason.TOO_LARGE.value
            ] * 2
            # An old member hears of its queues. A member that leaves makes room for another.
            for request in (join("wide", 1), leave(2), join("wide", 4)):
                (frame,) = await client.request_all(request)
                assert frame.kind != FrameKind.ERROR, unpack(ErrorReply, frame.header)

    in_cluster(scenario, size=1)


def test_resets_that_come_at_once_are_applied_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 1)

    async def job(cluster: Cluster, client: RawClient, consumer: Consumer) -> None:
        await client.produce(QUEUE, [b"x", b"y"], 0)
        await consumer.pop(0)
        monkeypatch.setattr(Group, "propose", counted)
        resets = [ResetGroup(1, consumer.number, [QUEUE], [n % 2], n) for n in range(1, 21)]
        frames = await client.request_all(*[(FrameKind.RESET, pack(each), ()) for each in resets])
        assert {frame.kind for frame in frames} == {FrameKind.RESET | REPLY}
        assert most == 1

    propose, under_way, most = Group.propose, 0, 0

    def counted(group: Group, kind: int, payload: bytes, ticket: Ticket, **more: bool) -> None:
        def end(call: Callable[[Any], None], outcome: Any) -> None:
            nonlocal under_way
            under_way -= 1
            call(outcome)

        nonlocal under_way, most
        if group.number != 1:
            propose(group, kind, payload, ticket, **more)
            return
        under_way += 1
        most = max(most, under_way)
        each = Callback(partial(end, ticket.done), partial(end, ticket.failed))
        propose(group, kind, payload, each, **more)

    with_group(job)


def test_reset_whose_attachment_goes_while_it_waits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 1)

    async def job(cluster: Cluster, client: RawClient, consumer: Consumer) -> None:
        await client.produce(QUEUE, [b"x", b"y"], 0)
        await consumer.pop(0)
        parts: list[FramePart] = []
        for n in range(1, 151):
            reset = ResetGroup(1, consumer.number, [QUEUE], [n % 2], n)
            parts += encode_frame(FrameKind.RESET, 1000 + n, pack(reset))
        await client._stream.send_all(b"".join(parts))
        await trio.sleep(0.05)
        async with cluster.client(cluster.leader(0)) as admin:
            await admin.admin("detach", "orders", "billing", consumer.number)
        await trio.sleep(3)
        frames = [client._answers.pop(1000 + n) for n in range(1, 151)]
        kinds = [frame.kind for frame in frames]
        done = kinds.count(FrameKind.RESET | REPLY)
        assert 0 < done < 150
        refused = frames[-1]
        assert refused.kind == FrameKind.ERROR
        assert unpack(ErrorReply, refused.header).code == Reason.UNKNOWN_GROUP.value

    with_group(job)


def test_wide_change_has_its_turn_among_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 500)

    async def stream(client: RawClient, member: int, chance: Random) -> None:
        while True:
            await client.request_all(join("narrow", member))
            await trio.sleep(chance.uniform(0, 0.01))

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        node = cluster.leader(0)
        async with (
            cluster.client(node) as one,
            cluster.client(node) as two,
            cluster.client(node) as big,
            trio.open_nursery() as nursery,
        ):
            await one.admin("create_topic", "narrow", 1)
            await one.request_all(join("wide", 7))
            for member in range(1001, 1061):
                other = one if member % 2 else two
                nursery.start_soon(stream, other, member, Random(member))
            await trio.sleep(0.2)
            with trio.fail_after(1):
                await big.request_all(join("wide", 8))
            nursery.cancel_scope.cancel()

    in_cluster(scenario)


def test_topic_that_grows_keeps_the_bound_on_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_changes, "PLACES_MAX", 3 * QUEUES)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader(0)) as client:
            await client.request_all(*[join("t", n) for n in range(1, 51)])
            alters = [
                (FrameKind.ADMIN, pack(Admin(["alter_topic", "t", queues])), ())
                for queues in (QUEUES, 40, 61)
            ]
            frames = await client.request_all(*alters)
            # The second takes 2,000 of the places; the third would take more than are left.
            assert [frame.kind == FrameKind.ERROR for frame in frames] == [True, False, True]
            assert unpack(ErrorReply, frames[0].header).code == Reason.TOO_LARGE.value

    in_cluster(scenario, size=1)


@pytest.mark.parametrize("before", [[], [["delete_topic", "t"]]])
def test_joins_behind_a_change_of_their_topic_are_counted_and_paced(
    before: list[list[Any]], monkeypatch: pytest.MonkeyPatch, applied: list[int]
) -> None:
    """At the moment in which they come the topic is unknown, or has one queue."""
    monkeypatch.setattr(wide_changes, "PLACES_MAX", 12 * QUEUES)
    monkeypatch.setattr(pace, "WORK_MAX", 5 * QUEUES + 100)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("other", 1)
        async with cluster.client(cluster.leader(0)) as client:
            if before:
                await client.admin("create_topic", "t", 1)
            commands = [*before, ["create_topic", "t", QUEUES]]
            changes: list[Request] = [(FrameKind.ADMIN, pack(Admin(each)), ()) for each in commands]
            applied.clear()
            frames = await client.request_all(*changes, *[join("t", n) for n in range(1, 31)])
            joined = [frame.kind != FrameKind.ERROR for frame in frames[len(changes) :]]
            assert joined == [True] * 12 + [False] * 18
            assert max(applied) <= 5

    in_cluster(scenario)


def test_joins_behind_more_queues_for_their_topic_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_changes, "PLACES_MAX", 12 * QUEUES)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        async with cluster.client(cluster.leader(0)) as client:
            alter = (FrameKind.ADMIN, pack(Admin(["alter_topic", "t", QUEUES])), ())
            frames = await client.request_all(alter, *[join("t", n) for n in range(1, 31)])
            joined = [frame.kind != FrameKind.ERROR for frame in frames]
            assert joined == [True] * 13 + [False] * 18

    in_cluster(scenario)


def test_commands_of_connections_that_are_gone_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "WORK_MAX", 1)
    paces: list[pace.Pace] = []
    init = pace.Pace.__init__

    def noted(self: pace.Pace, node: Host) -> None:
        init(self, node)
        paces.append(self)

    monkeypatch.setattr(pace.Pace, "__init__", noted)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("wide", QUEUES)
        for machine in cluster.machines.values():
            machine.slowness = 20
        async with cluster.client(cluster.leader(0)) as live:
            parts = [
                part
                for n in range(1, 300)
                for part in encode_frame(FrameKind.ADMIN, 5000 + n, join("wide", n)[1])
            ]
            await live._stream.send_all(b"".join(parts))
            async with cluster.client(cluster.leader(0)) as client:
                await client._stream.send_all(b"".join(parts))
                await trio.sleep(0.03)
                assert sum(map(len, waiting(paces))) > 300
            await trio.sleep(0.005)
            assert len(waiting(paces)) == 1

    in_cluster(scenario)


def waiting(paces: list[pace.Pace]) -> list[Any]:
    """The commands of each connection that wait."""
    return [commands for each in paces for commands in each._waiting.values()]
