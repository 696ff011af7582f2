"""Logins by password and token, and the waits after failures."""

from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftmq.access.scram import ITERATIONS, BadLogin, ClientExchange, make_keys
from raftmq.access.tokens import digest_of, draw_token, parts_of
from raftmq.broker.access import logins
from raftmq.broker.access.logins import (
    DELAY_SECONDS,
    DELAY_SECONDS_MAX,
    FORGET_SECONDS,
    Exchange,
    Failures,
    Identity,
    identity_by_token,
    is_valid,
)
from raftmq.machine.catalog.access import (
    AccessState,
    DropToken,
    DropUser,
    PutToken,
    PutUser,
)
from raftmq.results import Changed
from tests.access.structs import STRANGE_TEXTS

# Failures


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock) -> Failures:
    return Failures(clock)


def attempt(
    failures: Failures, clock: Clock, name: str = "alice", address: str = "10.0.0.1"
) -> float:
    """An attempt that fails as soon as it is checked; the seconds that it waited."""
    seconds = failures.take_turn(address, name)
    clock.now += seconds
    failures.failed(address, name)
    return seconds


def test_waits_double_up_to_the_longest(failures: Failures, clock: Clock) -> None:
    waits = [attempt(failures, clock) for _ in range(20)]
    assert waits[0] == 0.0
    assert waits[1] == pytest.approx(DELAY_SECONDS)
    for before, after in pairwise(waits[1:]):
        assert after == pytest.approx(min(2 * before, DELAY_SECONDS_MAX))
    assert waits[-1] == pytest.approx(DELAY_SECONDS_MAX)
    assert failures.count == 20


def test_longest_wait_stays_after_thousands_of_failures(failures: Failures, clock: Clock) -> None:
    waits = [attempt(failures, clock) for _ in range(3000)]
    assert waits[-1] == pytest.approx(DELAY_SECONDS_MAX)


def test_attempt_after_the_wait_is_over_is_checked_at_once(
    failures: Failures, clock: Clock
) -> None:
    attempt(failures, clock)
    clock.now += DELAY_SECONDS
    assert failures.take_turn("10.0.0.1", "alice") == 0.0


def test_other_names_and_addresses_do_not_wait(failures: Failures, clock: Clock) -> None:
    for _ in range(5):
        attempt(failures, clock)
    assert failures.take_turn("10.0.0.2", "alice") == 0.0
    assert failures.take_turn("10.0.0.1", "bob") == 0.0
    assert failures.take_turn("10.0.0.1", "alice") > 1.0


def test_attempts_at_one_time_stand_in_a_queue(failures: Failures) -> None:
    failures.failed("a", "alice")
    waits = [failures.take_turn("a", "alice") for _ in range(4)]
    assert waits == pytest.approx([DELAY_SECONDS * n for n in (1, 2, 3, 4)])


def test_success_clears_the_wait_of_its_name_and_address(failures: Failures, clock: Clock) -> None:
    for name in ("alice", "bob"):
        for _ in range(5):
            attempt(failures, clock, name)
    failures.succeeded("10.0.0.1", "alice")
    failures.succeeded("10.0.0.9", "bob")
    assert failures.take_turn("10.0.0.1", "alice") == 0.0
    assert failures.take_turn("10.0.0.1", "bob") > 1.0
    # The next failure is a first one.
    failures.failed("10.0.0.1", "alice")
    assert failures.take_turn("10.0.0.1", "alice") == pytest.approx(DELAY_SECONDS)


def test_failures_are_forgotten_after_a_time_without_one(failures: Failures, clock: Clock) -> None:
    for _ in range(5):
        attempt(failures, clock)
    clock.now += FORGET_SECONDS - 1
    assert attempt(failures, clock) == 0.0
    assert failures.take_turn("10.0.0.1", "alice") == pytest.approx(DELAY_SECONDS_MAX)
    clock.now += 3 * DELAY_SECONDS_MAX + FORGET_SECONDS
    assert attempt(failures, clock) == 0.0
    assert failures.take_turn("10.0.0.1", "alice") == pytest.approx(DELAY_SECONDS)


def test_names_with_failures_are_bounded_and_the_oldest_goes_first(
    failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "FAILURES_MAX", 3)
    # The failure of `one` after the others makes `two` the oldest.
    for name in ("one", "two", "three", "one", "four"):
        failures.failed("a", name)
    assert len(failures._of) == 3
    assert failures.take_turn("a", "two") == 0.0
    assert failures.take_turn("a", "one") == pytest.approx(2 * DELAY_SECONDS)
    for name in ("three", "four"):
        assert failures.take_turn("a", name) == pytest.approx(DELAY_SECONDS)


def test_made_up_names_of_an_address_share_a_line_and_push_no_other_name_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logins, "ADDRESS_NAMES_MAX", 2)
    clock = Clock()
    failures = Failures(clock)
    for name in ("alice", "bob", *(f"nobody{n}" for n in range(20))):
        failures.failed("a", name)
    assert len(failures._of) == 3
    assert failures.take_turn("a", "alice") == pytest.approx(DELAY_SECONDS)
    assert failures.take_turn("a", "another") == pytest.approx(DELAY_SECONDS_MAX)
    assert failures.take_turn("b", "another") == 0.0
    for name in ("alice", "bob", ""):
        failures.succeeded("a", name)
    assert not failures._of
    assert not failures._names


def checked_at(gaps: list[float]) -> list[float]:
    """When attempts are checked that come after these gaps and all fail; some get no turn."""
    clock, times = Clock(), list[float]()
    failures, waiting = Failures(clock), list[float]()

    def check(now: float) -> None:
        clock.now = now
        times.append(now)
        failures.failed("a", "alice")

    for gap in gaps:
        arrives = clock.now + gap
        while waiting and waiting[0] <= arrives:
            check(heappop(waiting))
        clock.now = arrives
        seconds = failures.take_turn("a", "alice")
        if seconds <= 0:
            check(arrives)
        elif seconds <= DELAY_SECONDS_MAX:
            heappush(waiting, arrives + seconds)
    while waiting:
        check(heappop(waiting))
    return times


# Three attempts wait when the first of them fails, and another comes.
@example([0.0, 0.0, 0.0, 0.0, DELAY_SECONDS])
@given(st.lists(st.floats(0.0, 2.0), max_size=30))
def test_failed_attempts_are_never_checked_closer_than_the_first_wait(gaps: list[float]) -> None:
    times = checked_at(gaps)
    assert bool(times) == bool(gaps)
    for before, after in pairwise(times):
        assert after - before >= DELAY_SECONDS - 1e-9, times


# Passwords


SALT, ROUNDS = bytes(range(16)), 4096
KEYS = make_keys("pencil", SALT, ROUNDS)
OLDER = make_keys("crayon", SALT, ROUNDS)


class Talk(NamedTuple):
    """An exchange, from the client's side."""

    challenge: str
    identity: Identity | None
    """None: refused."""


def talk(
    access: AccessState, user: str, password: str, *, now_ms: int = 0, nonce: str = "node"
) -> Talk:
    client = ClientExchange(user, password)
    exchange = Exchange(client.first, access, nonce=nonce, now_ms=now_ms)
    try:
        identity, last = exchange.verify(client.final(exchange.challenge))
    except BadLogin:
        return Talk(exchange.challenge, None)
    client.check(last)
    return Talk(exchange.challenge, identity)


def told(challenge: str) -> dict[str, str]:
    """The attributes of a challenge: r, the nonce; s, the salt; i, the rounds."""
    return dict(part.split("=", 1) for part in challenge.split(","))


def apply(access: AccessState, *commands: PutUser | PutToken | DropUser | DropToken) -> None:
    for command in commands:
        assert access.apply(command, index=access.version + 1, now=5) == Changed(True)


@pytest.fixture
def access() -> AccessState:
    access = AccessState()
    apply(access, PutUser("alice", SALT, ROUNDS, *KEYS), PutUser("robot"))
    return access


def test_password_gives_a_login_with_its_key(access: AccessState) -> None:
    identity = talk(access, "alice", "pencil").identity
    assert identity == Identity("alice", stored_key=KEYS.stored_key)


def test_wrong_password_gives_none(access: AccessState) -> None:
    assert talk(access, "alice", "eraser").identity is None


def test_challenge_has_the_salt_and_rounds_of_a_known_user(access: AccessState) -> None:
    found = told(talk(access, "alice", "pencil", nonce="mine").challenge)
    assert (found["s"], found["i"]) == ("AAECAwQFBgcICQoLDA0ODw==", "4096")
    assert found["r"].endswith("mine")


@pytest.mark.parametrize("name", ["nobody", "robot"])
def test_user_without_a_password_is_challenged_like_one_that_has_one(
    access: AccessState, name: str
) -> None:
    # As `Access.put_user` makes one.
    usual = make_keys("pencil", SALT, ITERATIONS)
    apply(access, PutUser("usual", SALT, ITERATIONS, *usual))
    known, unknown = (told(talk(access, each, "eraser").challenge) for each in ("usual", name))
    assert known["i"] == unknown["i"]
    assert {key: len(value) for key, value in known.items()} == {
        key: len(value) for key, value in unknown.items()
    }
    assert list(known) == list(unknown)


def test_unknown_user_has_one_salt_on_all_nodes_and_each_time(access: AccessState) -> None:
    other = AccessState()
    other.load(access.dump())
    salts = [
        told(Exchange(f"n,,n=nobody,r={n}", node, nonce=f"node{n}", now_ms=n).challenge)["s"]
        for n, node in enumerate((access, access, other))
    ]
    assert len(set(salts)) == 1
    apply(access, PutUser("bob", SALT, ROUNDS, *OLDER), PutUser("alice", SALT, ROUNDS, *OLDER))
    later = Exchange("n,,n=nobody,r=abc", access, nonce="node", now_ms=0)
    assert told(later.challenge)["s"] == salts[0]


def test_unknown_users_have_salts_of_their_own(access: AccessState) -> None:
    def salt(name: str, of: AccessState) -> str:
        return told(Exchange(f"n,,n={name},r=abc", of, nonce="node", now_ms=0).challenge)["s"]

    assert len({salt(f"nobody{n}", access) for n in range(50)}) == 50
    elsewhere = AccessState()
    apply(elsewhere, PutUser("alice", SALT, ROUNDS, *KEYS, seed=bytes(range(32))))
    assert salt("nobody", elsewhere) != salt("nobody", access)


def test_unknown_user_fails_with_every_password(access: AccessState) -> None:
    for name, password in (("nobody", "pencil"), ("robot", "pencil")):
        assert talk(access, name, password).identity is None


def test_refusals_of_known_and_unknown_users_read_alike(access: AccessState) -> None:
    texts = set()
    for name in ("alice", "nobody", "robot"):
        exchange = Exchange(f"n,,n={name},r=abc", access, nonce="node", now_ms=0)
        with pytest.raises(BadLogin) as error:
            exchange.verify("c=biws,r=abcnode,p=" + "A" * 43 + "=")
        texts.add(str(error.value))
    assert len(texts) == 1


def test_cluster_without_any_password_still_challenges() -> None:
    exchange = Exchange("n,,n=nobody,r=abc", AccessState(), nonce="node", now_ms=0)
    assert set(told(exchange.challenge)) == {"r", "s", "i"}
    with pytest.raises(BadLogin):
        exchange.verify("c=biws,r=abcnode,p=AAAA")


def test_first_message_that_makes_no_sense_is_a_bad_login(access: AccessState) -> None:
    for first in ("", "n,,n=alice", "y,,n=alice,r=abc", "n,,n=alice,r=", "n,,n=a=b,r=abc"):
        with pytest.raises(BadLogin):
            Exchange(first, access, nonce="node", now_ms=0)


def test_password_before_is_valid_until_its_overlap_ends(access: AccessState) -> None:
    apply(access, PutUser("alice", SALT, ROUNDS, *OLDER))
    apply(access, PutUser("alice", SALT, ROUNDS, *KEYS, old_until_ms=900))
    for now_ms in (0, 899, 900, 10_000):
        assert talk(access, "alice", "pencil", now_ms=now_ms).identity is not None
    for now_ms, is_valid_still in ((0, True), (899, True), (900, False), (10_000, False)):
        identity = talk(access, "alice", "crayon", now_ms=now_ms).identity
        assert identity == (
            Identity("alice", stored_key=OLDER.stored_key) if is_valid_still else None
        )


def test_dropped_user_is_challenged_as_an_unknown_one(access: AccessState) -> None:
    before = told(talk(access, "alice", "pencil").challenge)["s"]
    apply(access, DropUser("alice"))
    after = talk(access, "alice", "pencil")
    assert after.identity is None
    assert told(after.challenge)["s"] != before


# Tokens

TOKEN = draw_token(bytes(8), bytes(32))
ID, SECRET = parts_of(TOKEN)


def put_token(until_ms: int = 0) -> PutToken:
    return PutToken("robot", ID, digest_of(SECRET), until_ms)


def test_token_gives_a_login_of_its_user(access: AccessState) -> None:
    apply(access, put_token())
    assert identity_by_token(TOKEN, access, 10**15) == Identity("robot", token=ID)


def test_token_is_refused_before_it_is_made_and_after_it_is_revoked(access: AccessState) -> None:
    with pytest.raises(BadLogin):
        identity_by_token(TOKEN, access, 0)
    apply(access, put_token(), DropToken(ID))
    with pytest.raises(BadLogin):
        identity_by_token(TOKEN, access, 0)
    apply(access, put_token(), DropUser("robot"))
    with pytest.raises(BadLogin):
        identity_by_token(TOKEN, access, 0)


def test_token_is_valid_before_its_end(access: AccessState) -> None:
    apply(access, put_token(900))
    assert identity_by_token(TOKEN, access, 899) == Identity("robot", token=ID)
    for now_ms in (900, 901):
        with pytest.raises(BadLogin):
            identity_by_token(TOKEN, access, now_ms)


@given(STRANGE_TEXTS | st.text("raftmq_0A", max_size=30))
def test_text_that_is_not_the_token_is_refused_without_being_shown(text: str) -> None:
    access = AccessState()
    apply(access, PutUser("robot"), put_token())
    for each in (text, TOKEN + text, f"raftmq_{ID}_{text}", f"raftmq_{text}_{SECRET}"):
        if each != TOKEN:
            with pytest.raises(BadLogin) as error:
                identity_by_token(each, access, 0)
            assert str(error.value) == "no such token"


def test_token_of_one_id_does_not_open_another(access: AccessState) -> None:
    other = draw_token(b"\1" * 8, b"\1" * 32)
    id_, secret = parts_of(other)
    apply(access, put_token(), PutToken("alice", id_, digest_of(secret)))
    with pytest.raises(BadLogin):
        identity_by_token(f"raftmq_{ID}_{secret}", access, 0)
    assert identity_by_token(other, access, 0) == Identity("alice", token=id_)


# Logins that are open


def test_login_by_certificate_has_no_end_here(access: AccessState) -> None:
    for name in ("alice", "nobody"):
        assert Identity(name).until_ms(access) == 0
        assert is_valid(Identity(name), access, 10**15)


def test_login_by_token_ends_with_the_token(access: AccessState) -> None:
    identity = Identity("robot", token=ID)
    assert identity.until_ms(access) is None
    apply(access, put_token(900))
    assert identity.until_ms(access) == 900
    assert [is_valid(identity, access, now_ms) for now_ms in (0, 899, 900)] == [True, True, False]
    apply(access, DropToken(ID))
    assert identity.until_ms(access) is None
    assert not is_valid(identity, access, 0)


def test_login_by_password_ends_with_the_password(access: AccessState) -> None:
    identity = Identity("alice", stored_key=KEYS.stored_key)
    assert identity.until_ms(access) == 0
    apply(access, PutUser("alice", SALT, ROUNDS, *OLDER, old_until_ms=900))
    assert identity.until_ms(access) == 900
    assert [is_valid(identity, access, now_ms) for now_ms in (0, 899, 900)] == [True, True, False]
    apply(access, PutUser("alice", SALT, ROUNDS, *KEYS, old_until_ms=950))
    assert identity.until_ms(access) == 0
    apply(access, DropUser("alice"))
    assert identity.until_ms(access) is None
    assert not is_valid(identity, access, 0)


def test_password_that_is_put_again_with_an_overlap_has_no_end(access: AccessState) -> None:
    command = PutUser("alice", SALT, ROUNDS, *KEYS, old_until_ms=900)
    assert access.apply(command, index=access.version + 1, now=5) == Changed(False)
    assert Identity("alice", stored_key=KEYS.stored_key).until_ms(access) == 0
