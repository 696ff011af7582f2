"""The catalog's users, tokens and rules of access."""

from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.access.rules import Act, Operation, Resource, Rule
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.log.record import encode as encode_record
from raftmq.machine.catalog import access
from raftmq.machine.catalog.access import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    AccessCommand,
    AccessState,
    DropRule,
    DropToken,
    DropUser,
    Keys,
    PutRule,
    PutToken,
    PutUser,
    Token,
    User,
)
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node, Once, parse_command
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.machine.commands import encode_commands
from raftmq.results import Changed, Refused
from tests.access.structs import TEXTS, values

from .test_catalog import reason, run

GOLDEN = Path(__file__).parent / "golden"
SALT = bytes(range(16))
STAMP = 5
"""The leader's stamp of all records here."""
READ = Rule("alice", True, Operation.READ, Resource.TOPIC, "orders")
DENY = Rule("alice", False, Operation.ANY, Resource.GROUP, "billing-", True)
EVERY = Rule("*", True, Operation.DESCRIBE, Resource.CLUSTER)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


def put_user(name: str = "alice", password: int = 1, **more: Any) -> PutUser:
    """A command with made-up keys, which differ from password to password."""
    keys = (bytes([password]) * 32, bytes([password + 100]) * 32)
    return msgspec.structs.replace(PutUser(name, SALT, 4096, *keys), **more)


def put_token(number: int = 1, user: str = "alice", **more: Any) -> PutToken:
    command = PutToken(user, f"{number:016x}", bytes([number]) * 32)
    return msgspec.structs.replace(command, **more)


def keys(password: int, until_ms: int = 0) -> Keys:
    return Keys(bytes([password]) * 32, bytes([password + 100]) * 32, until_ms)


def fill(catalog: Catalog) -> None:
    for command in (put_user(), put_user("bob"), put_token(), put_token(2), put_token(3, "bob")):
        assert run(catalog, command) == Changed(True)
    for rule in (READ, DENY, EVERY, msgspec.structs.replace(READ, user="bob")):
        assert run(catalog, PutRule(rule)) == Changed(True)


def kept(catalog: Catalog) -> list[Any]:
    """All that is kept of access, without the version."""
    return catalog.access.dump()[1:]


# Users


def test_user_is_kept_with_the_keys_of_its_password(catalog: Catalog) -> None:
    assert run(catalog, put_user()) == Changed(True)
    assert catalog.access.users == {"alice": User("alice", SALT, 4096, (keys(1),), STAMP)}
    assert catalog.access.version == catalog.applied


def test_user_without_a_password_has_no_keys(catalog: Catalog) -> None:
    assert run(catalog, PutUser("alice")) == Changed(True)
    assert catalog.access.users == {"alice": User("alice", b"", 0, (), STAMP)}


def test_other_password_ends_the_one_before_at_once(catalog: Catalog) -> None:
    run(catalog, put_user())
    assert run(catalog, put_user(password=2)) == Changed(True)
    assert catalog.access.users["alice"].keys == (keys(2),)


def test_password_before_stays_valid_for_an_overlap_and_no_third_one(catalog: Catalog) -> None:
    run(catalog, put_user())
    assert run(catalog, put_user(password=2, old_until_ms=900)) == Changed(True)
    assert catalog.access.users["alice"].keys == (keys(2), keys(1, 900))
    assert run(catalog, put_user(password=3, old_until_ms=950)) == Changed(True)
    assert catalog.access.users["alice"].keys == (keys(3), keys(2, 950))


def test_password_can_be_taken_away(catalog: Catalog) -> None:
    run(catalog, put_user())
    run(catalog, put_token())
    assert run(catalog, PutUser("alice")) == Changed(True)
    assert catalog.access.users["alice"].keys == ()
    assert len(catalog.access.tokens) == 1


def test_user_that_changes_keeps_the_time_of_its_creation(catalog: Catalog) -> None:
    state = catalog.access
    state.apply(put_user(), index=1, now=10)
    state.apply(put_user(password=2), index=2, now=20)
    assert state.users["alice"].created == 10


@pytest.mark.parametrize(
    "command",
    [
        put_user(old_until_ms=900),
        put_user("bob", old_until_ms=900),
        put_user("carol", old_until_ms=900),
        put_user("carol", 2, old_until_ms=900, salt=b"", iterations=0),
        put_user("dave", 2, old_until_ms=900, salt=bytes(16)),
        put_user("dave", 2, old_until_ms=900, iterations=5000),
        PutUser("bob", old_until_ms=900),
        PutUser("dave", old_until_ms=900),
    ],
)
def test_overlap_needs_a_password_before_with_the_same_salt_and_rounds(
    catalog: Catalog, command: PutUser
) -> None:
    # Bob acts by tokens, and alice and carol do not exist.
    run(catalog, PutUser("bob"))
    run(catalog, put_user("dave"))
    before = catalog.access.dump()
    assert reason(run(catalog, command)) is Reason.BAD_ARGUMENT
    assert catalog.access.dump() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "*"},
        {"name": "al ice"},
        {"name": "\u00e4lice"},
        {"name": "x" * 128},
        {"salt": bytes(15)},
        {"salt": bytes(65)},
        {"salt": b""},
        {"salt": b"", "iterations": 0},
        {"salt": b"", "stored_key": b"", "server_key": b""},
        {"iterations": ITERATIONS_MIN - 1},
        {"iterations": ITERATIONS_MAX + 1},
        {"iterations": -4096},
        {"stored_key": bytes(31)},
        {"server_key": b""},
        {"stored_key": b"", "server_key": b""},
    ],
)
def test_user_that_cannot_be_is_refused(catalog: Catalog, wrong: dict[str, Any]) -> None:
    assert reason(run(catalog, put_user(**wrong))) is Reason.BAD_ARGUMENT
    assert catalog.access.dump() == AccessState().dump()


@pytest.mark.parametrize(
    "right",
    [
        {"salt": bytes(16)},
        {"salt": bytes(64)},
        {"iterations": ITERATIONS_MIN},
        {"iterations": ITERATIONS_MAX},
        {"name": "x" * 127},
    ],
)
def test_bounds_of_a_user_are_within_the_range(catalog: Catalog, right: dict[str, Any]) -> None:
    assert run(catalog, put_user(**right)) == Changed(True)


def test_dropped_user_takes_its_tokens_and_rules_along(catalog: Catalog) -> None:
    fill(catalog)
    assert run(catalog, DropUser("alice")) == Changed(True)
    assert set(catalog.access.users) == {"bob"}
    assert [token.user for token in catalog.access.tokens.values()] == ["bob"]
    assert {rule.user for rule in catalog.access.rules} == {"*", "bob"}
    version = catalog.access.version
    assert run(catalog, DropUser("alice")) == Changed(False)
    assert catalog.access.version == version
    # A later user of that name begins with nothing.
    run(catalog, put_user())
    verdict = catalog.access.rules.judge("alice", Act(Operation.READ, Resource.TOPIC, "orders"))
    assert not verdict.is_allowed


def test_rules_of_a_user_that_only_certificates_name_are_dropped_with_it(catalog: Catalog) -> None:
    run(catalog, PutRule(READ))
    assert run(catalog, DropUser("alice")) == Changed(True)
    assert len(catalog.access.rules) == 0


def test_first_seed_that_a_node_drew_stays(catalog: Catalog) -> None:
    seed = bytes(range(32))
    run(catalog, PutUser("bob", seed=seed))
    for command in (PutUser("alice", seed=bytes(32)), DropUser("alice"), DropUser("bob")):
        run(catalog, command)
        assert catalog.access.seed == seed
    assert Catalog.restore(catalog.snapshot()).access.seed == seed


# Tokens


def test_token_is_kept_with_its_digest_until_it_is_dropped(catalog: Catalog) -> None:
    run(catalog, PutUser("alice"))
    command = put_token(until_ms=900, note="the nightly job")
    assert run(catalog, command) == Changed(True)
    token = Token(f"{1:016x}", "alice", bytes([1]) * 32, 900, STAMP, "the nightly job")
    assert catalog.access.tokens == {token.id: token}
    for is_there in (True, False):
        assert run(catalog, DropToken(token.id)) == Changed(is_there)
    assert catalog.access.tokens == {}


def test_token_of_an_unknown_user_is_refused(catalog: Catalog) -> None:
    assert reason(run(catalog, put_token())) is Reason.UNKNOWN_USER
    run(catalog, PutRule(READ))
    assert reason(run(catalog, put_token())) is Reason.UNKNOWN_USER
    assert catalog.access.tokens == {}


def test_public_part_belongs_to_one_token(catalog: Catalog) -> None:
    fill(catalog)
    before = catalog.access.dump()
    assert reason(run(catalog, put_token(1, "bob"))) is Reason.BAD_ARGUMENT
    assert catalog.access.dump() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "a" * 15},
        {"id": "a" * 17},
        {"id": "a_b" + "a" * 13},
        {"digest": b""},
        {"digest": bytes(33)},
        {"note": "x" * 201},
    ],
)
def test_token_that_cannot_be_is_refused(catalog: Catalog, wrong: dict[str, Any]) -> None:
    run(catalog, put_user())
    assert reason(run(catalog, put_token(**wrong))) is Reason.BAD_ARGUMENT
    assert catalog.access.tokens == {}


# Rules


def test_rule_is_kept_until_it_is_dropped(catalog: Catalog) -> None:
    for is_new in (True, False):
        assert run(catalog, PutRule(READ)) == Changed(is_new)
    assert list(catalog.access.rules) == [READ]
    assert run(catalog, DropRule(DENY)) == Changed(False)
    for is_there in (True, False):
        assert run(catalog, DropRule(READ)) == Changed(is_there)
    assert len(catalog.access.rules) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": ""},
        {"user": "**"},
        {"user": "al ice"},
        {"name": ""},
        {"name": "*"},
        {"name": "orders*"},
        {"name": "-x", "is_prefix": True},
        {"name": "x" * 128},
        {"resource": Resource.CLUSTER},
        {"resource": Resource.CLUSTER, "name": "", "is_prefix": True},
        {"resource": Resource.CLUSTER, "name": "", "operation": Operation.WRITE},
        {"resource": Resource.CLUSTER, "name": "", "operation": Operation.POP},
        {"resource": Resource.GROUP, "operation": Operation.POP},
    ],
)
def test_rule_that_cannot_be_is_refused(catalog: Catalog, wrong: dict[str, Any]) -> None:
    rule = msgspec.structs.replace(READ, **wrong)
    assert reason(run(catalog, PutRule(rule))) is Reason.BAD_ARGUMENT
    assert run(catalog, DropRule(rule)) == Changed(False)
    assert catalog.access.dump() == AccessState().dump()


@pytest.mark.parametrize(
    "right",
    [
        {"user": "*"},
        {"name": "", "is_prefix": True},
        {"name": "o", "is_prefix": True, "is_allowed": False},
        {"operation": Operation.POP},
        {"resource": Resource.CLUSTER, "name": ""},
        {"resource": Resource.GROUP, "operation": Operation.ANY},
    ],
)
def test_rule_that_can_be_is_kept(catalog: Catalog, right: dict[str, Any]) -> None:
    rule = msgspec.structs.replace(READ, **right)
    assert run(catalog, PutRule(rule)) == Changed(True)
    assert list(catalog.access.rules) == [rule]


# Bounds


def test_users_are_bounded_and_those_that_exist_still_change(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "USERS_MAX", 2)
    run(catalog, put_user())
    run(catalog, put_user("bob"))
    assert reason(run(catalog, put_user("carol"))) is Reason.BAD_ARGUMENT
    assert run(catalog, put_user(password=2, old_until_ms=900)) == Changed(True)
    assert run(catalog, put_user("bob")) == Changed(False)
    run(catalog, DropUser("bob"))
    assert run(catalog, put_user("carol")) == Changed(True)


@pytest.mark.parametrize("limit", ["TOKENS_MAX", "USER_TOKENS_MAX"])
def test_tokens_are_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(access, limit, 2)
    run(catalog, put_user())
    run(catalog, put_token(1))
    run(catalog, put_token(2))
    assert reason(run(catalog, put_token(3))) is Reason.BAD_ARGUMENT
    run(catalog, DropToken(f"{1:016x}"))
    assert run(catalog, put_token(3)) == Changed(True)


def test_tokens_of_a_user_are_counted_through_drops_and_snapshots(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "USER_TOKENS_MAX", 2)
    fill(catalog)  # alice has two, bob has one
    restored = Catalog.restore(catalog.snapshot())
    for each in (catalog, restored):
        assert reason(run(each, put_token(4))) is Reason.BAD_ARGUMENT
        assert run(each, put_token(5, "bob")) == Changed(True)
        assert run(each, DropToken(f"{1:016x}")) == Changed(True)
        assert run(each, DropToken(f"{1:016x}")) == Changed(False)
        assert run(each, put_token(4)) == Changed(True)
        run(each, DropUser("alice"))
        run(each, put_user())
        assert run(each, put_token(6)) == Changed(True)
        assert run(each, put_token(7)) == Changed(True)
        assert reason(run(each, put_token(8))) is Reason.BAD_ARGUMENT
    assert restored.access.dump() == catalog.access.dump()


def test_rules_are_bounded_and_one_that_is_there_may_be_put_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "RULES_MAX", 2)
    run(catalog, PutRule(READ))
    run(catalog, PutRule(DENY))
    assert reason(run(catalog, PutRule(EVERY))) is Reason.BAD_ARGUMENT
    run(catalog, DropRule(DENY))
    assert run(catalog, PutRule(EVERY)) == Changed(True)
    # As a topic that exists may be created again when there are TOPICS_MAX.
    assert run(catalog, PutRule(EVERY)) == Changed(False)


# Repeats, versions and snapshots


@pytest.mark.parametrize(
    "command",
    [
        put_user("carol"),
        put_user(password=2),
        put_user(password=2, old_until_ms=900),
        DropUser("bob"),
        put_token(9),
        DropToken(f"{1:016x}"),
        PutRule(msgspec.structs.replace(READ, name="other")),
        DropRule(READ),
    ],
)
def test_repeat_changes_nothing_and_is_answered_alike(
    catalog: Catalog, command: AccessCommand
) -> None:
    fill(catalog)
    assert run(catalog, Once(7, command)) == Changed(True)
    after, version = kept(catalog), catalog.access.version
    assert version == catalog.applied
    catalog = Catalog.restore(catalog.snapshot())
    assert run(catalog, Once(7, command)) == Changed(True)
    assert (kept(catalog), catalog.access.version) == (after, version)


def test_refused_change_may_be_carried_out_when_it_comes_again(catalog: Catalog) -> None:
    once = Once(7, put_token())
    assert reason(run(catalog, once)) is Reason.UNKNOWN_USER
    run(catalog, put_user())
    assert run(catalog, once) == run(catalog, once) == Changed(True)


def test_repeat_does_not_bring_a_revoked_token_back(catalog: Catalog) -> None:
    run(catalog, put_user())
    run(catalog, Once(7, put_token()))
    run(catalog, Once(8, DropToken(f"{1:016x}")))
    assert run(catalog, Once(7, put_token())) == Changed(True)
    assert catalog.access.tokens == {}


def test_version_rises_with_changes_alone(catalog: Catalog) -> None:
    fill(catalog)
    version = catalog.access.version
    for command in (
        put_user(),
        put_user("carol", iterations=1),
        put_user("carol", old_until_ms=900),
        put_token(),
        put_token(4, "nobody"),
        DropUser("nobody"),
        DropToken("none"),
        PutRule(READ),
        PutRule(msgspec.structs.replace(READ, name="*")),
        DropRule(msgspec.structs.replace(READ, name="none")),
        CreateTopic("orders", 1),
    ):
        result = run(catalog, command)
        assert isinstance(result, Refused) or result == Changed(False), command
        assert catalog.access.version == version, command
    run(catalog, DropRule(READ))
    assert catalog.access.version == catalog.applied > version


def test_several_commands_of_one_record_have_its_index(catalog: Catalog) -> None:
    payload = encode_commands([put_user(), PutRule(READ), PutRule(READ)])
    record = encode_record(payload, index=1, term=1, kind=Kind.COMMANDS, timestamp=5, chain=0)
    assert catalog.apply(record) == [Changed(True), Changed(True), Changed(False)]
    assert catalog.access.version == 1


def test_snapshot_restores_users_tokens_and_rules(catalog: Catalog) -> None:
    fill(catalog)
    run(catalog, put_user(password=2, old_until_ms=900))
    twin = Catalog.restore(catalog.snapshot())
    assert twin.snapshot() == catalog.snapshot()
    assert twin.access.users == catalog.access.users
    assert twin.access.tokens == catalog.access.tokens
    assert list(twin.access.rules) == list(catalog.access.rules)
    for command in (
        put_user(password=3, old_until_ms=950),
        put_token(1),
        put_token(8),
        PutRule(READ),
        DropRule(DENY),
        DropUser("bob"),
    ):
        assert run(twin, command) == run(catalog, command)
        assert twin.snapshot() == catalog.snapshot()


def test_order_of_changes_leaves_no_trace_in_a_snapshot() -> None:
    commands: list[AccessCommand] = [
        put_user(),
        put_user("bob"),
        put_token(1),
        put_token(2, "bob"),
    ]
    rules: list[AccessCommand] = [PutRule(READ), PutRule(DENY), PutRule(EVERY)]
    dumps = []
    for order in (commands + rules, rules[::-1] + commands[1::-1] + commands[:1:-1]):
        state = AccessState()
        state.seed = bytes(32)
        for index, command in enumerate(order, 1):
            assert state.apply(command, index=index, now=5) == Changed(True)
        dumps.append(state.dump())
    assert dumps[0] == dumps[1]


def test_snapshot_of_state_9_is_read_and_has_no_users(catalog: Catalog) -> None:
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=1, replicas=1))
    version, *state = cbor2.loads(catalog.snapshot())
    assert version == 11
    older = Catalog.restore(cbor2.dumps([9, *state[:-2]]))
    assert older.access.dump() == AccessState().dump()
    assert older.snapshot() == catalog.snapshot()
    assert run(older, put_user()) == Changed(True)


def test_snapshot_that_software_of_state_9_wrote_goes_on() -> None:
    # Written by that software: a topic, a filter, a consumer group, members, and a repeat.
    state = (GOLDEN / "catalog-state-9.snapshot").read_bytes()
    version, *before = cbor2.loads(state)
    assert version == 9
    catalog = Catalog.restore(state)
    _, *after = cbor2.loads(catalog.snapshot())
    # Topics and consumer groups have owners since.
    for owned in (before[6], before[8][2]):
        for each in owned:
            each.append("")
    assert after[:-3] == before
    assert catalog.access.dump() == AccessState().dump()
    assert (catalog.topics["orders"].id, catalog.applied) == (1, before[0])
    assert run(catalog, Once(7, CreateTopic("orders", 8))) == Changed(1)
    fill(catalog)
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


# Any command

ANY_NUMBER = st.integers(-(2**64), 2**64 - 1)


def mostly(usual: list[Any], rare: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values that are accepted more often than not, so that some commands get through."""
    common = st.sampled_from(usual)
    return st.integers(0, 9).flatmap(lambda n: common if n else rare)


names = mostly(["alice", "bob"], st.sampled_from(["*", "x y", "-"]) | TEXTS)
key_bytes = mostly([bytes(32), b"\1" * 32], st.binary(max_size=70))
commands_drawn = st.lists(
    values(
        AccessCommand,
        name=names,
        user=names,
        id=mostly(["a" * 16, "b" * 16], TEXTS),
        salt=mostly([SALT], st.binary(max_size=70)),
        stored_key=key_bytes,
        server_key=key_bytes,
        digest=key_bytes,
        iterations=mostly([4096], ANY_NUMBER),
        old_until_ms=mostly([0], ANY_NUMBER),
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(commands_drawn)
def test_any_command_is_carried_out_or_refused(commands: list[AccessCommand]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("USERS_MAX", "TOKENS_MAX", "RULES_MAX"):
            patch.setattr(access, limit, 3)
        catalog = Catalog()
        for command in commands:
            assert parse_command(msgspec.to_builtins(command, builtin_types=(bytes,))) == command
            before, version = kept(catalog), catalog.access.version
            result = run(catalog, command)
            check(catalog)
            if result == Changed(True):
                assert catalog.access.version == catalog.applied
                assert kept(catalog) != before
            else:
                assert isinstance(result, Refused) or result == Changed(False)
                assert (kept(catalog), catalog.access.version) == (before, version)


def check(catalog: Catalog) -> None:
    """What holds after each record."""
    state = catalog.access
    assert all(token.user in state.users for token in state.tokens.values())
    assert max(len(state.users), len(state.tokens), len(state.rules)) <= 3
    for user in state.users.values():
        assert bool(user.keys) == bool(user.salt) == bool(user.iterations)
        assert all(not each.until_ms for each in user.keys[:1])
        assert len(user.keys) <= 2
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


def test_strange_commands_reach_each_answer() -> None:
    # The strategy would prove nothing if all its commands were refused.
    found: set[Any] = set()

    @settings(max_examples=300, database=None, derandomize=True)
    @given(commands_drawn)
    def play(commands: list[AccessCommand]) -> None:
        catalog = Catalog()
        for command in commands:
            result = run(catalog, command)
            what = result.value if isinstance(result, Changed) else reason(result)
            found.add((type(command), what))

    play()
    for command in (PutUser, PutToken, PutRule):
        assert {(command, True), (command, Reason.BAD_ARGUMENT)} <= found
    assert (PutToken, Reason.UNKNOWN_USER) in found
