"""The catalog's dynamic settings."""

from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine.catalog import settings
from raftmq.machine.catalog.catalog import Catalog, Once
from raftmq.machine.catalog.levels import RaiseLevel
from raftmq.machine.catalog.settings import PutSettings, Scope, Setting, SettingsState
from raftmq.results import Changed, Refused

from .test_catalog import reason, run

RETENTION, TICK, LINGER = "log.retention_ms", "raft.tick_ms", "producer.linger_ms"


def of_cluster(name: str, value: Any) -> Setting:
    return Setting(Scope.CLUSTER, "", name, value)


def of_topic(topic: str, name: str, value: Any) -> Setting:
    return Setting(Scope.TOPIC, topic, name, value)


def put(*each: Setting, seen: int = -1) -> PutSettings:
    return PutSettings(list(each), seen)


def apply(state: SettingsState, *each: Setting, seen: int = -1) -> Any:
    return state.apply(put(*each, seen=seen), now=7, user="alice")


def test_a_change_has_the_next_version_and_one_that_changes_nothing_has_none() -> None:
    catalog = Catalog()
    assert run(catalog, put(of_cluster(RETENTION, 5), of_cluster(TICK, 9))) == Changed(1)
    assert run(catalog, put(of_cluster(RETENTION, 5))) == Changed(1)
    assert run(catalog, put(of_cluster(RETENTION, 6))) == Changed(2)
    assert run(catalog, put(of_cluster(TICK, None), of_topic("t", LINGER, 3))) == Changed(3)
    assert run(catalog, put(of_topic("u", LINGER, None))) == Changed(3)
    assert catalog.settings.of(Scope.CLUSTER) == {RETENTION: 6}
    assert catalog.settings.of(Scope.TOPIC, "t") == {LINGER: 3}
    assert catalog.settings.of(Scope.TOPIC, "u") == {}


def test_the_history_tells_what_was_there_before() -> None:
    state = SettingsState()
    apply(state, of_cluster(RETENTION, 5))
    apply(state, of_cluster(RETENTION, 6), of_cluster(TICK, 9))
    apply(state, of_cluster(TICK, 9), of_cluster(RETENTION, None))
    assert [(each.version, each.user, each.at_ms) for each in state.history] == [
        (1, "alice", 7),
        (2, "alice", 7),
        (3, "alice", 7),
    ]
    assert [each.before for each in state.history] == [
        [of_cluster(RETENTION, None)],
        [of_cluster(RETENTION, 5), of_cluster(TICK, None)],
        # What a change leaves as it was is no part of it.
        [of_cluster(RETENTION, 6)],
    ]


def test_a_change_of_what_the_caller_did_not_see_is_refused() -> None:
    state = SettingsState()
    assert apply(state, of_cluster(RETENTION, 5), seen=0) == Changed(1)
    refused = apply(state, of_cluster(RETENTION, 6), seen=0)
    assert refused.reason is Reason.CHANGED_MEANWHILE
    assert "version 1 by now" in refused.message
    assert state.of(Scope.CLUSTER) == {RETENTION: 5}
    assert apply(state, of_cluster(RETENTION, 6), seen=1) == Changed(2)


WRONG = [
    ([], "1 to 1000"),
    ([of_cluster(RETENTION, 1), of_cluster(RETENTION, 2)], "once"),
    ([Setting(Scope.CLUSTER, "x", RETENTION, 1)], "no further name"),
    ([Setting(Scope.NODE, "", RETENTION, 1)], "not the number of a node"),
    ([Setting(Scope.NODE, "03", RETENTION, 1)], "not the number of a node"),
    ([Setting(Scope.NODE, "\u0663", RETENTION, 1)], "not the number of a node"),
    ([of_topic("*", LINGER, 1)], "not a topic name"),
    ([Setting(Scope.CLIENT, "a b", LINGER, 1)], "not a client name"),
    ([of_cluster("retention", 1)], "TABLE.NAME"),
    ([of_cluster("Log.Retention", 1)], "TABLE.NAME"),
    ([of_cluster(RETENTION, "x" * 257)], "256 bytes"),
    ([of_cluster(RETENTION, "\U0001f4ef" * 65)], "256 bytes"),
    ([of_cluster(RETENTION, 1 << 63)], "64 bits"),
    ([of_cluster(TICK, 3), of_cluster("x" * 200, 1)], "TABLE.NAME"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_a_change_that_is_wrong_in_a_part_changes_nothing(wrong: list[Setting], words: str) -> None:
    state = SettingsState()
    refused = apply(state, *wrong)
    assert isinstance(refused, Refused)
    assert words in refused.message
    assert state.version == len(state) == 0


def test_odd_numbers_are_refused_or_change_nothing() -> None:
    state = SettingsState()
    assert reason(apply(state, of_cluster(RETENTION, 1), seen=10**5000)) is Reason.CHANGED_MEANWHILE
    assert apply(state, of_cluster(RETENTION, 1), seen=-(10**5000)) == Changed(1)
    # Equal in Python, and two values all the same.
    assert apply(state, of_cluster(RETENTION, True)) == Changed(2)
    assert state.of(Scope.CLUSTER) == {RETENTION: True}


def test_topics_leave_room_for_the_settings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TOPIC_SETTINGS_MAX", 2)
    monkeypatch.setattr(settings, "SETTINGS_MAX", 3)
    state = SettingsState()
    apply(state, of_topic("t0", LINGER, 1), of_topic("t1", LINGER, 1))
    assert "for others than topics" in apply(state, of_topic("t2", LINGER, 1)).message
    assert apply(state, Setting(Scope.CLIENT, "*", LINGER, 1)) == Changed(2)


def test_settings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SETTINGS_MAX", 3)
    monkeypatch.setattr(settings, "TOPIC_SETTINGS_MAX", 3)
    state = SettingsState()
    apply(state, *(of_topic(f"t{n}", LINGER, n) for n in range(3)))
    assert reason(apply(state, of_topic("t3", LINGER, 1))) is Reason.BAD_ARGUMENT
    # One goes and one comes.
    assert apply(state, of_topic("t3", LINGER, 1), of_topic("t0", LINGER, None)) == Changed(2)
    assert apply(state, of_topic("t3", LINGER, 2)) == Changed(3)


def test_the_history_is_bounded_and_keeps_the_newest_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "HISTORY_MAX", 4)
    state = SettingsState()
    for n in range(6):
        apply(state, of_cluster(RETENTION, n), of_cluster(TICK, n))
    assert [each.version for each in state.history] == [5, 6]
    apply(state, *(of_topic(f"t{n}", LINGER, n) for n in range(9)))
    assert [each.version for each in state.history] == [7]


def test_a_watcher_hears_of_changes_of_its_scopes_alone() -> None:
    state = SettingsState()
    mine = {("topic", "orders"), ("client", "*")}
    assert not state.is_touched(0, mine)
    apply(state, of_topic("bills", LINGER, 1))
    assert not state.is_touched(0, mine)
    assert state.is_touched(0, set())
    apply(state, of_topic("orders", LINGER, 1))
    assert state.is_touched(0, mine)
    assert state.is_touched(1, mine)
    assert not state.is_touched(2, mine)
    # Of a version that is not known here yet nothing can be said.
    assert not state.is_touched(9, mine)
    assert not state.is_touched(9, set())


def test_a_watcher_of_a_version_that_is_no_longer_kept_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "HISTORY_MAX", 2)
    state = SettingsState()
    for n in range(5):
        apply(state, of_topic("bills", LINGER, n))
    assert not state.is_touched(3, {("topic", "orders")})
    assert state.is_touched(2, {("topic", "orders")})


def test_a_repeat_with_the_same_number_changes_nothing() -> None:
    catalog = Catalog()
    change = Once(77, put(of_cluster(RETENTION, 5)))
    assert run(catalog, change) == Changed(1)
    run(catalog, put(of_cluster(RETENTION, 6)))
    assert run(catalog, change) == Changed(1)
    assert catalog.settings.of(Scope.CLUSTER) == {RETENTION: 6}


SETTINGS = st.builds(
    Setting,
    st.sampled_from([Scope.CLUSTER]),
    st.just(""),
    st.sampled_from([RETENTION, TICK, LINGER]),
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x"]),
)


@given(st.lists(st.lists(SETTINGS, min_size=1, max_size=3), max_size=12))
def test_a_restored_catalog_goes_on_alike(changes: list[list[Setting]]) -> None:
    catalog = Catalog()
    run(catalog, RaiseLevel(2))
    for at, change in enumerate(changes):
        run(catalog, PutSettings(change))
        if at == len(changes) // 2:
            catalog = Catalog.restore(catalog.snapshot())
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()
    assert again.settings.all() == catalog.settings.all()
    assert again.settings.history == catalog.settings.history


@given(st.lists(st.lists(SETTINGS, min_size=1, max_size=3), max_size=12), st.data())
def test_values_before_lead_back_to_any_version(
    changes: list[list[Setting]], data: st.DataObject
) -> None:
    state = SettingsState()
    seen = {0: state.all()}
    for change in changes:
        state.apply(PutSettings(change), now=1, user="")
        seen[state.version] = state.all()
    version = data.draw(st.sampled_from(sorted(seen)))
    back: dict[str, Setting] = {}
    for later in reversed([each for each in state.history if each.version > version]):
        back |= {each.name: each for each in later.before}
    if back:
        state.apply(PutSettings(list(back.values())), now=1, user="")
    assert state.all() == seen[version]


def test_what_is_dumped_is_plain() -> None:
    state = SettingsState()
    apply(state, of_cluster(RETENTION, 5), of_cluster("log.x", True), of_topic("t", "a.b", "x"))
    dumped = cbor2.loads(cbor2.dumps(msgspec.to_builtins(state.dump())))
    again = SettingsState()
    again.load(dumped)
    assert again.all() == state.all()
