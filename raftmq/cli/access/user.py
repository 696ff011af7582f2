"""`raftmq user`: the users of a cluster, and their passwords.

A password comes from a hidden prompt, from stdin, or is drawn for a login file. No option takes a
password: every user of the machine can read the arguments of a process.
"""

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import USER
from raftmq.cli.options import option, with_options, yes_option
from raftmq.cli.output import Note, Result, Table, note, time_text, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.topic import confirm, require_terminal
from raftmq.cli.values import DURATION
from raftmq.errors import Reason, Rejected
from raftmq.machine.names import why_no_name
from raftmq.words import counted

from .known import IS_OFF, is_administrator, is_off
from .login_file import LOGIN_PATH, LoginFile

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.access import UserView

DRAWN_BYTES = 24
"""Random bytes of a drawn password: too many to guess."""


@dataclass(frozen=True, slots=True)
class _Password:
    """The options that say where a password comes from; without any, it is asked for."""

    is_none: bool = option(
        "--no-password",
        is_flag=True,
        help="The user has no password: it acts by tokens or certificates.",
    )
    is_on_stdin: bool = option(
        "--password-stdin", is_flag=True, help="Read the password from stdin, one line."
    )
    login_file: Path | None = option(
        "--login-file",
        type=LOGIN_PATH,
        metavar="FILE",
        help="Draw a password, and write the login to this new file, which only you can read.",
    )

    def check(self) -> None:
        """Refuse options that do not fit, before the cluster is asked for anything.

        Raises:
            click.UsageError: two options exclude each other, or there is no terminal to ask on.
        """
        given = (self.is_none, self.is_on_stdin, self.login_file is not None)
        if sum(given) > 1:
            message = "--no-password, --password-stdin and --login-file exclude each other"
            raise click.UsageError(message)
        if self.is_on_stdin and sys.stdin.isatty():
            message = "a terminal shows what is typed: leave out --password-stdin, to be asked"
            raise click.UsageError(message)
        if not any(given) and not sys.stdin.isatty():
            message = "there is no terminal to ask for the password: give --password-stdin, "
            raise click.UsageError(f"{message}--login-file FILE or --no-password")

    def read(self) -> str | None:
        """The password, without a login file; None: the user has none.

        Raises:
            click.UsageError: stdin has more or less than a line.
            click.Abort: Ctrl-C was the answer to the question.
        """
        if self.is_none:
            return None
        if self.is_on_stdin:
            return _line_of_stdin()
        password: str = click.prompt(
            "Password", hide_input=True, confirmation_prompt="The password again", err=True
        )
        return password


def _line_of_stdin() -> str:
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        # The error would quote a part of the password.
        raise click.UsageError("the password on stdin is no text in UTF-8") from None
    line, *more = text.splitlines() or [""]
    if more or not line:
        raise click.UsageError("stdin has to hold the password, in one line")
    return line


def _user_name(ctx: click.Context, param: click.Parameter, name: str) -> str:
    if problem := why_no_name(name, "user"):
        raise click.UsageError(problem, ctx)
    return name


@click.group(cls=HintedGroup)
def user() -> None:
    """Users and their passwords: add, change, list and drop them.

    The users of certificates need not be added. A login file is for programs and for `--url`.

    \b
    raftmq user add alice
    raftmq user add billing --login-file billing.toml
    raftmq topic list --url 'raftmqs://10.0.0.1?ca=ca.pem&login=billing.toml'
    """


@user.command()
@click.argument("name", callback=_user_name)
@with_options(_Password)
@with_session
def add(session: Session, options: _Password, name: str) -> None:
    """Add a user; its password is asked for, unless an option says otherwise.

    A new user may do only what the rules allow every user: see `raftmq acl`.
    """
    options.check()

    async def look(mq: "Client") -> None:
        if await mq.access.users(name):
            fix = f"`raftmq user password {name}` gives it another password"
            raise Failure(f"there is a user {name!r} already", fix=fix)

    session.run(look)
    _put(session, name, options)
    note(f"added user {name}")


@user.command()
@click.argument("name", type=USER)
@click.option(
    "--keep-old",
    type=DURATION,
    default=0.0,
    metavar="DURATION",
    help="How long the password before stays valid, too, as 1h.  [default: it ends at once]",
)
@with_options(_Password)
@with_session
def password(session: Session, options: _Password, name: str, keep_old: float) -> None:
    """Give a user another password; it is asked for, unless an option says otherwise.

    Connections with the password before end within a second after its end. Programs read their
    login file for each connection:

    \b
    raftmq user password billing --login-file new.toml --keep-old 1h
    mv new.toml billing.toml
    """
    from raftmq.client.admin.access import check_keep_old

    options.check()
    if keep_old and options.is_none:
        raise click.UsageError("--keep-old needs another password: leave out --no-password")
    try:
        # Before the password is asked for.
        check_keep_old(keep_old)
    except Rejected as error:
        raise click.UsageError(str(error)) from None
    session.run(lambda mq: require_user(mq, name))
    _put(session, name, options, keep_old=keep_old)
    note(f"{name} has {'no password' if options.is_none else 'another password'}")


@user.command("list")
@with_output
@with_session
def list_(session: Session) -> Result:
    """List the users that were added; users of certificates alone are not among them.

    PASSWORDS counts those that are valid: after a change the one before may be for a while, until
    OLD UNTIL.
    """

    async def call(mq: "Client") -> "tuple[list[UserView], str]":
        users = await mq.access.users()
        none = "no users yet: `raftmq user add NAME` adds one"
        return users, IS_OFF if not users and await is_off(mq) else none

    users, none = session.run(call)
    columns = ["NAME", ">PASSWORDS", "OLD UNTIL", ">TOKENS", "ADDED"]
    rows = [
        (
            each.name,
            each.passwords,
            time_text(each.old_until_ms) if each.old_until_ms else "-",
            len(each.tokens),
            time_text(each.created_ms),
        )
        for each in users
    ]
    shown = Table(columns, rows) if rows else Note(none)
    return Result([_document(each) for each in users], [shown])


def _document(found: "UserView") -> dict[str, object]:
    """A user for programs; the salt of its passwords is left out."""
    return {
        "name": found.name,
        "passwords": found.passwords,
        "old_until_ms": found.old_until_ms,
        "created_ms": found.created_ms,
        "tokens": found.tokens,
    }


@user.command()
@click.argument("name", type=USER)
@yes_option
@with_session
def drop(session: Session, name: str, yes: bool) -> None:
    """Drop a user with its tokens and rules, after asking; its connections end within a second.

    Certificates that name the user stay valid: `raftmq cert revoke` revokes one.
    """
    if not yes:
        require_terminal()
        tokens, rules = session.run(lambda mq: _belongings(mq, name))
        confirm(f"Drop user {name!r} with {counted(tokens, 'token')}, {counted(rules, 'rule')}?")

    async def call(mq: "Client") -> tuple[bool, bool]:
        # Asked before: whoever drops the own login gets no more answers.
        is_admin, was_added = await is_administrator(mq, name), bool(await mq.access.users(name))
        if not await mq.access.drop_user(name):
            if is_admin:
                fix = f"take {name} out of access.admins on each node; {_REVOKE}"
                raise Failure(f"user {name!r} was never added: access.admins names it", fix=fix)
            raise _unknown(name)
        return is_admin, was_added

    is_admin, was_added = session.run(call)
    note(f"dropped user {name}")
    if is_admin:
        note(f"access.admins of the nodes' settings still names {name}: take it out on each node")
    if is_admin or not was_added:
        note(f"a certificate that names {name} stays valid: {_REVOKE}")


_REVOKE = "`raftmq cert revoke FILE` revokes a certificate"


async def _belongings(mq: "Client", name: str) -> tuple[int, int]:
    """Numbers of tokens and rules of a user; a user of certificates may have rules alone."""
    users, rules = await mq.access.users(name), await mq.access.rules(name)
    if not users and not rules:
        raise _unknown(name)
    return sum(len(each.tokens) for each in users), len(rules)


async def require_user(mq: "Client", name: str) -> "UserView":
    """A user that was added.

    Raises:
        Rejected: `UNKNOWN_USER`.
    """
    for found in await mq.access.users(name):
        return found
    raise _unknown(name)


def _unknown(name: str) -> Rejected:
    return Rejected(Reason.UNKNOWN_USER, f"there is no user {name!r}")


def _put(session: Session, name: str, options: _Password, *, keep_old: float = 0.0) -> None:
    """Give a user the password that the options say."""

    def change(chosen: str | None) -> None:
        session.run(lambda mq: mq.access.put_user(name, chosen, keep_old=keep_old))

    if options.login_file is None:
        change(options.read())
        return
    drawn = secrets.token_urlsafe(DRAWN_BYTES)
    with LoginFile(options.login_file) as file:
        # The file comes first: a password that is valid and stands nowhere would lock the user out.
        file.write(user=name, password=drawn)
        change(drawn)
    note(f"the login is in {options.login_file}")
