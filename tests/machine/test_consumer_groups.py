"""The catalog's consumer groups: modes, policies, attachments to topics."""

from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine.catalog import consumer_groups
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node, parse_command
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    Attachment,
    ConsumerGroup,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.pop.policy import INVISIBLE_MS_MAX, Mode, Order, Policy
from raftmq.results import Changed, Refused

from .test_catalog import reason, run

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=2, replicas=1))
    run(catalog, CreateTopic("orders", 2))
    return catalog


def put(name: str = "billing", mode: Mode = Mode.POP, **policy: Any) -> PutConsumerGroup:
    return PutConsumerGroup(name, mode, Policy(**policy))


def attach(
    name: str = "billing", *, topic: str = "orders", mode: Mode = Mode.POP, is_latest: bool = False
) -> Attach:
    return Attach(topic, name, mode, is_latest)


def numbers(catalog: Catalog, topic: str = "orders") -> list[int]:
    return [each.number for each in catalog.consumer_groups.of_topic(catalog.topics[topic].id)]


# Groups


@pytest.mark.parametrize("mode", Mode)
def test_group_of_each_mode_is_created_and_found(catalog: Catalog, mode: Mode) -> None:
    assert run(catalog, put(mode=mode, attempts_max=3)) == Changed(catalog.applied)
    policy = Policy(attempts_max=3)
    expected = ConsumerGroup("billing", mode, policy, catalog.applied)
    assert catalog.consumer_groups.groups == {"billing": expected}


def test_same_group_again_changes_nothing(catalog: Catalog) -> None:
    first = run(catalog, put(attempts_max=3))
    before = catalog.consumer_groups.groups.copy()
    assert run(catalog, put(attempts_max=3)) == first
    assert catalog.consumer_groups.groups == before


def test_other_policy_takes_the_place_of_the_first_under_a_later_version(catalog: Catalog) -> None:
    first = run(catalog, put())
    second = run(catalog, put(schedule_ms=(5, 10)))
    assert isinstance(first, Changed)
    assert isinstance(second, Changed)
    assert second.value > first.value
    assert catalog.consumer_groups.groups["billing"].policy.schedule_ms == (5, 10)


def test_group_never_changes_its_mode(catalog: Catalog) -> None:
    run(catalog, put())
    refused = run(catalog, put(mode=Mode.ORDERED))
    assert refused == Refused(
        Reason.GROUP_MODE,
        "consumer group 'billing' has mode pop, not ordered: use it as pop, take another name, "
        "or delete it with all that it has in hand",
    )
    assert catalog.consumer_groups.groups["billing"].mode is Mode.POP


def test_ordered_group_never_changes_its_order(catalog: Catalog) -> None:
    run(catalog, put(mode=Mode.ORDERED))
    refused = run(catalog, put(mode=Mode.ORDERED, order=Order.QUEUE, attempts_max=3))
    assert refused == Refused(
        Reason.GROUP_MODE,
        "consumer group 'billing' is ordered by key, not by queue: keep that order, take another "
        "name, or delete it with all that it has in hand",
    )
    assert catalog.consumer_groups.groups["billing"].policy == Policy()
    assert isinstance(run(catalog, put(mode=Mode.ORDERED, attempts_max=3)), Changed)


def test_order_of_a_group_without_order_may_be_put_as_it_says_nothing(catalog: Catalog) -> None:
    run(catalog, put())
    assert isinstance(run(catalog, put(order=Order.QUEUE)), Changed)


@pytest.mark.parametrize(
    "policy",
    [
        {"schedule_ms": ()},
        {"schedule_ms": (1,) * 65},
        {"schedule_ms": (10, -1)},
        {"schedule_ms": (10, 7 * DAY_MS + 1)},
        {"attempts_max": 0},
        {"attempts_max": 1_000_001},
        {"invisible_ms": 999},
        {"invisible_ms": INVISIBLE_MS_MAX + 1},
        {"is_blocking": True},
    ],
    ids=str,
)
def test_policy_out_of_its_bounds_is_refused(catalog: Catalog, policy: dict[str, Any]) -> None:
    assert reason(run(catalog, put(**policy))) is Reason.BAD_ARGUMENT
    assert catalog.consumer_groups.groups == {}


@pytest.mark.parametrize(
    "policy",
    [
        {"schedule_ms": (0,)},
        {"schedule_ms": (7 * DAY_MS,) * 64},
        {"attempts_max": 1},
        {"attempts_max": 1_000_000},
        {"invisible_ms": 1000},
        {"invisible_ms": INVISIBLE_MS_MAX},
        {"is_blocking": True, "order": Order.QUEUE},
    ],
    ids=str,
)
def test_policy_at_its_bounds_is_taken(catalog: Catalog, policy: dict[str, Any]) -> None:
    assert isinstance(run(catalog, put(mode=Mode.ORDERED, **policy)), Changed)


def test_name_of_a_group_has_1_to_127_characters(catalog: Catalog) -> None:
    for bad in ("", "x" * 128):
        assert reason(run(catalog, put(bad))) is Reason.BAD_NAME
        assert reason(run(catalog, attach(bad))) is Reason.BAD_NAME
    assert isinstance(run(catalog, put("ü" * 127)), Changed)


def test_deleted_group_takes_attachments_and_filters_along(catalog: Catalog) -> None:
    run(catalog, attach())
    run(catalog, Subscribe("orders", "billing", "paid"))
    run(catalog, Subscribe("orders", "audit", "paid"))
    assert run(catalog, DeleteConsumerGroup("billing")) == Changed()
    groups = catalog.consumer_groups
    assert (groups.groups, groups.attachments, numbers(catalog)) == ({}, {}, [])
    assert groups.version == catalog.subscribers.version == catalog.applied
    assert list(catalog.subscribers.of_topic[1]) == ["audit"]
    assert isinstance(run(catalog, attach(mode=Mode.ORDERED)), Changed)


def test_deleting_a_group_that_is_not_there_is_refused(catalog: Catalog) -> None:
    assert reason(run(catalog, DeleteConsumerGroup("billing"))) is Reason.UNKNOWN_GROUP


def test_old_record_of_a_deletion_leaves_committed_offsets_to_themselves(catalog: Catalog) -> None:
    run(catalog, put())
    assert run(catalog, DeleteConsumerGroup("billing")) == Changed()
    assert len(catalog.deletions) == 0


def test_group_that_only_has_filters_can_be_deleted(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    assert run(catalog, DeleteConsumerGroup("billing")) == Changed()
    assert catalog.subscribers.of_topic == {}


# Attachments


def test_attaching_makes_a_group_with_the_usual_policy(catalog: Catalog) -> None:
    result = run(catalog, attach(is_latest=True))
    assert result == Changed([1, catalog.applied])
    group = ConsumerGroup("billing", Mode.POP, Policy(), catalog.applied)
    assert catalog.consumer_groups.groups == {"billing": group}
    assert catalog.consumer_groups.attachments == {
        1: Attachment(1, 1, "billing", True, 2, catalog.applied)
    }
    assert catalog.consumer_groups.version == catalog.applied


def test_attaching_again_gives_the_same_number_and_the_first_start_holds(catalog: Catalog) -> None:
    run(catalog, put(attempts_max=3))
    first = run(catalog, attach(is_latest=True))
    attachments, version = catalog.consumer_groups.attachments.copy(), catalog.applied
    assert run(catalog, attach(is_latest=False)) == first == Changed([1, version - 1])
    assert catalog.consumer_groups.attachments == attachments
    assert catalog.consumer_groups.version == version


def test_attaching_tells_the_version_of_the_policy_as_it_is_now(catalog: Catalog) -> None:
    run(catalog, attach())
    run(catalog, put(attempts_max=3))
    assert run(catalog, attach()) == Changed([1, catalog.applied - 1])


def test_attaching_in_another_mode_is_refused(catalog: Catalog) -> None:
    run(catalog, attach())
    run(catalog, CreateTopic("other", 1))
    for topic in ("orders", "other"):
        refused = run(catalog, attach(topic=topic, mode=Mode.BROADCAST))
        assert reason(refused) is Reason.GROUP_MODE
    assert numbers(catalog, "other") == []


def test_attaching_to_an_unknown_topic_is_refused_and_makes_no_group(catalog: Catalog) -> None:
    assert reason(run(catalog, attach(topic="none"))) is Reason.UNKNOWN_TOPIC
    assert reason(run(catalog, Detach("none", "billing"))) is Reason.UNKNOWN_TOPIC
    assert catalog.consumer_groups.groups == {}


def test_number_of_an_attachment_is_never_used_again(catalog: Catalog) -> None:
    run(catalog, attach("a"))
    run(catalog, attach("b"))
    assert run(catalog, Detach("orders", "b")) == Changed(2)
    assert catalog.consumer_groups.version == catalog.applied
    assert numbers(catalog) == [1]
    assert run(Catalog.restore(catalog.snapshot()), attach("b")) == Changed([3, 4])
    assert run(catalog, attach("b")) == Changed([3, 4])


def test_detaching_twice_is_done_once(catalog: Catalog) -> None:
    run(catalog, attach())
    run(catalog, Detach("orders", "billing"))
    version = catalog.consumer_groups.version
    assert run(catalog, Detach("orders", "billing")) == Changed(0)
    assert catalog.consumer_groups.version == version
    assert "billing" in catalog.consumer_groups.groups


def test_deleted_topic_takes_its_attachments_along_and_no_group(catalog: Catalog) -> None:
    run(catalog, CreateTopic("other", 1))
    run(catalog, attach())
    run(catalog, attach(topic="other"))
    run(catalog, DeleteTopic("orders"))
    assert catalog.consumer_groups.version == catalog.applied
    assert list(catalog.consumer_groups.attachments) == [2]
    assert [each.topic_id for each in catalog.consumer_groups.of_group("billing")] == [2]
    run(catalog, CreateTopic("orders", 2))
    assert numbers(catalog) == []


def test_attachments_of_a_topic_come_in_the_order_of_their_numbers(catalog: Catalog) -> None:
    for name in ("c", "a", "b"):
        run(catalog, attach(name))
    assert numbers(catalog) == numbers(Catalog.restore(catalog.snapshot())) == [1, 2, 3]


def test_data_groups_have_something_to_take_over_when_queues_or_policies_change(
    catalog: Catalog,
) -> None:
    groups = catalog.consumer_groups
    run(catalog, put())
    run(catalog, AlterTopic("orders", 3))
    assert groups.version == 0, "nobody is attached"
    run(catalog, attach())
    run(catalog, AlterTopic("orders", 4))
    assert groups.version == catalog.applied
    assert groups.attachments[1].queues == 3
    run(catalog, put(attempts_max=3))
    assert groups.version == catalog.applied


def test_groups_and_attachments_are_bounded(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 3)
    monkeypatch.setattr(consumer_groups, "ATTACHMENTS_MAX", 2)
    for name in ("a", "b"):
        run(catalog, attach(name))
    assert reason(run(catalog, attach("c"))) is Reason.TOO_LARGE
    assert "c" not in catalog.consumer_groups.groups, "refused, and yet a group was made"
    run(catalog, put("c"))
    assert reason(run(catalog, put("d"))) is Reason.TOO_LARGE
    assert isinstance(run(catalog, put("c", attempts_max=2)), Changed)
    run(catalog, Detach("orders", "a"))
    assert isinstance(run(catalog, attach("c")), Changed)
    assert reason(run(catalog, attach("d"))) is Reason.TOO_LARGE


# Commands on the wire, and stored state


@pytest.mark.parametrize(
    "command",
    [
        put(schedule_ms=(1000, 2000), order=Order.QUEUE),
        DeleteConsumerGroup("billing"),
        attach(mode=Mode.ORDERED, is_latest=True),
        Detach("orders", "billing"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_command_is_read_from_its_positional_array(command: msgspec.Struct) -> None:
    assert parse_command(cbor2.loads(cbor2.dumps(msgspec.to_builtins(command)))) == command


def test_unknown_mode_is_no_command() -> None:
    with pytest.raises(msgspec.ValidationError, match="fifo"):
        parse_command(["attach", "orders", "billing", "fifo", False])


def test_snapshot_holds_groups_and_attachments(catalog: Catalog) -> None:
    run(catalog, put(mode=Mode.ORDERED, is_blocking=True, schedule_ms=(7,)))
    run(catalog, attach(mode=Mode.ORDERED, is_latest=True))
    run(catalog, attach("audit"))
    restored = Catalog.restore(catalog.snapshot())
    assert restored.consumer_groups.groups == catalog.consumer_groups.groups
    assert restored.consumer_groups.attachments == catalog.consumer_groups.attachments
    for each in (catalog, restored):
        run(each, DeleteConsumerGroup("billing"))
        run(each, attach("third"))
    assert restored.snapshot() == catalog.snapshot()


def test_snapshot_from_before_consumer_groups_is_read(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    _, *state = cbor2.loads(catalog.snapshot())
    older = Catalog.restore(cbor2.dumps([2, *state[:-1]]))
    assert older.topics == catalog.topics
    assert older.subscribers.of_topic == catalog.subscribers.of_topic
    assert older.consumer_groups.groups == {}


# Any order of commands

NAMES, TOPICS = ("a", "b"), ("orders", "other")
COMMANDS = st.one_of(
    st.builds(
        lambda name, mode, attempts: put(name, mode, attempts_max=attempts),
        st.sampled_from(NAMES),
        st.sampled_from([Mode.POP, Mode.ORDERED]),
        st.integers(0, 2),
    ),
    st.builds(DeleteConsumerGroup, st.sampled_from(NAMES)),
    st.builds(
        Attach,
        st.sampled_from(TOPICS),
        st.sampled_from(NAMES),
        st.sampled_from([Mode.POP, Mode.ORDERED]),
        st.booleans(),
    ),
    st.builds(Detach, st.sampled_from(TOPICS), st.sampled_from(NAMES)),
    st.builds(CreateTopic, st.sampled_from(TOPICS), st.just(2)),
    st.builds(DeleteTopic, st.sampled_from(TOPICS)),
)


class Model:
    """A model of groups and attachments by specification, without an index."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.modes: dict[str, tuple[Mode, int]] = {}
        self.attached: dict[int, tuple[int, str]] = {}
        self.given = 0
        self.topic_last = 0

    def run(self, command: Any) -> bool:
        """True if the command is carried out now, or was before."""
        match command:
            case CreateTopic(name=name):
                if name not in self.topics:
                    self.topic_last += 1
                    self.topics[name] = self.topic_last
                return True
            case DeleteTopic(name=name):
                topic = self.topics.pop(name, None)
                self.attached = {n: each for n, each in self.attached.items() if each[0] != topic}
                return topic is not None
            case PutConsumerGroup(name=name, mode=mode, policy=policy):
                is_right = policy.attempts_max > 0 and self.modes.get(name, (mode,))[0] is mode
                if is_right:
                    self.modes[name] = (mode, policy.attempts_max)
                return is_right
            case DeleteConsumerGroup(name=name):
                self.attached = {n: each for n, each in self.attached.items() if each[1] != name}
                return self.modes.pop(name, None) is not None
            case Detach(topic=name, consumer_group=group):
                place = (self.topics.get(name, 0), group)
                self.attached = {n: each for n, each in self.attached.items() if each != place}
                return name in self.topics
            case Attach(topic=name, consumer_group=group, mode=mode):
                known = self.modes.get(group, (mode, Policy().attempts_max))
                if name not in self.topics or known[0] is not mode:
                    return False
                self.modes[group] = known
                place = (self.topics[name], group)
                if place not in self.attached.values():
                    self.given += 1
                    self.attached[self.given] = place
                return True
        raise AssertionError(command)


@settings(max_examples=200)
@given(st.lists(st.tuples(COMMANDS, st.booleans()), min_size=4, max_size=40))
def test_any_order_of_commands_gives_what_a_simple_model_says(
    steps: list[tuple[Any, bool]],
) -> None:
    model, catalog, twin = Model(), Catalog(), Catalog()
    for each in (catalog, twin):
        run(each, Bootstrap([Node(1, "a", 1)], groups=2, replicas=1))
    begun: list[tuple[Any, bool]] = [(CreateTopic(topic, 2), False) for topic in TOPICS]
    begun += [(attach(name), False) for name in NAMES]
    for command, is_restored in [*begun, *steps]:
        result = run(catalog, command)
        assert run(twin, command) == result
        assert isinstance(result, Changed) == model.run(command), command
        if is_restored:
            twin = Catalog.restore(twin.snapshot())
            assert twin.snapshot() == catalog.snapshot()
        groups = catalog.consumer_groups
        assert {n: (a.topic_id, a.consumer_group) for n, a in groups.attachments.items()} == (
            model.attached
        )
        assert {
            name: (g.mode, g.policy.attempts_max) for name, g in groups.groups.items()
        } == model.modes
        for topic_id in model.topics.values():
            found = [a.number for a in groups.of_topic(topic_id)]
            assert found == [n for n, each in model.attached.items() if each[0] == topic_id]
        for name in NAMES:
            found = [a.number for a in groups.of_group(name)]
            assert found == [n for n, each in model.attached.items() if each[1] == name]
    assert twin.snapshot() == catalog.snapshot()
