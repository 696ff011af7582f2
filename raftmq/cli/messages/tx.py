"""`raftmq tx`: open transactions."""

from datetime import datetime

import click

from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import Note, Result, Table, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.words import counted


@click.group(cls=HintedGroup)
def tx() -> None:
    """Show open transactions, and end them.

    \b
    raftmq tx list
    raftmq tx resolve t1-5f3a9c --commit
    """


@tx.command("list")
@click.option("-g", "--group", default="", help="Only transactions of this producer group.")
@with_output
@with_session
def list_(session: Session, group: str) -> Result:
    """List transactions that are open, the oldest first.

    A check-back of the producer group ends a transaction. A transaction that acknowledges popped
    messages (ACKS) ends with their leases. A transaction that stays open for long needs a person
    who knows its outcome.
    """
    found = session.run(lambda mq: mq.open_transactions(group))
    rows = [
        (t.id, t.group or "-", _time(t.opened_ms), t.messages, t.inputs, t.note.replace("\n", " "))
        for t in found
    ]
    table = Table(["ID", "GROUP", "SINCE", "MESSAGES", "ACKS", "NOTE"], rows)
    return Result(found, [table if rows else Note("no transaction is open")])


@tx.command()
@click.argument("transaction")
@click.option("--commit/--rollback", "is_commit", default=None, help="The outcome.  [required]")
@with_session
def resolve(session: Session, transaction: str, is_commit: bool | None) -> None:
    """End a transaction: deliver its messages, or discard them. The first outcome holds."""
    if is_commit is None:
        raise click.UsageError("say how it ended: --commit delivers, --rollback throws away")
    count = session.run(lambda mq: mq.end_transaction(transaction, commit=is_commit))
    done = "delivered" if is_commit else "thrown away"
    note(
        f"{done}: {counted(count, 'message')}" if count else "it had ended so before, or was empty"
    )


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(" ", "seconds")
