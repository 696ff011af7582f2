"""Lists of which whoever asks may see little: each turn looks at a bounded number of entries, and
the list has all that may be seen, once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from raftmq.batch import encode
from raftmq.broker.serve import pages, pop_group_requests
from raftmq.broker.serve.group_coordinator import members_page
from raftmq.broker.serve.pages import (
    PAGE_BYTES,
    Sees,
    committed_page,
    consumer_groups_page,
    subscriptions_page,
    topics_page,
)
from raftmq.broker.serve.pop_group_requests import backlogs_page
from raftmq.broker.serve.transactions import transactions_page
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.catalog.consumer_groups import Attach, PutConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.transactions import NOTE_CHARACTERS_MAX, Begin
from raftmq.pop.calls import OpenGroup
from raftmq.pop.policy import Mode, Policy
from raftmq.wire.assignment import Committed, FindMembers
from raftmq.wire.codec import pack
from raftmq.wire.consumer_groups import FindConsumerGroups, FoundConsumerGroups
from raftmq.wire.messages import FindSubscriptions, FrameKind
from raftmq.wire.popping import FindBacklogs
from raftmq.wire.producing import FindTransactions, FoundTransactions
from tests.broker.access.test_simulated import change, log_in, make_alice, with_users
from tests.broker.harness import Cluster
from tests.machine.delay_log import DelayLog
from tests.machine.test_catalog import run

from .test_group_pages import catalog_of

NAMES = [f"g{number:02}" for number in range(40)]
SHOWN = {"g00", "g17", "g18", "g39"}
LOOKS = 5


class Listed(NamedTuple):
    """A list of what groups have, for the test."""

    request: msgspec.Struct
    page: Callable[[Any, Sees], msgspec.Struct]
    names: Callable[[Any], list[str]]
    """The groups on a page, one for each entry."""
    entries: int
    """Entries of a group."""


def committed() -> Listed:
    machine = PartitionMachine()
    machine.offsets.committed = {name: {7: (1, 2), 8: (1, 2)} for name in NAMES}
    return Listed(
        Committed(1, None),
        lambda request, sees: committed_page(machine, request, sees=sees),
        lambda page: [each.consumer_group for each in page.offsets],
        2,
    )


def subscriptions() -> Listed:
    catalog = catalog_of(1)
    for name in NAMES:
        run(catalog, Subscribe("t1", name, "amount > 5"))
    return Listed(
        FindSubscriptions(),
        lambda request, sees: subscriptions_page(catalog, request, sees),
        lambda page: [each.consumer_group for each in page.subscriptions],
        1,
    )


def attached(catalog: Catalog) -> None:
    for name in NAMES:
        for topic in ("t1", "t2"):
            run(catalog, Attach(topic, name, Mode.POP, is_latest=False))


def consumer_groups() -> Listed:
    catalog = catalog_of(2)
    attached(catalog)
    return Listed(
        FindConsumerGroups(),
        lambda request, sees: consumer_groups_page(catalog, request, sees),
        lambda page: [group.name for group in page.groups for _ in group.attachments],
        2,
    )


def members() -> Listed:
    catalog = catalog_of(1)
    for number, name in enumerate(NAMES):
        for place in (1, 2):
            run(catalog, JoinGroup("t1", name, 10 * number + place, 10_000))
    return Listed(
        FindMembers(),
        lambda request, sees: members_page(catalog, request, now=5, sees=sees),
        lambda page: [each.consumer_group for each in page.members],
        2,
    )


def groups_that_pop() -> Listed:
    log = DelayLog()
    opened = [
        OpenGroup(number, 1, name, 1, Mode.POP, Policy(), [], [])
        for number, name in enumerate(NAMES, 1)
    ]
    log.run(*opened)
    for queue in (1 << 16, 1 << 16 | 1):
        log.add(Kind.BATCH, encode([b"%d" % queue]).to_bytes(queue=queue, producer=1, epoch=0))
    return Listed(
        FindBacklogs(1),
        lambda request, sees: backlogs_page(log.machine, request, sees),
        lambda page: [NAMES[each.number - 1] for each in page.backlogs],
        2,
    )


def transactions() -> Listed:
    log = DelayLog()
    log.run(*(Begin(number, name, "") for number, name in enumerate(NAMES, 1)))
    return Listed(
        FindTransactions(1),
        lambda request, sees: transactions_page(log.machine, request, 10**9, sees),
        lambda page: [each.producer_group for each in page.transactions],
        1,
    )


@pytest.mark.parametrize(
    "make", [committed, subscriptions, consumer_groups, members, groups_that_pop, transactions]
)
@pytest.mark.parametrize("shown", [set(), SHOWN, set(NAMES)])
def test_pages_look_at_few_entries_and_leave_out_no_shown_one(
    make: Callable[[], Listed], shown: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LOOKS_MAX", LOOKS)
    monkeypatch.setattr(pop_group_requests, "PAGE_MAX", LOOKS)
    listed = make()
    found: list[str] = []
    request, turns = listed.request, 0
    while True:
        looked: list[str] = []

        def sees(name: str, looked: list[str] = looked) -> bool:
            looked.append(name)
            return name in shown

        page: Any = listed.page(request, sees)
        turns += 1
        # The last group of the page before is looked at again, and the first one of the next.
        assert len(looked) <= LOOKS + 2
        if isinstance(page, type(listed.request)):
            assert page != request, "the next turn would do the same"
            request = page
            continue
        names = listed.names(page)
        found += names
        if not page.is_cut:
            break
        assert names, "a client could not go on"
        request = after(request, page)
    assert found == [name for name in NAMES if name in shown for _ in range(listed.entries)]
    assert turns >= len(NAMES) // (LOOKS + 1)


def after(request: msgspec.Struct, page: Any) -> msgspec.Struct:
    """The request for the next page, as a client makes it."""
    (field,) = [name for name in page.__struct_fields__ if name != "is_cut"]
    last = getattr(page, field)[-1]
    match request:
        case Committed():
            place = {"after_group": last.consumer_group, "after_queue": last.queue}
        case FindSubscriptions():
            place = {"after_topic": last.topic_id, "after_group": last.consumer_group}
        case FindConsumerGroups():
            topic = last.attachments[-1].topic_id
            place = {"after_group": last.name, "after_topic": topic}
        case FindMembers():
            place = {
                "after_group": last.consumer_group,
                "after_topic": last.topic_id,
                "after_member": last.member,
            }
        case FindBacklogs():
            place = {"after_number": last.number, "after_queue": last.queue}
        case _:
            place = {"after": last.transaction}
    return msgspec.structs.replace(request, **place)


def test_pages_of_topics_look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LOOKS_MAX", LOOKS)
    catalog = catalog_of(20)
    page, place = topics_page(catalog, None, 0, lambda _: False)
    assert (page, place) == ([], LOOKS)
    page, place = topics_page(catalog, None, 15, lambda name: name == "t20")
    assert ([each.name for each in page], place) == (["t20"], 0)


def test_longest_notes_of_transactions_fit_into_a_page() -> None:
    log = DelayLog()
    note = "\N{PARTY POPPER}" * NOTE_CHARACTERS_MAX
    log.run(*(Begin(number, "shop", note) for number in range(1, 1001)))
    found: set[int] = set()
    request = FindTransactions(1)
    while True:
        page = transactions_page(log.machine, request, 10**9)
        assert isinstance(page, FoundTransactions)
        assert len(pack(page)) < PAGE_BYTES + 5000
        found |= {each.transaction for each in page.transactions}
        if not page.is_cut:
            break
        request = FindTransactions(1, after=page.transactions[-1].transaction)
    assert found == set(range(1, 1001))


def test_groups_without_backlogs_are_looks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_group_requests, "PAGE_MAX", LOOKS)
    log = DelayLog()
    log.run(
        *[
            OpenGroup(number, 1, name, 1, Mode.POP, Policy(), [], [])
            for number, name in enumerate(NAMES, 1)
        ]
    )
    request, turns = FindBacklogs(1), 0
    while isinstance(page := backlogs_page(log.machine, request), FindBacklogs):
        request, turns = page, turns + 1
    assert not page.backlogs
    assert turns == len(NAMES) // LOOKS - 1


def test_a_user_gets_the_shown_group_behind_many_hidden_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LOOKS_MAX", LOOKS)

    async def scenario(cluster: Cluster) -> None:
        await make_alice(cluster)
        groups = [PutConsumerGroup(name, Mode.POP, Policy()) for name in NAMES]
        await change(cluster, *map(msgspec.to_builtins, groups))
        await change(cluster, ["put_rule", ["alice", True, "describe", "group", "g38", False]])
        async with cluster.client(cluster.leader(0)) as client:
            await log_in(client)
            page = await client.ask(FrameKind.GROUPS, FindConsumerGroups(), FoundConsumerGroups)
        assert ([group.name for group in page.groups], page.is_cut) == (["g38"], False)

    with_users(scenario)
