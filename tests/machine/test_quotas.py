"""The catalog's quotas of users and topics."""

from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine.catalog import quotas
from raftmq.machine.catalog.catalog import Catalog, Once, is_of_users, parse_command
from raftmq.machine.catalog.quotas import (
    AMOUNT_MAX,
    EVERY,
    DropQuota,
    PutQuota,
    Quota,
    QuotaState,
    Subject,
    SubjectKind,
)
from raftmq.results import Changed
from tests.access.structs import values

from .test_catalog import reason, run

ALICE = Subject(SubjectKind.USER, "alice")
ORDERS = Subject(SubjectKind.TOPIC, "orders")
SLOW, FAST = Quota(write_bytes=1000), Quota(write_bytes=1_000_000, read_messages=7)


def every(kind: SubjectKind) -> Subject:
    return Subject(kind, EVERY)


def test_a_quota_holds_until_it_is_dropped_and_a_change_is_told() -> None:
    catalog = Catalog()
    for is_new in (True, False):
        assert run(catalog, PutQuota(ALICE, SLOW)) == Changed(is_new)
    assert catalog.quotas.version == 1
    assert run(catalog, PutQuota(ALICE, FAST)) == Changed(True)
    assert catalog.quotas.find(*ALICE_WORDS) == FAST
    assert catalog.quotas.version == catalog.applied
    for is_there in (True, False):
        assert run(catalog, DropQuota(ALICE)) == Changed(is_there)
    assert catalog.quotas.find(*ALICE_WORDS) is None
    assert catalog.quotas.version == catalog.applied - 1


ALICE_WORDS = (ALICE.kind, ALICE.name)


def test_the_quota_of_all_holds_for_those_without_one_of_their_own() -> None:
    state = QuotaState()
    state.apply(PutQuota(every(SubjectKind.USER), SLOW), index=1)
    assert state.find(SubjectKind.USER, "anybody") == SLOW
    assert state.find(SubjectKind.TOPIC, "anything") is None
    # One of its own without any bound takes its place, too.
    state.apply(PutQuota(ALICE, Quota()), index=2)
    assert state.find(*ALICE_WORDS) == Quota()
    state.apply(DropQuota(ALICE), index=3)
    assert state.find(*ALICE_WORDS) == SLOW


@pytest.mark.parametrize(
    ("subject", "quota"),
    [
        (Subject(SubjectKind.USER, ""), SLOW),
        (Subject(SubjectKind.USER, "**"), SLOW),
        (Subject(SubjectKind.TOPIC, "a b"), SLOW),
        (ALICE, Quota(write_bytes=-1)),
        (ALICE, Quota(read_messages=AMOUNT_MAX + 1)),
        (ORDERS, Quota(connections=1)),
        (ORDERS, Quota(requests=1)),
        (every(SubjectKind.TOPIC), Quota(requests=1)),
        (ORDERS, Quota(topics=1)),
    ],
)
def test_a_quota_that_cannot_be_is_refused(subject: Subject, quota: Quota) -> None:
    catalog = Catalog()
    assert reason(run(catalog, PutQuota(subject, quota))) is Reason.BAD_ARGUMENT
    assert not len(catalog.quotas)
    assert catalog.quotas.version == 0


def test_bounds_of_a_quota_are_within_its_range() -> None:
    catalog = Catalog()
    whole = Quota(*[AMOUNT_MAX] * len(Quota.__struct_fields__))
    assert run(catalog, PutQuota(ALICE, whole)) == Changed(True)


def test_quotas_are_bounded_and_those_that_exist_still_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 2)
    catalog = Catalog()
    run(catalog, PutQuota(ALICE, SLOW))
    run(catalog, PutQuota(ORDERS, SLOW))
    assert reason(run(catalog, PutQuota(every(SubjectKind.USER), SLOW))) is Reason.BAD_ARGUMENT
    assert run(catalog, PutQuota(ALICE, FAST)) == Changed(True)
    run(catalog, DropQuota(ORDERS))
    assert run(catalog, PutQuota(every(SubjectKind.USER), SLOW)) == Changed(True)


def test_quotas_of_users_are_for_clusters_that_know_their_users() -> None:
    assert is_of_users(PutQuota(ALICE, SLOW))
    assert is_of_users(Once(7, PutQuota(ALICE, SLOW)))
    assert not is_of_users(PutQuota(ORDERS, SLOW))
    assert not is_of_users(DropQuota(ALICE))


names = st.sampled_from(["alice", "bob", "*", "a b", ""])
amounts = dict.fromkeys(Quota.__struct_fields__, st.integers(-1, 3) | st.just(AMOUNT_MAX))
commands = st.lists(
    st.one_of(values(PutQuota, name=names, **amounts), values(DropQuota, name=names)), max_size=20
)


def test_snapshot_of_state_10_is_read_and_has_no_quotas() -> None:
    catalog = Catalog()
    run(catalog, PutQuota(ALICE, SLOW))
    _, *state = cbor2.loads(catalog.snapshot())
    older = Catalog.restore(cbor2.dumps([10, *state[:-1]]))
    assert older.quotas.dump() == QuotaState().dump()
    assert run(older, PutQuota(ALICE, SLOW)) == Changed(True)


@given(commands)
def test_a_snapshot_brings_the_same_quotas_back(asked: list[Any]) -> None:
    catalog = Catalog()
    for command in asked:
        run(catalog, command)
    restored = Catalog.restore(catalog.snapshot())
    assert restored.quotas.dump() == catalog.quotas.dump()
    assert restored.snapshot() == catalog.snapshot()


@given(commands)
def test_a_command_comes_over_the_wire_as_it_left(asked: list[Any]) -> None:
    for command in asked:
        plain = msgspec.to_builtins(command, builtin_types=(bytes,))
        assert parse_command(plain) == command
        assert parse_command(plain, 7) == Once(7, command)
