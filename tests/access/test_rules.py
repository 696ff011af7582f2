"""Rules of access: a scan of all rules is the model, and the tables must agree with the scan."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.access.rules import EVERYBODY, OPERATIONS, Act, Operation, Resource, Rule, Rules

USERS = ["alice", "bob", EVERYBODY]
# Each is a prefix of some of the others.
NAMES = ["", "o", "orders", "orders-1", "other"]
ACTS = [
    Act(operation, resource, name)
    for operation in Operation
    if operation is not Operation.ANY
    for resource in Resource
    for name in (*NAMES, "orders-12")
]

rules_drawn = st.builds(
    Rule,
    st.sampled_from(USERS),
    st.booleans(),
    st.sampled_from(Operation),
    st.sampled_from(Resource),
    st.sampled_from(NAMES),
    st.booleans(),
)
puts = st.tuples(st.just("put"), rules_drawn)
steps_drawn = st.lists(
    puts
    | puts
    | st.tuples(st.just("drop"), rules_drawn)
    | st.tuples(st.just("drop_user"), st.sampled_from([*USERS, "carol"])),
    max_size=40,
)


def applies(rule: Rule, user: str, act: Act) -> bool:
    """Is the rule about this user and this resource?"""
    if rule.user not in (user, EVERYBODY) or rule.resource is not act.resource:
        return False
    return act.name.startswith(rule.name) if rule.is_prefix else act.name == rule.name


def decides(rule: Rule, operation: Operation) -> bool:
    """Does a rule about the resource decide an operation on the resource?"""
    if rule.operation in (operation, Operation.ANY):
        return True
    if (rule.operation, operation) == (Operation.READ, Operation.POP):
        return True
    return rule.is_allowed and operation is Operation.DESCRIBE


def scan(rules: list[Rule], user: str, act: Act) -> bool | None:
    """The verdict of a scan of all rules; None: no rule decides."""
    deciding = [r for r in rules if applies(r, user, act) and decides(r, act.operation)]
    if any(not rule.is_allowed for rule in deciding):
        return False
    return True if deciding else None


def played(steps: list[tuple[str, Any]]) -> tuple[Rules, list[Rule]]:
    """The rules after these steps, and the model: a list in which no rule stands twice."""
    rules, model = Rules(), list[Rule]()
    for what, subject in steps:
        if what == "put":
            assert rules.put(subject) == (subject not in model)
            model += [subject] if subject not in model else []
        elif what == "drop":
            assert rules.drop(subject) == (subject in model)
            model = [rule for rule in model if rule != subject]
        else:
            gone = [rule for rule in model if rule.user == subject]
            assert rules.drop_user(subject) == len(gone)
            model = [rule for rule in model if rule.user != subject]
        assert len(rules) == len(model)
        if isinstance(subject, Rule):
            assert (subject in rules) == (subject in model)
    return rules, model


def tables(rules: Rules) -> dict[str, Any]:
    """The content of all tables: equal for equal sets of rules."""
    return {
        user: (
            {key: frozenset(held) for key, held in own.exact.items()},
            {key: frozenset(held) for key, held in own.prefixes.items()},
            dict(own.lengths),
        )
        for user, own in rules._of.items()
    }


@given(steps_drawn)
def test_verdict_is_that_of_a_scan_of_all_rules(steps: list[tuple[str, Any]]) -> None:
    rules, model = played(steps)
    for user, act, is_open in product(("alice", "carol"), ACTS, (True, False)):
        expected = scan(model, user, act)
        verdict = rules.judge(user, act, is_open=is_open)
        assert verdict.is_allowed == (is_open if expected is None else expected), (user, act)
        if verdict.rule is None:
            assert expected is None
        else:
            assert verdict.rule in model
            assert verdict.rule.is_allowed == verdict.is_allowed
            assert applies(verdict.rule, user, act)
            assert decides(verdict.rule, act.operation)


@given(steps_drawn)
def test_rules_come_by_user_and_text(steps: list[tuple[str, Any]]) -> None:
    rules, model = played(steps)
    assert list(rules) == sorted(model, key=lambda rule: (rule.user, str(rule)))
    assert rules.users() == sorted({rule.user for rule in model})
    for user in (*USERS, "carol"):
        assert rules.of_user(user) == [rule for rule in rules if rule.user == user]


@given(st.data())
def test_order_in_which_rules_are_put_leaves_no_trace(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(rules_drawn, unique=True, max_size=20))
    one, other = Rules(), Rules()
    for rules, order in ((one, drawn), (other, data.draw(st.permutations(drawn)))):
        for rule in order:
            assert rules.put(rule)
    assert list(one) == list(other)
    assert tables(one) == tables(other)
    for user, act in product(("alice", "bob", "carol"), ACTS):
        assert one.judge(user, act).is_allowed == other.judge(user, act).is_allowed


@given(steps_drawn, st.data())
def test_dropped_rules_leave_no_table_behind(
    steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    rules, model = played(steps)
    more = data.draw(st.lists(rules_drawn, unique=True, max_size=20))
    added = [rule for rule in more if rules.put(rule)]
    for rule in data.draw(st.permutations(added)):
        assert rules.drop(rule)
    again = Rules()
    for rule in model:
        again.put(rule)
    assert tables(rules) == tables(again)
    for rule in model:
        assert rules.drop(rule)
    assert tables(rules) == tables(Rules()) == {}
    assert len(rules) == 0


@pytest.mark.parametrize(
    ("allowed", "given_too"),
    [
        (Operation.READ, {Operation.POP, Operation.DESCRIBE}),
        (Operation.POP, {Operation.DESCRIBE}),
        (Operation.WRITE, {Operation.DESCRIBE}),
        (Operation.DESCRIBE, set()),
        (Operation.ADMIN, {Operation.DESCRIBE}),
    ],
)
def test_allowed_operation_gives_these_and_no_others(
    allowed: Operation, given_too: set[Operation]
) -> None:
    rules = Rules()
    rules.put(Rule("alice", True, allowed, Resource.TOPIC, "orders"))
    found = {
        operation
        for operation in OPERATIONS[Resource.TOPIC] - {Operation.ANY}
        if rules.judge("alice", Act(operation, Resource.TOPIC, "orders")).is_allowed
    }
    assert found == {allowed, *given_too}


def test_denied_read_takes_pop_along_and_nothing_else() -> None:
    rules = Rules()
    rules.put(Rule(EVERYBODY, True, Operation.ANY, Resource.TOPIC, "", is_prefix=True))
    rules.put(Rule("alice", False, Operation.READ, Resource.TOPIC, "orders"))
    denied = {
        operation
        for operation in OPERATIONS[Resource.TOPIC] - {Operation.ANY}
        if not rules.judge("alice", Act(operation, Resource.TOPIC, "orders")).is_allowed
    }
    # Who may pop a topic gets all its messages.
    assert denied == {Operation.READ, Operation.POP}


def test_verdict_names_the_rule_that_decides_or_the_lack_of_one() -> None:
    rules, act = Rules(), Act(Operation.READ, Resource.TOPIC, "orders-1")
    assert str(rules.judge("alice", act)) == "denied: no rule allows it"
    assert str(rules.judge("alice", act, is_open=True)) == "allowed: no rule denies it"
    rules.put(Rule(EVERYBODY, False, Operation.ANY, Resource.TOPIC, "orders", is_prefix=True))
    expected = "denied by: deny * any topic orders*"
    assert str(rules.judge("alice", act, is_open=True)) == expected
    assert str(Act(Operation.ADMIN, Resource.CLUSTER)) == "admin cluster"


def test_verdict_reads_no_rule_about_another_name() -> None:
    rules = Rules()
    for n in range(500):
        for is_prefix in (True, False):
            rule = Rule("alice", True, Operation.READ, Resource.TOPIC, f"t{n:03}", is_prefix)
            rules.put(rule)
    about = rules._of["alice"].about
    assert [rule.name for rule in about(Resource.TOPIC, "t007")] == ["t007", "t007"]
    assert [rule.name for rule in about(Resource.TOPIC, "t007-more")] == ["t007"]
    assert list(about(Resource.GROUP, "t007")) == []
    # All prefixes have one length: the name is looked up once, and one beginning of it.
    assert len(rules._of["alice"].lengths) == 1
