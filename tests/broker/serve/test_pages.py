"""Long answers: whatever a cluster holds and a client asks, no answer outgrows a frame."""

from typing import Any

import msgspec
import pytest

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.broker.access.requests import quotas_page, rules_page, users_page
from raftmq.broker.serve.pages import PAGE_BYTES, committed_page, topics_page
from raftmq.machine.catalog.access import PutRule, PutUser
from raftmq.machine.catalog.catalog import Catalog, Topic
from raftmq.machine.catalog.quotas import PutQuota, Quota, Subject, SubjectKind
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Changed
from raftmq.wire.access import FindQuotas, FindRules, FindUsers
from raftmq.wire.assignment import Committed, CommittedOffset, CommittedOffsets
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import HEADER_BYTES_MAX
from raftmq.wire.messages import (
    MESSAGE_CHARACTERS_MAX,
    ClusterView,
    ErrorReply,
    FindOffset,
    FindOffsets,
    FoundOffsets,
    FrameKind,
    GroupView,
    Metadata,
    NodeStatus,
    NodeView,
    Status,
)
from raftmq.wire.numbers import LIST_MAX
from tests.broker.harness import Cluster, Refused
from tests.broker.scenario import QUEUE, in_cluster

LONG = "n" * 120


def catalog_of(topics: int, queues: int) -> Catalog:
    """A catalog whose topics have long names."""
    catalog = Catalog()
    for number in range(1, topics + 1):
        name = f"{LONG}-{number}"
        catalog.topics[name] = Topic(name, number, [4096] * queues, 0)
    return catalog


def all_topics(catalog: Catalog, names: list[str] | None) -> tuple[list[str], int]:
    """The names on all pages, and how many pages that took; each page fits into a header."""
    found: list[str] = []
    pages, after = 0, 0
    while True:
        page, after = topics_page(catalog, names, after)
        pages += 1
        header = pack(ClusterView("c", 1, [], [], page, after))
        assert len(header) < PAGE_BYTES + 400_000
        found += [topic.name for topic in page]
        if not after:
            return found, pages


@pytest.mark.parametrize(("topics", "queues"), [(100_000, 1), (40, 65_536), (1, 65_536)])
def test_pages_of_topics_hold_each_topic_once(topics: int, queues: int) -> None:
    catalog = catalog_of(topics, queues)
    found, pages = all_topics(catalog, None)
    assert found == list(catalog.topics)
    assert pages > 1 or topics == 1


def test_pages_of_named_topics_leave_unknown_ones_out() -> None:
    catalog = catalog_of(30, 65_536)
    names = [f"{LONG}-{number}" for number in (30, 7, 99, 7, 1)]
    found, _ = all_topics(catalog, names)
    assert found == [f"{LONG}-{number}" for number in (1, 7, 30)]


def test_pages_of_committed_offsets_hold_each_once() -> None:
    machine = PartitionMachine()
    names = [f"{'ю' * 100}-{number}" for number in range(5_000)]
    machine.offsets.committed = {name: {7: (1, 2), 3: (4, 5), 9: (2**63, 2**62)} for name in names}
    found: list[CommittedOffset] = []
    request, pages = Committed(1, None), 0
    while True:
        page = committed_page(machine, request)
        assert isinstance(page, CommittedOffsets)
        pages += 1
        assert len(pack(page)) < PAGE_BYTES + 1000
        found += page.offsets
        if not page.is_cut:
            break
        last = page.offsets[-1]
        request = Committed(1, None, last.consumer_group, last.queue)
    assert pages > 2
    assert [(o.consumer_group, o.queue) for o in found] == [
        (name, queue) for name in sorted(names) for queue in (3, 7, 9)
    ]
    only = committed_page(machine, Committed(1, names[17]))
    assert isinstance(only, CommittedOffsets)
    assert [o.queue for o in only.offsets] == [3, 7, 9]
    assert committed_page(machine, Committed(1, "unknown")) == CommittedOffsets([])


def test_error_never_quotes_more_than_its_limit() -> None:
    reply = ErrorReply("bad_name", "\x01" * 5_000_000)
    assert len(reply.message) == MESSAGE_CHARACTERS_MAX
    assert reply.message.endswith("...")
    assert unpack(ErrorReply, pack(reply)) == reply


def test_routing_table_of_the_largest_cluster_fits_into_a_page() -> None:
    groups = [GroupView(n, 9, 2**40, list(range(1, 10)), [10]) for n in range(4097)]
    nodes = [NodeView(n, "h" * 253, 65_535) for n in range(1000)]
    topics, _ = topics_page(catalog_of(100_000, 1), None, 0)
    assert len(pack(ClusterView("c" * 64, 2**60, nodes, groups, topics, 1))) < HEADER_BYTES_MAX / 2


async def scenario_of_many_groups(cluster: Cluster) -> None:
    await cluster.found("t", 1)
    leader = cluster.leader_of(QUEUE)
    group = cluster.nodes[leader].groups[1]
    assert isinstance(group.machine, PartitionMachine)
    many = {f"group-{number:05d}-{LONG}": {QUEUE: (0, 1)} for number in range(40_000)}
    group.machine.committed.update(many)
    found: list[CommittedOffset] = []
    async with cluster.client(leader) as client:
        request = Committed(1, None)
        while True:
            page = await client.ask(FrameKind.COMMITTED, request, CommittedOffsets)
            found += page.offsets
            if not page.is_cut:
                break
            last = page.offsets[-1]
            request = Committed(1, None, last.consumer_group, last.queue)
        assert [offset.consumer_group for offset in found] == sorted(many)
        await client.produce(QUEUE, [b"still served"], 0)


def test_forty_thousand_consumer_groups_are_told_in_pages() -> None:
    in_cluster(scenario_of_many_groups)


def test_fetch_of_very_many_queues_is_answered_in_parts() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", LIST_MAX)
        queues = [FetchFrom(QUEUE + n, 5) for n in range(LIST_MAX)]
        async with cluster.client(1) as client:
            # Every queue has an error: the offset is past its end, or the queue is led elsewhere.
            answer = await client.ask(FrameKind.FETCH, Fetch(queues, 0, 1 << 20), Fetched)
            again = await client.ask(FrameKind.FETCH, Fetch(queues, 0, 1 << 20), Fetched)
        assert len(answer.queues) == 4096
        assert answer.queues[0].queue != again.queues[0].queue

    in_cluster(scenario)


def test_fetch_of_very_many_tiny_batches_is_answered_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftmq.broker.serve.fetches.BATCHES_MAX", 24)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 90)
        queues = [QUEUE + n for n in range(90) if cluster.leader_of(QUEUE + n) == 1]
        async with cluster.client(1) as client:
            for queue in queues:
                await client.produce(queue, [b""], 0, producer=queue)
            wanted = [FetchFrom(queue, 0) for queue in queues]
            answer = await client.ask(FrameKind.FETCH, Fetch(wanted, 0, 1 << 20), Fetched)
        assert len(answer.queues) == 8

    in_cluster(scenario)


def test_too_many_questions_for_offsets_are_refused() -> None:
    async def scenario(cluster: Cluster) -> str:
        await cluster.found("t", 1)
        questions = [FindOffset(QUEUE, -1)] * (LIST_MAX + 1)
        async with cluster.client(cluster.leader_of(QUEUE)) as client:
            most = FindOffsets(questions[1:])
            found = await client.ask(FrameKind.OFFSETS, most, FoundOffsets)
            assert len(found.queues) == LIST_MAX
            with pytest.raises(Refused) as refused:
                await client.ask(FrameKind.OFFSETS, FindOffsets(questions), FoundOffsets)
        return refused.value.reply.code

    assert in_cluster(scenario) == "bad_argument"


def test_status_of_many_partition_groups_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.broker.status.STATUS_GROUPS", 3)

    async def scenario(cluster: Cluster) -> list[dict[str, Any]]:
        await cluster.found()
        pages = []
        async with cluster.client(1) as client:
            question = Status()
            while True:
                page = (await client.ask(FrameKind.STATUS, question, NodeStatus)).status
                pages.append(page)
                if "next" not in page:
                    return pages
                question = Status(page["next"])

    pages = in_cluster(scenario)
    assert [[group["group"] for group in page["groups"]] for page in pages] == [[0, 1, 2], [3]]


def test_metadata_of_a_cluster_with_many_topics_comes_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftmq.broker.serve.pages.PAGE_BYTES", 100)

    async def scenario(cluster: Cluster) -> list[ClusterView]:
        await cluster.found("t1", 2)
        async with cluster.client(cluster.leader(0)) as client:
            for number in range(2, 12):
                await client.admin("create_topic", f"t{number}", 2)
            views = [await client.ask(FrameKind.METADATA, Metadata(None, True), ClusterView)]
            while views[-1].next:
                question = Metadata(None, True, views[-1].next)
                views.append(await client.ask(FrameKind.METADATA, question, ClusterView))
        return views

    views = in_cluster(scenario)
    assert len(views) > 2
    assert [t.name for view in views for t in view.topics] == [f"t{n}" for n in range(1, 12)]
    assert [bool(view.nodes and view.groups) for view in views] == [True] + [False] * (
        len(views) - 1
    )


@pytest.mark.parametrize("page_bytes", [1, 250, PAGE_BYTES])
def test_users_rules_and_quotas_come_in_pages_and_each_once(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr("raftmq.broker.serve.pages.PAGE_BYTES", page_bytes)
    catalog, names = Catalog(), [f"u{number}" for number in range(9)]
    rules = [
        Rule(name, True, Operation.READ, Resource.TOPIC, topic) for name in names for topic in "ab"
    ]
    puts: list[PutUser | PutRule] = [*map(PutUser, names), *map(PutRule, rules)]
    for command in puts:
        assert catalog.access.apply(command, index=1, now=0) == Changed(True)
    quotas = [(kind, name) for kind in sorted(SubjectKind) for name in names]
    for kind, name in quotas:
        put = PutQuota(Subject(kind, name), Quota(write_bytes=1))
        assert catalog.quotas.apply(put, index=1) == Changed(True)

    found_users, after = list[str](), ""
    while (of_users := users_page(catalog.access, FindUsers(None, after), 0)).is_cut:
        found_users += [user.name for user in of_users.users]
        after = found_users[-1]
    assert found_users + [user.name for user in of_users.users] == names

    found_rules, last = list[str](), ("", "")
    while (of_rules := rules_page(catalog.access, FindRules(None, *last))).is_cut:
        found_rules += [rule.text for rule in of_rules.rules]
        last = (of_rules.rules[-1].user, found_rules[-1])
    assert found_rules + [rule.text for rule in of_rules.rules] == list(map(str, rules))

    found_quotas, of_last = list[tuple[str, str]](), ("", "")
    while (of_quotas := quotas_page(catalog.quotas, FindQuotas(None, None, *of_last))).is_cut:
        found_quotas += [(quota.kind, quota.name) for quota in of_quotas.quotas]
        of_last = found_quotas[-1]
    assert found_quotas + [(quota.kind, quota.name) for quota in of_quotas.quotas] == quotas

    assert {bool(found_users), bool(found_rules), bool(found_quotas)} == {page_bytes < PAGE_BYTES}


def test_every_list_in_an_answer_is_bounded_by_a_page_or_a_limit() -> None:
    """A new message with a list must be thought about: add it here with its bound."""
    bounded = {
        "Fetched.queues": "QUEUES_MAX and BATCHES_MAX in raftmq.broker.serve.fetches",
        "ClusterView.nodes": "the nodes of one cluster",
        "ClusterView.groups": "4,096 groups, settings.NodeSettings.groups",
        "ClusterView.topics": "topics_page",
        "ClusterView.denied": "the request's own names",
        "CommittedOffsets.offsets": "committed_page",
        "FoundOffsets.queues": "the request's own queues",
        "FoundKey.batches": "KEY_BATCHES_MAX",
        "NodeStatus.status": "STATUS_GROUPS",
        "FoundSubscriptions.subscriptions": "subscriptions_page",
        "FoundConsumerGroups.groups": "consumer_groups_page",
        "OffsetsCommitted.fenced": "the request's own queues",
        "Assigned.queues": "QUEUES_MAX in raftmq.machine.catalog.catalog",
        "Assigned.epochs": "the same",
        "Assigned.giving_up": "the same",
        "FoundMembers.members": "members_page",
        "ProbeReply.founders": "the founders of one cluster",
        "ProbeReply.lost_logs": "4,096 groups, settings.NodeSettings.groups",
        "FoundUsers.users": "users_page",
        "UserView.tokens": "USER_TOKENS_MAX in raftmq.machine.catalog.access",
        "FoundRules.rules": "rules_page",
        "FoundQuotas.quotas": "quotas_page",
        "FoundAudit.entries": "audit_page",
    }
    from raftmq.wire import access, assignment, consumer_groups, fetches, messages

    answers: list[type[msgspec.Struct]] = [
        messages.Welcome, messages.Produced, fetches.Fetched, messages.ClusterView,
        assignment.OffsetsCommitted, assignment.CommittedOffsets, messages.FoundOffsets,
        messages.FoundKey, messages.AdminDone, messages.NodeStatus, messages.Done,
        messages.SnapshotProgress, messages.ProbeReply, messages.ErrorReply,
        messages.FoundSubscriptions, consumer_groups.FoundConsumerGroups,
        assignment.Assigned, assignment.FoundMembers, access.FoundUsers, access.UserView,
        access.FoundRules, access.FoundQuotas, access.FoundAudit, access.LoggedIn, access.Judged,
    ]  # fmt: skip
    lists = {
        f"{answer.__name__}.{field.name}"
        for answer in answers
        for field in msgspec.structs.fields(answer)
        if "list" in str(field.type) or "dict" in str(field.type)
    }
    assert lists == set(bounded)
