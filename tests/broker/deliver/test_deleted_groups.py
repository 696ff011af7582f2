"""Deleted consumer groups in whole simulated clusters: nothing of them is left or returns."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio

from raftmq.broker import leader_tasks
from raftmq.broker.deliver import group_deletion
from raftmq.client import Client
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.catalog.consumer_groups import DeleteConsumerGroup
from raftmq.machine.catalog.deletions import Deletion
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.offsets import CommitOffsets, ForgetOffsets, Offsets
from raftmq.results import Changed
from raftmq.wire.messages import Admin, FrameKind
from tests.broker.harness import Cluster
from tests.broker.serve.test_assignment import QUEUES, opened, read_on, send, settled, with_clients

from .test_broadcast import opened as opened_instance
from .test_broadcast import take


def machines(cluster: Cluster) -> Iterator[PartitionMachine]:
    for node in cluster.nodes.values():
        for group in node.groups.values():
            if isinstance(group.machine, PartitionMachine):
                yield group.machine


def kept(cluster: Cluster) -> set[str]:
    """Names under which any replica of a data group keeps anything."""
    found: set[str] = set()
    for machine in machines(cluster):
        offsets = machine.offsets
        found |= offsets.committed.keys() | offsets.epochs.keys() | offsets.leases.keys()
        found |= {each.name for each in machine.pop_groups.attached.values()}
    return found


def waiting(cluster: Cluster) -> int:
    catalog = cluster.nodes[1].groups[SYSTEM_GROUP].machine
    assert isinstance(catalog, Catalog)
    return len(catalog.deletions)


async def read_all(mq: Client, group: str, count: int) -> None:
    async with mq.consumer("orders", group=group) as c:
        got = 0
        while got < count:
            got += len(await c.fetch(count, wait=1))
        await c.commit()


async def delete_in_catalog(mq: Client, name: str) -> None:
    """Delete as a client that ends before it has told the data groups."""
    command = DeleteConsumerGroup(name, is_whole=True, has_offsets=True)
    message = Admin.of(command)
    await mq._router.call_leader(SYSTEM_GROUP, FrameKind.ADMIN, message)


def test_instance_that_comes_between_two_parts_of_a_deletion_is_spared() -> None:
    offsets, catalog = Offsets(10**6), Catalog()
    ends = {1: 100}
    for n in range(1500):
        offsets.commit(CommitOffsets(f"b@{n}", [1], [9], epochs=[9]), ends, 1)
    catalog.deletions.add(Deletion("b", 40, has_instances=True))
    parts = []
    while part := group_deletion.next_part(catalog, offsets):
        parts.append(part)
        offsets.forget(part, 2)
        # As many again of a later group of this name: they do not keep the deletion from its end.
        for n in range(1500 if len(parts) == 1 else 0):
            offsets.commit(CommitOffsets(f"b@new{n}", [1], [77], epochs=[60]), ends, 3)
        # Another leader proposed the same part.
        offsets.forget(part, 4)
    assert [len(part.names) for part in parts] == [1000, 502]
    assert set(offsets.committed) == {f"b@new{n}" for n in range(1500)}
    assert (offsets.forgotten, offsets.parts) == (40, 0)


def play_late_deletions(seed: int) -> str:
    """A broadcast group is deleted and made again, while leaders carry out its deletions late, in
    parts, in any order and twice; returns the error in the end, or empty."""
    random, offsets, catalog = Random(seed), Offsets(10**6), Catalog()
    ends = {1: 10**6, 2: 10**6}
    expected: dict[tuple[str, int], int] = {}
    proposed: list[ForgetOffsets] = []
    for now in range(1, random.randint(20, 120)):
        # The number is the catalog's index as well: of deletions, and of owners' grants.
        match random.choice(["commit"] * 4 + ["propose", "apply", "apply", "delete"]):
            case "commit":
                name, queue = f"b@{random.randrange(8)}", random.choice([1, 2])
                command = CommitOffsets(name, [queue], [now], epochs=[now], sequence=1)
                assert offsets.commit(command, ends, now) == Changed([])
                expected[name, queue] = now
            case "delete":
                catalog.deletions.add(Deletion("b", now, has_instances=True))
                expected.clear()
            case "propose":
                part = group_deletion.next_part(catalog, offsets)
                proposed += [part] * random.randint(1, 2) if part is not None else []
            case "apply" if proposed:
                offsets.forget(proposed.pop(random.randrange(len(proposed))), now)
    for _ in range(20):
        part = group_deletion.next_part(catalog, offsets)
        if part is None:
            break
        offsets.forget(part, 1000)
    else:
        return "the deletions never end"
    found = {
        (name, queue): offset
        for name, of_group in offsets.committed.items()
        for queue, (offset, _) in of_group.items()
    }
    return "" if found == expected else f"{found} is committed, not {expected}"


def test_random_deletions_that_come_late_take_the_old_group_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_deletion, "NAMES_MAX", 4)
    for seed in range(200):
        assert play_late_deletions(seed) == "", seed


@pytest.mark.parametrize(
    ("name", "planted"),
    [("_newer", lambda *_: set()), ("has_older", lambda *_: True)],
)
def test_planted_bug_of_late_deletions_is_found(
    name: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_deletion, "NAMES_MAX", 4)
    monkeypatch.setattr(Offsets, name, planted)
    assert any(play_late_deletions(seed) for seed in range(200))


def test_group_that_read_by_offset_leaves_nothing_and_begins_anew() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[0], 60)
        await read_all(mqs[0], "g", 60)
        await read_all(mqs[0], "other", 60)
        await mqs[1].admin.delete_consumer_group("g")
        assert [each.name for each in await mqs[1].admin.list_groups()] == ["other"]
        with pytest.raises(Rejected) as unknown:
            await mqs[1].admin.delete_consumer_group("g")
        assert unknown.value.reason is Reason.UNKNOWN_GROUP
        await cluster.wait_until(lambda: waiting(cluster) == 0)
        await read_all(mqs[2], "g", 60)
        await cluster.wait_until(lambda: kept(cluster) == {"g", "other"})

    with_clients(job)


def test_name_of_a_group_that_shared_out_queues_is_free_for_plain_commits() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 60)
        async with opened(mqs[0]) as a, opened(mqs[1]) as b:
            await settled(a, b)
            assert sorted(await take(a) + await take(b)) == list(range(60))
            await a.commit()
            await b.commit()
            with pytest.raises(Rejected, match="2 members") as refused:
                await mqs[2].admin.delete_consumer_group("g")
            assert refused.value.reason is Reason.BAD_ARGUMENT
        await mqs[2].admin.delete_consumer_group("g")
        await cluster.wait_until(lambda: "g" not in kept(cluster))
        await read_all(mqs[2], "g", 60)

    with_clients(job)


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_group_of_a_deleted_name_begins_anew_though_the_deletion_is_not_carried_out(
    *, is_broadcast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No leader carries the deletion out by itself, as one that is slow to hear of it.
    monkeypatch.setattr(leader_tasks, "next_part", lambda *_: None)

    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 60)

        async def read() -> list[int]:
            opening = opened_instance(mqs[0], "a", start="earliest") if is_broadcast else None
            async with opening or opened(mqs[0]) as each:
                found = sorted(await take(each))
                await each.commit()
                return found

        assert await read() == list(range(60))
        await delete_in_catalog(mqs[2], "g")
        assert await read() == list(range(60))

    with_clients(job)


def test_forced_deletion_ends_members_with_an_error_and_they_do_not_return() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[3], 60)
        async with opened(mqs[0], group="h") as a, opened_instance(mqs[1], "home") as b:
            await take(a)
            for name, each in (("h", a), ("g", b)):
                await mqs[2].admin.delete_consumer_group(name, force=True)
                with pytest.raises(Rejected, match="was deleted") as refused:
                    await read_on(each)
                assert refused.value.reason is Reason.UNKNOWN_GROUP
        await cluster.wait_until(lambda: kept(cluster) == set())
        assert await mqs[2].admin.members() == []
        assert await mqs[2].admin.consumer_groups() == []

    with_clients(job)


def test_broadcast_group_takes_its_instances_along_or_loses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_deletion, "NAMES_MAX", 2)

    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        for name in ("a", "b", "c", "d"):
            async with opened_instance(mqs[0], name, start="earliest") as each:
                await send(mqs[3], QUEUES)
                await take(each)
        await mqs[1].admin.delete_consumer_group("g@a")
        assert "g@b" in kept(cluster)
        await cluster.wait_until(lambda: "g@a" not in kept(cluster))
        await mqs[1].admin.delete_consumer_group("g")
        await cluster.wait_until(lambda: kept(cluster) == set())
        assert await mqs[1].admin.list_groups() == []

    with_clients(job)


def test_deletion_whose_client_is_gone_is_carried_out_by_the_brokers() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[0], 60)
        await read_all(mqs[0], "g", 60)
        cluster.kill(3)
        await delete_in_catalog(mqs[1], "g")
        with trio.fail_after(60):
            await cluster.wait_until(lambda: "g" not in kept(cluster))
        await cluster.start(3)
        with trio.fail_after(60):
            await cluster.wait_until(lambda: "g" not in kept(cluster) and waiting(cluster) == 0)

    with_clients(job)


def test_group_that_pops_leaves_no_lease_no_letter_and_begins_with_the_first_message() -> None:
    async def job(cluster: Cluster, mqs: list[Client]) -> None:
        await send(mqs[0], 24)

        async def popped(count: int) -> list[Any]:
            bodies: list[Any] = []
            async with mqs[0].consumer("orders", group="g", mode="pop") as c:
                # A pop returns what the first leaders that answer have.
                while len(bodies) < count:
                    bodies += [m.body for m in await c.pop(count, wait=5)]
            return sorted(bodies)

        first = await popped(24)
        await mqs[1].admin.delete_consumer_group("g")
        await cluster.wait_until(lambda: kept(cluster) == set())
        assert await popped(24) == first

    with_clients(job)
