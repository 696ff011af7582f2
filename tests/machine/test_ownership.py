"""Topics, queues and consumer groups that a user may own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine.catalog.audit import AdminAct
from raftmq.machine.catalog.catalog import Authored, Bootstrap, Catalog, Node, Once
from raftmq.machine.catalog.consumer_groups import Attach, DeleteConsumerGroup, PutConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.quotas import DropQuota, PutQuota, Quota, Subject, SubjectKind
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Changed, Result

from .test_catalog import reason, run

ALICE = Subject(SubjectKind.USER, "alice")


def founded() -> Catalog:
    made = Catalog()
    run(made, Bootstrap([Node(1, "a", 1)], groups=1, replicas=1))
    run(made, CreateTopic("old", 50))
    return made


@pytest.fixture
def catalog() -> Catalog:
    return founded()


def by(user: str, catalog: Catalog, command: Any) -> Result:
    """Run a command of a user."""
    return run(catalog, Authored(AdminAct(user, ""), command))


def give(catalog: Catalog, **amounts: int) -> None:
    run(catalog, PutQuota(ALICE, Quota(**amounts)))


def test_a_user_creates_as_many_topics_as_it_may_own(catalog: Catalog) -> None:
    give(catalog, topics=2)
    for request, name in enumerate(("a", "b"), 1):
        assert isinstance(by("alice", catalog, Once(request, CreateTopic(name, 5))), Changed)
    refused = by("alice", catalog, CreateTopic("c", 1))
    assert reason(refused) is Reason.OVER_QUOTA
    assert "user 'alice' owns 2 topics and would own 3, and its quota is 2" in str(refused)
    assert "`raftmq quota set user alice --topics N` and all other amounts" in str(refused)
    # One that exists is answered as before, others create theirs, and what is deleted is free.
    assert by("alice", catalog, CreateTopic("a", 5)) == Changed(2)
    assert isinstance(by("bob", catalog, CreateTopic("c", 1)), Changed)
    by("alice", catalog, DeleteTopic("a", 2))
    assert isinstance(by("alice", catalog, CreateTopic("d", 1)), Changed)


def test_queues_count_for_the_owner_of_their_topic(catalog: Catalog) -> None:
    give(catalog, queues=10)
    by("alice", catalog, CreateTopic("a", 6))
    assert reason(by("alice", catalog, CreateTopic("b", 5))) is Reason.OVER_QUOTA
    assert isinstance(by("bob", catalog, AlterTopic("a", 10)), Changed)
    assert reason(by("bob", catalog, AlterTopic("a", 11))) is Reason.OVER_QUOTA
    # It has them already.
    assert isinstance(by("alice", catalog, AlterTopic("a", 10)), Changed)
    assert isinstance(by("alice", catalog, AlterTopic("old", 100)), Changed)


@pytest.mark.parametrize(
    "creates",
    [
        PutConsumerGroup("g2", Mode.POP, Policy()),
        Attach("old", "g2", Mode.POP, False),
        JoinGroup("old", "g2", 7, 10_000),
    ],
)
def test_a_user_creates_as_many_groups_as_it_may_own_whichever_way(
    catalog: Catalog, creates: Any
) -> None:
    give(catalog, groups=1)
    by("alice", catalog, Attach("old", "g1", Mode.POP, False))
    before = catalog.memberships.dump()
    assert reason(by("alice", catalog, creates)) is Reason.OVER_QUOTA
    assert "g2" not in catalog.consumer_groups.groups
    assert catalog.memberships.dump() == before
    # A group that exists is used, whoever owns it.
    assert isinstance(by("alice", catalog, Attach("old", "g1", Mode.POP, False)), Changed)
    run(catalog, DeleteConsumerGroup("g1", is_whole=True))
    assert isinstance(by("alice", catalog, creates), Changed)


def test_what_a_user_owned_before_its_quota_stays(catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        by("alice", catalog, CreateTopic(name, 1))
    give(catalog, topics=1)
    assert reason(by("alice", catalog, CreateTopic("d", 1))) is Reason.OVER_QUOTA
    assert {"a", "b", "c"} <= catalog.topics.keys()
    run(catalog, DropQuota(ALICE))
    assert isinstance(by("alice", catalog, CreateTopic("d", 1)), Changed)


users = st.sampled_from(["alice", "bob", ""])
names = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(users, names, st.integers(0, 6))))
def test_what_users_own_is_counted_as_it_comes_and_goes(
    steps: list[tuple[str, str, int]],
) -> None:
    catalog = founded()
    for user, name, kind in steps:
        commands: list[Any] = [
            CreateTopic(name, 5),
            AlterTopic(name, 7),
            DeleteTopic(name, 0),
            PutConsumerGroup(name, Mode.POP, Policy()),
            Attach(name, name, Mode.POP, False),
            JoinGroup(name, "joined", 7, 10_000),
            DeleteConsumerGroup(name, is_whole=True),
        ]
        by(user, catalog, commands[kind]) if user else run(catalog, commands[kind])
    for each in (catalog, Catalog.restore(catalog.snapshot())):
        for user in ("alice", "bob", ""):
            topics = [t for t in each.topics.values() if t.owner == user and user]
            groups = [g for g in each.consumer_groups.groups.values() if g.owner == user and user]
            assert each.owned_topics.of(user) == len(topics)
            assert each.owned_queues.of(user) == sum(len(t.groups) for t in topics)
            assert each.consumer_groups.owned.of(user) == len(groups)


def test_a_repeat_is_refused_by_no_quota(catalog: Catalog) -> None:
    by("alice", catalog, CreateTopic("a", 6))
    give(catalog, topics=1, queues=2)
    assert isinstance(by("alice", catalog, CreateTopic("a", 6)), Changed)
    assert isinstance(by("alice", catalog, AlterTopic("a", 6)), Changed)


def test_commands_without_an_author_have_no_quota(catalog: Catalog) -> None:
    run(catalog, PutQuota(Subject(SubjectKind.USER, "*"), Quota(topics=1, queues=1, groups=1)))
    for name in ("a", "b"):
        assert isinstance(run(catalog, CreateTopic(name, 5)), Changed)
        assert isinstance(run(catalog, PutConsumerGroup(name, Mode.POP, Policy())), Changed)
