"""The audit log of whole clusters: authors, results, and acts of other logs than the catalog's."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from raftmq.broker.access import notes
from raftmq.broker.access.notes import Notes
from raftmq.broker.access.requests import audit_page
from raftmq.broker.replica import group
from raftmq.chaos.sim.clients import APPLICATION, Clients, Session
from raftmq.client import Client
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.audit import (
    BEGUN,
    DONE,
    UNCHANGED,
    AdminAct,
    Audit,
    BeginAct,
    EndAct,
    Entry,
)
from raftmq.machine.catalog.catalog import Authored, Group, PutGroup, Reconfigure
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.access import TOKEN, AuditView, FindAudit, LogIn
from raftmq.wire.assignment import CommitOffsets, OffsetsCommitted, QueueOffset
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import (
    Admin,
    AdminDone,
    ErrorReply,
    FrameKind,
    Transfer,
)
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import QUEUE, in_cluster
from tests.tls.stranger import stranger

from .guarded import ROOT, Guarded, greeted, make_user, refused, say, with_guarded

Job = Callable[[Client], Awaitable[Any]]
RESET = CommitOffsets("readers", [QueueOffset(QUEUE, 0)], is_reset=True)
ALICE = AdminAct("alice", "", "create_topic", "topic", "orders")


async def as_application(cluster: Cluster, job: Job) -> None:
    """Do a job as the user `APPLICATION`, once it may do everything."""
    async with trio.open_nursery() as nursery:
        clients = Clients(cluster, nursery, seed=1)
        await clients.allow()
        ended = trio.Event()
        errors: list[Exception] = []

        async def run(mq: Client, _: Session) -> None:
            try:
                await job(mq)
            except Exception as error:
                errors.append(error)
            ended.set()

        clients.start("application", run)
        with trio.fail_after(300):
            await ended.wait()
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]


def secure(job: Callable[[Cluster, Client], Awaitable[Any]]) -> None:
    """Run a job of `APPLICATION` with a cluster that knows its users."""

    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls = True
        await cluster.found()
        await as_application(cluster, lambda mq: job(cluster, mq))

    in_cluster(scenario)


def kept(cluster: Cluster) -> list[Entry]:
    """The entries by the leader of the system group."""
    return list(cluster.nodes[cluster.leader(0)].catalog.audit.entries.values())


def told(views: list[AuditView]) -> list[tuple[str, ...]]:
    return [(v.user, v.what, v.resource, v.name, v.detail, v.result) for v in views]


# Commands of the catalog


def test_entries_name_user_act_and_result() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await mq.admin.create_topic("orders", 2)
        with pytest.raises(Rejected):
            await mq.admin.create_topic("orders", 3)
        await mq.admin.alter_topic("orders", 4)
        await mq.admin.create_consumer_group("billing", attempts_max=3)
        await mq.admin.attach("orders", "billing")
        await mq.admin.detach("orders", "billing")
        await mq.admin.delete_consumer_group("billing")
        await mq.access.put_user("bob")
        await mq.access.make_token("bob")
        await mq.access.allow("bob", "read", "topic", "orders*")
        await mq.access.put_quota("user", "bob", write_bytes=9)
        await mq.admin.delete_topic("orders")
        found = (await mq.access.audit()).entries
        assert {each.user for each in found[:3]} == {ADMIN}
        token = next(each.name for each in found if each.what == "put_token")
        assert told(found[3:]) == [
            (APPLICATION, *words)
            for words in (
                ("create_topic", "topic", "orders", "2 queues", DONE),
                ("create_topic", "topic", "orders", "3 queues", "topic_exists"),
                ("alter_topic", "topic", "orders", "4 queues", DONE),
                ("put_consumer_group", "group", "billing", "mode pop, 3 attempts", DONE),
                ("detach", "group", "billing", "topic orders", DONE),
                ("delete_consumer_group", "group", "billing", "", DONE),
                ("put_user", "user", "bob", "no password", DONE),
                ("put_token", "token", token, "user bob", DONE),
                ("put_rule", "rule", "bob", "allow bob read topic orders*", DONE),
                ("put_quota", "user", "bob", "write_bytes 9", DONE),
                ("delete_topic", "topic", "orders", "", DONE),
            )
        ]
        assert [each.number for each in found] == list(range(1, len(found) + 1))
        topics = cluster.nodes[cluster.leader(0)].catalog.topics
        assert topics == {}

    secure(job)


def test_what_is_created_by_use_has_an_owner_and_makes_no_entry() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await mq.admin.create_topic("orders", 1)
        before = len(kept(cluster))
        await mq.admin.attach("orders", "billing")
        async with mq.consumer("orders", group="readers", queues="assigned") as consumer:
            await consumer.fetch(1, wait=5)
        await mq.admin.subscribe("orders", "readers", "paid")
        catalog = cluster.nodes[cluster.leader(0)].catalog
        owners = {each.name: each.owner for each in catalog.consumer_groups.groups.values()}
        assert owners == {"billing": APPLICATION, "readers": APPLICATION}
        assert catalog.topics["orders"].owner == APPLICATION
        assert len(kept(cluster)) == before

    secure(job)


def test_clusters_without_users_have_entries_without_a_user() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        (entry,) = kept(cluster)
        assert (entry.act.user, entry.act.what, entry.result) == ("", "create_topic", DONE)

    in_cluster(scenario)


FORGED: list[msgspec.Struct] = [
    Authored(ALICE, CreateTopic("forged", 1)),
    BeginAct(ALICE),
    EndAct(1, "unchanged"),
    Reconfigure([PutGroup(Group(1, [1]))]),
]


@pytest.mark.parametrize("is_secure", [False, True])
def test_client_names_no_author_and_writes_no_entry(is_secure: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.network.is_under_tls = is_secure
        await cluster.found()
        if is_secure:
            await as_application(cluster, lambda mq: forge(cluster))
        else:
            await forge(cluster)

    async def forge(cluster: Cluster) -> None:
        before = kept(cluster)
        async with cluster.client(cluster.leader(0)) as client:
            for command in FORGED:
                with pytest.raises(Refused) as caught:
                    await client.ask(FrameKind.ADMIN, Admin.of(command, 9), AdminDone)
                assert caught.value.reply.code in ("bad_argument", "unauthenticated", "denied")
        assert kept(cluster) == before
        assert "forged" not in cluster.nodes[cluster.leader(0)].catalog.topics

    in_cluster(scenario)


def test_user_with_all_rights_forges_no_author_either(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "eve", "any cluster", "any topic *")
            token = await root.access.make_token("eve")
            before = (await root.access.audit()).entries
        async with stranger(node.port, node.context) as eve:
            await greeted(eve)
            await say(eve, LogIn(TOKEN, token))
            for command in FORGED:
                frame = await eve.ask(FrameKind.ADMIN, Admin.of(command, 9))
                assert unpack(ErrorReply, frame.header).code == "denied"
        async with node.by_certificate(ROOT) as root:
            assert (await root.access.audit()).entries == before

    with_guarded(scenario, tmp_path)


def test_denied_requests_are_counted_and_make_no_entry(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "eve")
            before = (await root.access.audit()).entries
            async with node.as_user("eve") as eve:
                for call in (eve.admin.create_topic("mine"), eve.access.audit()):
                    async with refused(Reason.DENIED):
                        await call
            status = await root.admin.status(1)
            assert status["requests_denied"] == 2
            assert node.node.gate.last_denied == "audit of 'eve' from this machine"
            assert (await root.access.audit()).entries == before

    with_guarded(scenario, tmp_path)


def test_change_of_nodes_is_one_record_and_one_entry_also_if_the_catalog_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await mq.admin.create_topic("orders", 1)
        leaving = next(number for number in cluster.nodes if number != cluster.leader(0))
        at = cluster.nodes[cluster.leader(0)].catalog.nodes[leaving]
        await mq.admin.remove_node(leaving)
        with monkeypatch.context() as patch:
            # While other changes are under way, a client has to ask again.
            settled = iter([False, False])
            patch.setattr(group.Group, "is_settled", property(lambda _: next(settled, True)))
            await mq.admin.add_node(leaving, at.host, at.port)
            assert list(settled) == []
        await mq.admin.add_node(leaving, at.host, at.port)
        with pytest.raises(Rejected):
            await mq.admin.add_node(leaving, "elsewhere", at.port)
        found = [entry for entry in kept(cluster) if entry.act.resource == "node"]
        number, address = str(leaving), f"{at.host}:{at.port}"
        assert [(entry.act.what, entry.act.detail, entry.result) for entry in found] == [
            ("remove_node", "", DONE),
            ("add_node", address, DONE),
            ("add_node", address, UNCHANGED),
        ]
        assert {(entry.act.user, entry.act.name) for entry in found} == {(APPLICATION, number)}

    secure(job)


# Acts of other logs


def test_acts_of_other_logs_have_begun_before_they_are_done() -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        await mq.admin.create_topic("orders", 1)
        async with mq.producer("orders") as producer:
            await producer.send(b"a")
        await mq.admin.create_consumer_group("billing", attempts_max=1)
        async with mq.consumer("orders", group="billing", mode="pop") as consumer:
            (message,) = await consumer.pop(1, wait=10)
            await message.reject("no")
        letters = await mq.admin.dead_letters("orders", "billing")
        await mq.admin.redrive(letters)
        await mq.admin.reset_group("billing", "orders", to="earliest")
        await mq.admin.reset_group("readers", "orders", to="earliest")
        leader = cluster.leader(1)
        await mq.admin.transfer(1, to=leader % 3 + 1)
        await mq.admin.remove_node(3)
        acts = {"redrive_dead", "reset_offsets", "transfer_leader", "remove_node"}

        def is_over() -> bool:
            return all(entry.result == DONE for entry in kept(cluster))

        await cluster.wait_until(is_over)
        found = [entry.act for entry in kept(cluster) if entry.act.what in acts]
        assert {act.user for act in found} == {APPLICATION}
        assert [(act.what, act.resource, act.name, act.detail) for act in found] == [
            ("redrive_dead", "group", "billing", "topic orders, 1 dead letter"),
            ("reset_offsets", "group", "billing", "1 queue of topic orders"),
            ("reset_offsets", "group", "readers", "1 queue of topic orders"),
            ("transfer_leader", "partition_group", "1", f"to node {leader % 3 + 1}"),
            ("remove_node", "node", "3", ""),
        ]

    secure(job)


def test_entries_name_what_the_act_is_done_to_whatever_else_its_request_names() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with cluster.client(cluster.leader(0)) as client:
            await client.admin("create_topic", "later", 1, "orders")
            await cluster.wait_known("later")
            catalog = cluster.nodes[cluster.leader(0)].catalog
            queues = [catalog.topics[name].queues[0] for name in ("later", "orders")]
            number, _ = await client.admin("attach", "orders", "billing", "pop", False)
            # The number is that of another topic's attachment.
            await client.admin("detach", "later", "billing", number)
        reset = CommitOffsets("readers", [QueueOffset(queue, 0) for queue in queues], is_reset=True)
        async with cluster.client(cluster.leader_of(queues[0])) as client:
            await client.ask(FrameKind.COMMIT, reset, OffsetsCommitted)
        assert [entry.act.detail for entry in kept(cluster)][-2:] == [
            "topic orders",
            "2 queues of topics later, orders",
        ]

    in_cluster(scenario)


def with_reset(
    scenario: Callable[[Cluster, RawClient, int], Awaitable[Any]], *, is_remote: bool = True
) -> None:
    """Run a scenario with a client of the leader of a queue, which does not lead the catalog."""

    async def main(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        leader = cluster.leader_of(QUEUE)
        heir = leader % 3 + 1 if is_remote else leader
        if cluster.leader(0) != heir:
            system = cluster.nodes[cluster.leader(0)].groups[0]
            system.transfer(system.voter_of(heir))
            await cluster.wait_until(lambda: cluster.nodes[heir].groups[0].is_current)
        async with cluster.client(leader) as client:
            await scenario(cluster, client, leader)

    in_cluster(main)


def committed(cluster: Cluster, leader: int) -> dict[int, Any]:
    machine: Any = cluster.nodes[leader].groups[1].machine
    found: dict[int, Any] = machine.committed.get("readers", {})
    return found


@pytest.mark.parametrize("is_remote", [False, True])
def test_act_is_noted_wherever_the_catalog_is_led(is_remote: bool) -> None:
    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        await client.ask(FrameKind.COMMIT, RESET, OffsetsCommitted)
        assert QUEUE in committed(cluster, leader)
        await cluster.wait_until(lambda: kept(cluster)[-1].result == DONE)
        assert kept(cluster)[-1].act.what == "reset_offsets"
        # A consumer's commit is no act of administration.
        number = len(kept(cluster))
        plain = msgspec.structs.replace(RESET, is_reset=False)
        await client.ask(FrameKind.COMMIT, plain, OffsetsCommitted)
        assert len(kept(cluster)) == number

    with_reset(scenario, is_remote=is_remote)


def test_act_that_can_not_be_noted_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_leader(*_: object) -> ErrorReply:
        return ErrorReply("not_leader", "nobody leads", group=0)

    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(notes, "change_catalog", no_leader)
            with pytest.raises(Refused) as caught:
                await client.ask(FrameKind.COMMIT, RESET, OffsetsCommitted)
        reply = caught.value.reply
        assert (reply.code, reply.group) == ("unavailable", -1)
        assert reply.retry_ms > 0
        assert committed(cluster, leader) == {}
        await client.ask(FrameKind.COMMIT, RESET, OffsetsCommitted)

    with_reset(scenario)


def test_refusal_of_an_act_is_its_result() -> None:
    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        beyond = CommitOffsets("readers", [QueueOffset(QUEUE, 99)], is_reset=True)
        with pytest.raises(Refused):
            await client.ask(FrameKind.COMMIT, beyond, OffsetsCommitted)
        await cluster.wait_until(lambda: kept(cluster)[-1].result == "offset_out_of_range")

    with_reset(scenario)


def test_act_whose_node_ends_before_the_outcome_is_noted_stays_begun() -> None:
    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        kept_by = [node for number, node in cluster.nodes.items() if number != leader]

        def has_begun() -> bool:
            entries = [list(node.catalog.audit.entries.values()) for node in kept_by]
            return any(each and each[-1].result == BEGUN for each in entries)

        async def ask() -> None:
            with pytest.raises((Refused, trio.BrokenResourceError)):
                await client.ask(FrameKind.COMMIT, RESET, OffsetsCommitted)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not has_begun():
                await trio.sleep(0.0001)
            cluster.kill(leader)
            nursery.cancel_scope.cancel()
        await cluster.start(leader)
        await trio.sleep(60)
        last = kept(cluster)[-1]
        assert (last.act.what, last.result) == ("reset_offsets", BEGUN)

    with_reset(scenario)


def test_request_of_a_client_that_has_left_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, left = Notes._change, trio.Event()

    async def held(own: Notes, command: BeginAct | EndAct) -> Any:
        number = await change(own, command)
        await left.wait()
        return number

    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        monkeypatch.setattr(Notes, "_change", held)
        node = cluster.nodes[leader]
        places = node.load.connections

        async with cluster.client(leader) as other, trio.open_nursery() as nursery:
            nursery.start_soon(other.request, FrameKind.COMMIT, pack(RESET))
            await cluster.wait_until(lambda: kept(cluster)[-1].result == BEGUN)
            nursery.cancel_scope.cancel()
        await cluster.wait_until(lambda: node.load.connections == places)
        left.set()
        await cluster.wait_until(lambda: kept(cluster)[-1].result == "unavailable")
        assert committed(cluster, leader) == {}

    with_reset(scenario)


def test_request_for_a_group_that_is_led_elsewhere_is_not_noted() -> None:
    async def scenario(cluster: Cluster, _: RawClient, leader: int) -> None:
        number = len(kept(cluster))
        async with cluster.client(leader % 3 + 1) as client:
            for kind, request in ((FrameKind.COMMIT, RESET), (FrameKind.TRANSFER, Transfer(1, 0))):
                with pytest.raises(Refused) as caught:
                    await client.request(kind, pack(request))
                assert caught.value.reply.code == "not_leader"
        assert len(kept(cluster)) == number

    with_reset(scenario)


def test_notes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 0)

    async def scenario(cluster: Cluster, client: RawClient, leader: int) -> None:
        with pytest.raises(Refused) as caught:
            await client.ask(FrameKind.COMMIT, RESET, OffsetsCommitted)
        assert caught.value.reply.code == "busy"
        assert committed(cluster, leader) == {}

    with_reset(scenario)


# Reading it


def a_log(entries: int) -> Audit:
    made = Audit()
    for number in range(1, entries + 1):
        user = "alice" if number % 2 else "bob"
        made.add(msgspec.structs.replace(ALICE, user=user), 5, DONE)
    return made


def read(audit: Audit, **question: Any) -> tuple[list[int], int]:
    """The numbers of the entries on all pages, and how many are gone."""
    found: list[int] = []
    dropped = 0
    request = FindAudit(**question)
    while True:
        page = audit_page(audit, request)
        found += [each.number for each in page.entries]
        dropped += page.dropped
        if not page.is_cut:
            return found, dropped
        request = msgspec.structs.replace(request, before=page.entries[-1].number)


def numbers(audit: Audit, **question: Any) -> list[int]:
    return read(audit, **question)[0]


def test_pages_go_from_the_newest_entry_to_the_oldest_wanted() -> None:
    made = a_log(9)
    assert numbers(made) == list(range(9, 0, -1))
    assert numbers(made, limit=2) == list(range(9, 0, -1))
    assert numbers(made, after=6) == [9, 8, 7]
    assert numbers(made, after=9) == numbers(made, after=10**18) == []
    assert numbers(made, user="bob") == [8, 6, 4, 2]
    assert numbers(made, user="bob", limit=1, after=3) == [8, 6, 4]
    assert numbers(made, user="nobody") == numbers(Audit()) == []
    for strange in ({"before": -5}, {"after": -(10**18)}, {"before": 10**18}, {"limit": -1}):
        assert set(numbers(made, **strange)) <= set(range(1, 10))


def test_pages_count_the_entries_that_are_gone_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.machine.catalog.audit.ENTRIES_MAX", 6)
    made = a_log(2)
    for _ in range(9):
        made.add(msgspec.structs.replace(ALICE, user="mallory"), 5, DONE)
    left = [11, 10, 9, 8, 2, 1]
    assert read(made) == (left, 5)
    for limit in range(1, 7):
        assert read(made, limit=limit) == (left, 5)
    assert read(made, after=1, limit=3) == (left[:-1], 5)
    assert read(made, after=5) == (left[:4], 2)
    assert read(made, user="bob") == read(made, user="bob", limit=1) == ([2], 5)
    assert read(made, user="mallory", limit=1) == ([11, 10, 9, 8], 5)
    assert read(made, user="nobody", after=3) == ([], 4)
    assert read(made, after=11) == read(made, after=99) == ([], 0)
    assert read(made, before=-5) == read(made, after=5, before=3) == ([], 0)
    assert read(made, after=-(10**18), before=10**18) == (left, 5)


def test_a_user_of_one_topic_pushes_out_no_entry_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("raftmq.machine.catalog.audit.ENTRIES_MAX", 20)

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("mine", 1)
            await make_user(root, "mallory", "admin topic mine")
            before = (await root.access.audit()).entries
            async with node.as_user("mallory") as mallory:
                for _ in range(40):
                    async with refused(Reason.TOPIC_EXISTS):
                        await mallory.admin.create_topic("mine", 2)
            found = await root.access.audit()
            assert found.entries[: len(before)] == before
            assert {each.user for each in found.entries[len(before) :]} == {"mallory"}
            assert len(found.entries) == 20
            assert found.dropped == len(before) + 40 - 20
            exported = await root.access.audit(after=before[-1].number)
            assert exported.dropped == found.dropped

    with_guarded(scenario, tmp_path)


def test_client_reads_the_newest_and_tells_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.machine.catalog.audit.ENTRIES_MAX", 5)

    async def job(_: Cluster, mq: Client) -> None:
        for number in range(9):
            await mq.admin.create_topic(f"t{number}", 1)
        found = await mq.access.audit()
        last = found.entries[-1].number
        assert {each.user for each in found.entries[:2]} == {ADMIN}
        assert [each.name for each in found.entries[2:]] == ["t6", "t7", "t8"]
        assert found.dropped == last - 5
        found = await mq.access.audit(limit=2)
        assert [each.name for each in found.entries] == ["t7", "t8"]
        found = await mq.access.audit(after=last - 1)
        assert ([each.name for each in found.entries], found.dropped) == (["t8"], 0)
        found = await mq.access.audit(after=last - 7, user="nobody")
        assert (found.entries, found.dropped) == ([], 4)
        for call in (mq.access.audit(after=-1), mq.access.audit(limit=0)):
            with pytest.raises(Rejected):
                await call

    secure(job)
