"""The login of a client: a user's password or a token, and how a connection shows it.

A login file is TOML, for its owner's eyes only. It is read for each connection, so a program goes
on after a change of its password without a restart:

    user = "alice"
    password = "..."

or

    token = "raftmq_..."
"""

import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

import anyio.to_thread

from raftmq.access.tokens import may_hold_token, parts_of
from raftmq.errors import Reason, Rejected, WrongType
from raftmq.wire.access import SCRAM, TOKEN, LoggedIn, LogIn

from .address import tilde_hint, unknown_word

_KEYS = ("user", "password", "token")
"""The keys of a login file."""

Say = Callable[[LogIn], Awaitable[LoggedIn]]
"""Sends a message of a login, and waits for the answer."""


@dataclass(frozen=True, repr=False)
class Login:
    """A user's name and password, or a token. Neither is shown by `repr`."""

    user: str = ""
    """The user's name; empty: by token."""
    password: str = ""
    """The password; empty: by token."""
    token: str = ""
    """The token; empty: by password."""
    # The file that holds the login; empty: none does.
    _path: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        given = [bool(self.user), bool(self.password), bool(self.token)]
        if given not in ([True, True, False], [False, False, True]):
            raise _wrong("a login is either `user` and `password`, or a `token`")
        if self.token and not all(parts_of(self.token)):
            raise _wrong("this is no token: `raftmq token make USER` makes one, raftmq_ID_SECRET")

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})" if self.user else "Login(token=...)"

    def __str__(self) -> str:
        whose = f"of user {self.user!r}" if self.user else f"by token {parts_of(self.token)[0]}"
        return f"{whose} in {self._path}" if self._path else whose


Source = Callable[[], Login]
"""Gives the login for the next connection. Raises `Rejected`: `BAD_ARGUMENT`."""


def source_of(login: object, path_in_url: str) -> Source | None:
    """Where a client's login comes from; None: it has none.

    Args:
        login: a `Login`, or the path of its file; empty: as the URL says.
        path_in_url: the path in the URL; empty: none.

    Raises:
        Rejected: `BAD_ARGUMENT`, the file cannot be used.
        WrongType: the login is of another type.
    """
    if isinstance(login, Login):
        given = login
        return lambda: given
    if not isinstance(login, str | PathLike):
        # Not the value: it may hold a password.
        what = type(login).__name__
        raise WrongType(f"login is a raftmq.Login, or the path of a login file, not a {what}")
    path = fspath(login) or path_in_url
    if not path:
        return None
    if may_hold_token(path):
        # Not the text: it is a secret, and errors go to logs.
        raise _wrong("login names a file, and this is a token: give raftmq.Login(token=...)")
    read_login(path)
    return lambda: read_login(path)


def read_login(path: str) -> Login:
    """The login in a file.

    Raises:
        Rejected: `BAD_ARGUMENT`, the file is missing or holds no login; no secret is in the text.
    """
    text = ""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as error:
        why = f"{error.strerror or error}{tilde_hint(path)}"
        raise _wrong(f"the login file {path!r}: {why}") from error
    except ValueError:
        if "-----BEGIN CERTIFICATE" in text:
            raise _wrong(f"{path!r} is a certificate, no login file: name it as `cert`") from None
        # The error would quote the file's text.
        right = '`user = "NAME"` and `password = "..."`, or `token = "raftmq_..."`'
        raise _wrong(f"the login file {path!r} is no TOML: write {right}") from None
    may_hold = f"the login file {path!r} may hold `user` and `password`, or `token`"
    for key, value in found.items():
        if key not in _KEYS:
            raise _wrong(f"{may_hold}: {unknown_word(key, _KEYS)}")
        if not isinstance(value, str):
            raise _wrong(f"{may_hold}: the value of {key} is a text in quotes")
    try:
        return Login(**found, _path=path)
    except Rejected as error:
        raise _wrong(f"the login file {path!r}: {error}") from None


async def log_in(login: Login, say: Say) -> str:
    """Log in on a connection; the user's name. Cancelling leaves the connection of no use.

    Raises:
        Rejected: `UNAUTHENTICATED`, the login is wrong or has ended, or the node does not prove
            that it knows the password's keys (the cause says which). `BAD_ARGUMENT`, a name or
            password that no user can have, or access control is off in the cluster. Whatever
            `say` raises.
    """
    try:
        return await _prove(login, say)
    except Rejected as error:
        if error.reason is not Reason.UNAUTHENTICATED:
            raise
        # A node does not say more: not whether there is such a user.
        why = "it is wrong or has ended, or the user was dropped"
        message = f"the login {login} is not valid: {why}"
        raise Rejected(Reason.UNAUTHENTICATED, message) from error


async def _prove(login: Login, say: Say) -> str:
    if login.token:
        if not (user := (await say(LogIn(TOKEN, login.token))).user):
            raise _not_wanted()
        return user
    # Loaded for passwords alone: it takes a third of the time in which the client is imported.
    from raftmq.access.scram import BadLogin, ClientExchange

    try:
        exchange = ClientExchange(login.user, login.password)
    except ValueError as error:
        raise _wrong(str(error)) from None
    answer = await say(LogIn(SCRAM, exchange.first))
    if not answer.data:
        raise _not_wanted()
    try:
        # PBKDF2 takes about 40 ms.
        final = await anyio.to_thread.run_sync(exchange.final, answer.data)
        last = await say(LogIn(SCRAM, final))
        exchange.check(last.data)
    except BadLogin as error:
        message = f"the node does not prove that it knows the user: {error}"
        raise Rejected(Reason.UNAUTHENTICATED, message) from None
    return login.user


def _not_wanted() -> Rejected:
    # A process that poses as a node would say so as well.
    return _wrong("access control is off in this cluster (access.is_on): leave out `login`")


def _wrong(message: str) -> Rejected:
    return Rejected(Reason.BAD_ARGUMENT, message)
