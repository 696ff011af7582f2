"""`raftmq audit`: the audit log, for people and for export."""

from typing import TYPE_CHECKING

import click

from raftmq.cli.names import USER
from raftmq.cli.output import Lines, Note, Result, Table, note, time_text, with_output
from raftmq.cli.session import Session, with_session
from raftmq.words import counted

from .known import unknown_user

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.client.admin.access import AuditLog

SHOWN = 50
"""Entries that are shown without an option."""
BEGUN = "begun"
"""The result of an act whose outcome is not known."""


@click.command()
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    help=f"Only the newest ones, up to this many.  [default: {SHOWN}; all with --after]",
)
@click.option(
    "--after",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="All entries after this one, for an export in steps; 0: all that are kept.",
)
@click.option("--user", type=USER, metavar="NAME", help="Only acts of this user.")
@with_output
@with_session
def audit(session: Session, count: int | None, after: int | None, user: str | None) -> Result:
    """Show acts of administration: who did what, from where, when, with which result.

    With -o json each entry is one line. The cluster keeps 10,000 entries; where there are more, the
    user with most of them loses its oldest one. With --after a note counts those that are gone. An
    act with the result `begun` was under way on a node that ended, or is so now: whether it
    happened is not known. The nodes' logs count the requests that the rules denied, and name the
    last one.

    \b
    raftmq audit --user alice
    raftmq audit --after 0 -o json > audit.jsonl
    raftmq audit --after 1207 -o json >> audit.jsonl
    """
    if count is not None and after is not None:
        # Entries between would be left out, and an export would not tell.
        raise click.UsageError("-n and --after exclude each other")
    limit = count or SHOWN if after is None else None

    async def call(mq: "Client") -> "tuple[AuditLog, str]":
        found = await mq.access.audit(after=after or 0, user=user, limit=limit)
        return found, await unknown_user(mq, user) if user and not found.entries else ""

    found, unknown = session.run(call)
    if unknown:
        note(unknown)
    if after is not None and found.dropped:
        gone = counted(found.dropped, "entry", "entries")
        note(f"{gone} after number {after} can no longer be read: the audit log was full")
    begun = sum(each.result == BEGUN for each in found.entries)
    rows = [
        (
            each.number,
            time_text(each.at_ms),
            each.user or "-",
            each.address or "-",
            each.what,
            f"{each.resource} {each.name}".rstrip(),
            each.detail,
            each.result,
        )
        for each in found.entries
    ]
    columns = [">NUMBER", "TIME", "USER", "FROM", "ACT", "ON", "DETAIL", "RESULT"]
    told = f"{counted(begun, 'act')} begun: the outcome is not known, or not yet"
    none = Note("no acts of administration yet" if after is None else "no entries after that one")
    return Result(
        Lines(found.entries),
        [Table(columns, rows) if rows else none],
        notes=[told] if begun else [],
    )
