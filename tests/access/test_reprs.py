"""No secret, and no key made of one, is in the `repr` of a value: errors and logs show those."""

from typing import Any

import msgspec
import pytest

import raftmq
from raftmq.access.scram import StoredKeys, make_keys
from raftmq.access.tokens import digest_of, draw_token, parts_of
from raftmq.broker.access.logins import Identity
from raftmq.client.login import read_login
from raftmq.errors import Rejected
from raftmq.machine.catalog.access import Keys, PutToken, PutUser, Token, User
from raftmq.machine.catalog.catalog import Once
from raftmq.wire.access import LogIn
from raftmq.wire.messages import Admin

PASSWORD = "correct horse battery"
TOKEN = draw_token(b"\x01" * 8, b"\xfe" * 32)
DIGEST = digest_of(parts_of(TOKEN)[1])
KEYS = make_keys(PASSWORD, bytes(16), 4096)
SECRETS = [
    PASSWORD,
    parts_of(TOKEN)[1],
    *(form for key in (DIGEST, *KEYS) for form in (repr(key)[2:-1], key.hex())),
]
PUT_USER = PutUser("alice", bytes(16), 4096, *KEYS)
PUT_TOKEN = PutToken("alice", "a" * 16, DIGEST)


def plain(command: msgspec.Struct) -> list[Any]:
    found: list[Any] = msgspec.to_builtins(command, builtin_types=(bytes,))
    return found


@pytest.mark.parametrize(
    "value",
    [
        raftmq.Login("alice", PASSWORD),
        raftmq.Login(token=TOKEN),
        Identity("alice", stored_key=KEYS.stored_key),
        StoredKeys(*KEYS),
        LogIn("token", TOKEN),
        PUT_USER,
        PUT_TOKEN,
        Once(7, PUT_USER),
        Admin.of(PUT_USER),
        Admin.of(Once(7, PUT_TOKEN)),
        Keys(*KEYS),
        User("alice", bytes(16), 4096, (Keys(*KEYS),), 0),
        Token("a" * 16, "alice", DIGEST, 0, 0, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_does_not_show_its_secrets(value: object) -> None:
    # As a log, an error with its cause, and a failed assert would show it.
    shown = f"{value!r} {value} {[value]} {ValueError(value)!r}"
    assert [secret for secret in SECRETS if secret in shown] == []
    assert type(value).__name__ in shown


def test_a_login_file_that_cannot_be_used_is_not_quoted(tmp_path: Any) -> None:
    for text in (f'user = "a"\npassword = "{PASSWORD}', f'user = "a"\npass = "{PASSWORD}"\n'):
        path = tmp_path / "login.toml"
        path.write_text(text)
        with pytest.raises(Rejected) as refused:
            read_login(str(path))
        error: BaseException | None = refused.value
        while error is not None:
            assert PASSWORD not in f"{error!r} {error}"
            error = error.__cause__
