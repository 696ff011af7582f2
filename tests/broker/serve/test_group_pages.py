"""Consumer groups in pages: each group and each of its attachments appears once."""

import pytest

from raftmq.broker.serve import pages
from raftmq.broker.serve.pages import PAGE_BYTES, consumer_groups_page
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node
from raftmq.machine.catalog.consumer_groups import Attach, DeleteConsumerGroup, PutConsumerGroup
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.wire.codec import pack
from raftmq.wire.consumer_groups import (
    AttachmentView,
    ConsumerGroupView,
    FindConsumerGroups,
    FoundConsumerGroups,
)
from raftmq.wire.messages import Admin, AdminDone, FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster
from tests.machine.test_catalog import run


def catalog_of(topics: int) -> Catalog:
    catalog = Catalog()
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=1, replicas=1))
    for number in range(1, topics + 1):
        run(catalog, CreateTopic(f"t{number}", 1))
    return catalog


def page_of(catalog: Catalog, request: FindConsumerGroups) -> FoundConsumerGroups:
    page = consumer_groups_page(catalog, request)
    assert isinstance(page, FoundConsumerGroups), "nothing is hidden"
    return page


def attach(catalog: Catalog, name: str, *topics: int) -> None:
    for topic in topics:
        run(catalog, Attach(f"t{topic}", name, Mode.POP, is_latest=False))


def told(
    catalog: Catalog, name: str | None = None, topic: str | None = None
) -> tuple[dict[str, list[int]], int]:
    """Group → topics of its attachments, over all pages, and how many pages that took."""
    found: dict[str, list[int]] = {}
    request, count = FindConsumerGroups(name, topic), 0
    while True:
        page = page_of(catalog, request)
        assert len(pack(page)) < PAGE_BYTES + 2000
        count += 1
        for view in page.groups:
            assert view.attachments or view.name not in found, "told twice"
            found.setdefault(view.name, []).extend(each.topic_id for each in view.attachments)
        if not page.is_cut:
            return found, count
        last = page.groups[-1]
        after = last.attachments[-1].topic_id if last.attachments else 0
        request = FindConsumerGroups(name, topic, last.name, after)


def test_group_is_told_with_all_that_is_known_of_it() -> None:
    catalog = catalog_of(2)
    policy = Policy((1000, 5000), 3, 7000, Order.QUEUE, is_blocking=True)
    run(catalog, PutConsumerGroup("g", Mode.ORDERED, policy))
    run(catalog, Attach("t2", "g", Mode.ORDERED, is_latest=True))
    assert page_of(catalog, FindConsumerGroups()).groups == [
        ConsumerGroupView(
            "g", "ordered", [1000, 5000], 3, 7000, "queue", True, 4,
            [AttachmentView(1, "t2", 2, True, 1)],
        )
    ]  # fmt: skip


@pytest.mark.parametrize("page_bytes", [1, 100, 300, 10_000])
def test_pages_of_any_length_tell_each_attachment_once(
    page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", page_bytes)
    catalog = catalog_of(9)
    run(catalog, PutConsumerGroup("alone", Mode.POP, Policy()))
    run(catalog, PutConsumerGroup("zero", Mode.POP, Policy()))
    attach(catalog, "many", 9, 3, 1, 2, 8, 5)
    attach(catalog, "one", 4)
    found, count = told(catalog)
    assert found == {"alone": [], "many": [1, 2, 3, 5, 8, 9], "one": [4], "zero": []}
    assert list(found) == sorted(found)
    assert (count > 1) == (page_bytes < 10_000)
    assert told(catalog, name="many")[0] == {"many": [1, 2, 3, 5, 8, 9]}
    assert told(catalog, topic="t4")[0] == {"one": [4]}
    assert told(catalog, name="many", topic="t3")[0] == {"many": [3]}
    assert told(catalog, name="one", topic="t3")[0] == told(catalog, topic="no")[0] == {}
    assert told(catalog, name="nobody")[0] == {}


def test_largest_groups_fit_into_pages() -> None:
    catalog = catalog_of(1)
    schedule = Policy((7 * 24 * 3600 * 1000,) * 64, 1_000_000)
    names = [f"{'ю' * 120}-{number}" for number in range(4_000)]
    for name in names:
        run(catalog, PutConsumerGroup(name, Mode.POP, schedule))
    found, count = told(catalog)
    assert count > 2
    assert list(found) == sorted(names)


def test_group_whose_last_attachment_goes_between_two_pages_is_not_told_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    catalog = catalog_of(3)
    attach(catalog, "a", 1, 2)
    attach(catalog, "b", 3)
    first = page_of(catalog, FindConsumerGroups())
    assert ([view.name for view in first.groups], first.is_cut) == (["a"], True)
    run(catalog, DeleteConsumerGroup("a"))
    second = page_of(catalog, FindConsumerGroups(after_group="a", after_topic=1))
    assert ([view.name for view in second.groups], second.is_cut) == (["b"], False)


def test_leader_of_the_system_group_tells_what_was_just_changed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 2)
        async with cluster.client(cluster.leader(0)) as client:
            command = Admin(["attach", "orders", "billing", "pop", True])
            done = await client.ask(FrameKind.ADMIN, command, AdminDone)
            assert done.result[0] == 1
            question = FindConsumerGroups(topic="orders")
            page = await client.ask(FrameKind.GROUPS, question, FoundConsumerGroups)
        (group,) = page.groups
        assert (group.name, group.mode, group.version) == ("billing", "pop", done.result[1])
        assert group.attachments == [AttachmentView(1, "orders", 1, True, 2)]

    in_cluster(scenario)
