"""`raftmq token`: tokens, by which programs act as a user."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.access.tokens import ID_CHARACTERS, has_ended
from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import USER
from raftmq.cli.output import Note, Result, Table, note, time_text, with_output
from raftmq.cli.session import Session, with_session

from .known import IS_OFF, is_off
from .login_file import LOGIN_PATH, LoginFile
from .user import require_user

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.access import UserView

DAYS = 90.0
"""Default lifetime of a token, as of `Access.make_token`."""


@click.group(cls=HintedGroup)
def token() -> None:
    """Tokens of programs, which act as a user by them: make, list and revoke them.

    \b
    raftmq token make billing --note 'nightly report' --login-file report.toml
    raftmq topic list --url 'raftmqs://10.0.0.1?ca=ca.pem&login=report.toml'
    """


@token.command()
@click.argument("user", type=USER)
@click.option(
    "--days",
    type=click.FloatRange(0, 3650, min_open=True),
    help=f"How long it is valid.  [default: {DAYS:g}]",
)
@click.option("--no-end", is_flag=True, help="It is valid until it is revoked.")
@click.option("--note", "purpose", default="", metavar="TEXT", help="Its purpose, for people.")
@click.option(
    "--login-file",
    type=LOGIN_PATH,
    metavar="FILE",
    help="Do not print the token: write it to this new file, which only you can read.",
)
@with_session
def make(
    session: Session,
    user: str,
    days: float | None,
    no_end: bool,
    purpose: str,
    login_file: Path | None,
) -> None:
    """Make a token of a user, and print it; it cannot be shown again."""
    if no_end and days is not None:
        raise click.UsageError("--days and --no-end exclude each other")
    lifetime = None if no_end else (DAYS if days is None else days) * 86_400

    def made() -> str:
        return session.run(lambda mq: mq.access.make_token(user, lifetime=lifetime, note=purpose))

    if login_file is not None:
        with LoginFile(login_file) as file:
            file.write(token=made())
        note(f"the token of {user} is in {login_file}")
        return
    text = made()
    note(f"a token of {user}; it is shown this once, so keep it where only its program reads it:")
    click.echo(text)


@token.command("list")
@click.argument("user", type=USER, required=False)
@with_output
@with_session
def list_(session: Session, user: str | None) -> Result:
    """List the tokens of all users, or of USER; the tokens themselves cannot be shown."""

    async def call(mq: "Client") -> "tuple[list[UserView], str]":
        if user is not None:
            users = [await require_user(mq, user)]
        else:
            users = await mq.access.users()
        none = f"no tokens yet: `raftmq token make {user or 'USER'}` makes one"
        return users, IS_OFF if not users and await is_off(mq) else none

    users, none = session.run(call)
    found = [(owner.name, each) for owner in users for each in owner.tokens]
    rows = [
        (
            each.id,
            owner,
            time_text(each.created_ms),
            _until(each.until_ms),
            each.note,
        )
        for owner, each in found
    ]
    return Result(
        [
            {
                "user": owner,
                "id": each.id,
                "created_ms": each.created_ms,
                "until_ms": each.until_ms,
                "note": each.note,
            }
            for owner, each in found
        ],
        [Table(["!ID", "USER", "MADE", "VALID UNTIL", "NOTE"], rows) if rows else Note(none)],
    )


@token.command()
@click.argument("token_id", metavar="ID")
@with_session
def revoke(session: Session, token_id: str) -> None:
    """Revoke the token with this ID; its connections end within a second.

    A token itself, as it was found somewhere, names its ID, too.
    """
    from raftmq.access.tokens import parts_of

    shown = parts_of(token_id)[0] or token_id
    if len(shown) != ID_CHARACTERS or not shown.isalnum():
        # The word is not repeated: it may hold the secret part of a token.
        message = f"an ID has {ID_CHARACTERS} letters and digits: `raftmq token list` shows each"
        raise click.UsageError(message)
    if not session.run(lambda mq: mq.access.revoke_token(shown)):
        fix = "`raftmq token list` shows those that there are"
        raise Failure(f"there is no token {shown}", fix=fix)
    note(f"revoked token {shown}")


def _until(until_ms: int) -> str:
    if not until_ms:
        return "no end"
    is_over = has_ended(until_ms, time.time_ns() // 1_000_000)
    return f"ended {time_text(until_ms)}" if is_over else time_text(until_ms)
