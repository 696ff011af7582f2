"""Passwords by SCRAM-SHA-256: the two ends with each other, and with ends that talk nonsense."""

from base64 import b64decode, b64encode
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scramp.core import Nonce

from raftmq.access.scram import BadLogin, ClientExchange, NodeExchange, StoredKeys, make_keys

from .structs import STRANGE_TEXTS

ROUNDS = 4096
SALT = bytes(range(16))
KEYS = make_keys("pencil", SALT, ROUNDS)

plain_texts, texts = st.text(), STRANGE_TEXTS
PIECES = ["n", "y", "p=tls-unique", ",", ",,", "n=", "user", "r=", "abc", "x=", "=2C", "m=", "a=b"]
nearly_firsts = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def exchange(client: ClientExchange, keys: list[StoredKeys]) -> StoredKeys:
    """A whole exchange with a node that knows these keys; the keys that were proved."""
    node = NodeExchange(client.first)
    found, last = node.verify(client.final(node.challenge(SALT, ROUNDS, keys, "node")))
    client.check(last)
    return found


def told(first: str, *finals: str) -> None:
    """Send messages to a node: each is accepted, or refused as a bad login."""
    with suppress(BadLogin):
        node = NodeExchange(first)
        node.challenge(SALT, ROUNDS, [KEYS], "node")
        for final in finals:
            node.verify(final)


def nonce_of(first: str) -> str:
    return first.partition(",r=")[2]


def test_exchange_is_that_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    # RFC 7677 §3: the username is "user", the password "pencil".
    monkeypatch.setattr(Nonce, "create", lambda: Nonce("rOprNGfwEbeRWgbNEkqO"))
    client = ClientExchange("user", "pencil")
    assert client.first == "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = make_keys("pencil", salt, 4096)
    node = NodeExchange(client.first)
    assert node.user == "user"
    challenge = node.challenge(salt, 4096, [keys], "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert challenge == (
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(challenge)
    assert final == (
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert node.verify(final) == (keys, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    client.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@settings(max_examples=25)
@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True), plain_texts)
def test_password_that_can_have_keys_proves_itself(user: str, password: str) -> None:
    try:
        keys = make_keys(password, SALT, ROUNDS)
    except ValueError:
        with pytest.raises(ValueError, match="no such login is allowed"):
            ClientExchange(user, password)
        return
    client = ClientExchange(user, password)
    assert NodeExchange(client.first).user == user
    assert exchange(client, [keys]) == keys


@settings(max_examples=25)
@given(plain_texts)
def test_wrong_password_is_refused(password: str) -> None:
    try:
        client = ClientExchange("user", password)
        keys = make_keys(password, SALT, ROUNDS)
    except ValueError:
        return
    if keys != KEYS:
        with pytest.raises(BadLogin, match="the proof is wrong"):
            exchange(client, [KEYS])


def test_each_of_two_passwords_with_one_salt_is_told_apart() -> None:
    older = make_keys("crayon", SALT, ROUNDS)
    for password, keys in (("pencil", KEYS), ("crayon", older)):
        assert exchange(ClientExchange("user", password), [KEYS, older]) == keys
    with pytest.raises(BadLogin):
        exchange(ClientExchange("user", "eraser"), [KEYS, older])
    with pytest.raises(BadLogin):
        exchange(ClientExchange("user", "crayon"), [KEYS])


def test_proof_of_one_exchange_is_worth_nothing_in_another() -> None:
    client = ClientExchange("user", "pencil")
    final = client.final(NodeExchange(client.first).challenge(SALT, ROUNDS, [KEYS], "node"))
    again = NodeExchange(client.first)
    again.challenge(SALT, ROUNDS, [KEYS], "other")
    with pytest.raises(BadLogin):
        again.verify(final)
    with pytest.raises(BadLogin):
        again.verify(final.replace("node", "other"))


def test_client_refuses_a_node_that_does_not_know_the_keys() -> None:
    # Such a node lets every proof pass, and cannot sign its answer.
    half = StoredKeys(KEYS.stored_key, bytes(32))
    with pytest.raises(BadLogin):
        exchange(ClientExchange("user", "pencil"), [half])
    for last in ("", "v=", "v=AAAA", "e=other-error", "e=\ud800", "v=" + "A" * 44):
        client = ClientExchange("user", "pencil")
        client.final(NodeExchange(client.first).challenge(SALT, ROUNDS, [KEYS], "node"))
        with pytest.raises(BadLogin):
            client.check(last)


@pytest.mark.parametrize(
    "first",
    [
        "",
        ",,,",
        "user",
        "n,,",
        "n,,n=user",
        "n,,n=user,r=",
        "n,,n=,r=abc",
        "n,,r=abc,n=user",
        "n,,r=abc",
        "n,,n=user,r=a b",
        "n,,n=user,r=abc,r=abc",
        "n,,n=user,r=abc,",
        "n,,n=us=er,r=abc",
        "n,,n=us\ud800er,r=abc",
        "n,,n=us\x00er,r=abc",
        "n,,n=user,r=\ud800",
        "n,,m=more,n=user,r=abc",
        # An identity to act as.
        "n,a=root,n=user,r=abc",
        # Channel binding, and a client that thinks the node has none.
        "y,,n=user,r=abc",
        "p=tls-unique,,n=user,r=abc",
        "p=tls-server-end-point,,n=user,r=abc",
        "p=tls-exporter,,n=user,r=abc",
        "p,,n=user,r=abc",
        "N,,n=user,r=abc",
    ],
)
def test_first_message_that_makes_no_sense_is_a_bad_login(first: str) -> None:
    with pytest.raises(BadLogin):
        NodeExchange(first).challenge(SALT, ROUNDS, [KEYS], "node")


@given(texts | nearly_firsts | texts.map("n,,n=user,r={}".format))
def test_no_first_message_breaks_a_node(first: str) -> None:
    told(first)


extensions = plain_texts.map("c=biws,r=abcnode,x={},p=AAAA".format)
proofs = st.binary(max_size=40).map(lambda p: f"c=biws,r=abcnode,p={b64encode(p).decode()}")


@example("c=biws,r=abcnode,p=\u0661")
@example("c=\ud800,r=abcnode,p=AAAA")
@given(texts | texts.map("c={},r=abcnode,p=AAAA".format) | extensions | proofs)
def test_no_final_message_breaks_a_node(final: str) -> None:
    told("n,,n=user,r=abc", final)


@example("\ud800")
@given(texts)
def test_extensions_that_utf_8_cannot_carry_are_a_bad_login(text: str) -> None:
    told("n,,n=user,r=abc", f"c=biws,r=abcnode,x={text},p=AAAA")
    told(f"n,,n=user,r=abc,x={text}", "c=biws,r=abcnode,p=AAAA")


ROUNDS_TOLD = ["4096", "4095", "0", "-1", "04096", "1" + "0" * 9, "9" * 5000, "x", "\u0664" * 4, ""]
salts = st.sampled_from(["AAAAAAAAAAAAAAAA", "AAAA", "!", "\u0661", ""])
challenges = st.tuples(salts, st.sampled_from(ROUNDS_TOLD), plain_texts)


def final_of(challenge: str, client: ClientExchange) -> None:
    """A client reads a challenge: the challenge is accepted, or refused as a bad login."""
    with suppress(BadLogin):
        client.final(challenge)


@given(texts)
def test_no_challenge_breaks_a_client(challenge: str) -> None:
    final_of(challenge, ClientExchange("user", "pencil"))


@settings(max_examples=50)
@given(challenges)
def test_no_challenge_with_the_right_nonce_breaks_a_client(parts: tuple[str, str, str]) -> None:
    salt, rounds, more = parts
    for end in ("", f",x={more}"):
        client = ClientExchange("user", "pencil")
        final_of(f"r={nonce_of(client.first)}node,s={salt},i={rounds}{end}", client)


def test_challenge_that_utf_8_cannot_carry_is_a_bad_login() -> None:
    client = ClientExchange("user", "pencil")
    challenge = f"r={nonce_of(client.first)}node,s=AAAAAAAAAAAAAAAA,i=4096,x=\ud800"
    with pytest.raises(BadLogin):
        client.final(challenge)


@given(texts)
def test_no_last_message_breaks_a_client(last: str) -> None:
    client = ClientExchange("user", "pencil")
    client.final(f"r={nonce_of(client.first)}node,s=AAAAAAAAAAAAAAAA,i=4096")
    with pytest.raises(BadLogin):
        client.check(last)


@pytest.mark.parametrize("bad", ["\x07", "\ud800", "\u0221", "\ue000", "\u2028"])
def test_password_that_saslprep_forbids_is_refused_without_being_shown(bad: str) -> None:
    for refuse in (
        lambda text: make_keys(text, SALT, ROUNDS),
        lambda text: ClientExchange("user", text),
    ):
        with pytest.raises(ValueError, match=r"no such \w+ is allowed") as error:
            refuse(f"pencil{bad}")
        assert "pencil" not in str(error.value)


def test_spellings_of_one_password_have_the_same_keys() -> None:
    # RFC 4013: normal form KC, spaces of any kind as one kind, soft hyphens left out.
    one, other = "p\u00e9n cil", "pe\u0301n\u00a0c\u00adil"
    assert make_keys(one, SALT, ROUNDS) == make_keys(other, SALT, ROUNDS)
