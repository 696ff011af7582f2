"""`raftmq quota`: the quotas of users and topics."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.options import argument, option, with_options
from raftmq.cli.output import Note, Result, Table, note, with_output
from raftmq.cli.session import HINT_NAMES_MAX, Session, with_session
from raftmq.cli.values import BYTE_RATE, COUNT_RATE, Kind
from raftmq.words import did_you_mean

from .known import EVERYBODY, unknown_user

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.access import QuotaView

# As in `raftmq.machine.catalog.quotas`, whose import would slow down the help.
USER = "user"
KINDS = (USER, "topic")
"""The kinds of things that have quotas."""
COLUMNS = {
    "write_bytes": ">WRITE B/s",
    "write_messages": ">WRITE MSG/s",
    "read_bytes": ">READ B/s",
    "read_messages": ">READ MSG/s",
    "connections": ">CONNECTIONS",
    "requests": ">REQUESTS",
    "topics": ">TOPICS",
    "queues": ">QUEUES",
    "groups": ">GROUPS",
    "in_flight": ">IN FLIGHT",
}
"""Amount → its column."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A user or topic."""

    kind: str = argument(type=click.Choice(KINDS))
    name: str = argument()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def _rate(name: str, kind: Kind, text: str) -> Any:
    """An option with an amount a second; 0: it is not given."""
    return option(name, type=kind, default=0, metavar="RATE", help=text)


def _count(name: str, text: str) -> Any:
    """An option with a number from 1 on."""
    return option(name, type=click.IntRange(min=1), metavar="N", help=text)


@dataclass(frozen=True, slots=True)
class _Amounts(_Subject):
    """A user or topic, and the amounts of its quota; 0: no bound."""

    write_bytes: int = _rate("--write", BYTE_RATE, "Bytes sent to a node, as 10MB/s.")
    write_messages: int = _rate(
        "--write-messages", COUNT_RATE, "Messages sent to a node, as 5000/s."
    )
    read_bytes: int = _rate("--read", BYTE_RATE, "Bytes that a node sends out, as 10MB/s.")
    read_messages: int = _rate(
        "--read-messages", COUNT_RATE, "Messages that a node sends out, as 5000/s."
    )
    connections: int | None = _count("--connections", "Open connections of a user to a node.")
    requests: int | None = _count(
        "--requests",
        "Requests of a user that wait for an answer of a node; a consumer that waits for messages "
        "has one or more at each leader.",
    )
    topics: int | None = _count("--topics", "Topics that a user owns, as it created them.")
    queues: int | None = _count("--queues", "Queues of these topics.")
    groups: int | None = _count("--groups", "Consumer groups that a user owns.")
    in_flight: int | None = _count(
        "--in-flight",
        "Messages that consumers which pop have in hand or have asked for: a user's consumers, or "
        "all of a topic.",
    )

    def given(self) -> dict[str, int]:
        """The amounts with a bound."""
        return {name: amount for name in COLUMNS if (amount := getattr(self, name))}


REQUESTS_FEW = 8
"""Open requests below which one consumer may keep all others of its user waiting."""


@click.group(cls=HintedGroup)
def quota() -> None:
    """Quotas of users and topics: set, list and drop them.

    Over a quota requests wait, and none is lost; a user that owns as much as it may creates no
    more. Each node counts for itself, but for what a user owns. A quota of '*' is the default: it
    holds for each user, or each topic, without a quota of its own. Quotas of users need
    access.is_on in the settings of the nodes. Changes hold within a second.

    \b
    raftmq quota set user billing --write 10MB/s --read 20MB/s
    raftmq quota set user '*' --connections 50
    raftmq quota set topic orders --write-messages 5000/s --in-flight 100000
    """


@quota.command("set")
@with_options(_Amounts)
@with_session
def set_(session: Session, options: _Amounts) -> None:
    """Give a user or topic (KIND) a quota, in place of the one before.

    Without an option there is no bound on its amount.
    """
    amounts = options.given()
    if not amounts:
        raise click.UsageError("name an amount: --write, --read, ... or drop the quota")

    async def call(mq: "Client") -> "tuple[list[QuotaView], bool, str]":
        found = await mq.access.quotas(options.kind, options.name)
        unknown = await _unknown(mq, options)
        is_new = await mq.access.put_quota(options.kind, options.name, **amounts)
        return found, is_new, unknown

    found, is_new, unknown = session.run(call)
    before = [each for each in found if each.name == options.name]
    note(f"{'set' if is_new else 'there was already'}: the quota of {options}")
    if unknown:
        note(unknown)
    gone = [
        f"{title.removeprefix('>')} {amount}"
        for each in before
        for field, title in COLUMNS.items()
        if field not in amounts and (amount := getattr(each, field))
    ]
    if gone:
        note(f"the quota before also had {', '.join(gone)}: repeat what shall stay")
    if 0 < amounts.get("requests", 0) < REQUESTS_FEW:
        note(
            f"warning: {amounts['requests']} open requests are few: a consumer that pops has one "
            "for each partition group of its topic all the time, and all else of the user waits"
        )


async def _unknown(mq: "Client", subject: _Subject) -> str:
    """A warning about a subject that there is not; empty: there is, or it is all of a kind."""
    if subject.kind == USER:
        return await unknown_user(mq, subject.name)
    names = [topic.name for topic in await mq.admin.list_topics()]
    if subject.name in (EVERYBODY, *names):
        return ""
    meant = did_you_mean(subject.name, names[:HINT_NAMES_MAX])
    return f"warning: there is no topic {subject.name} that you may see{meant}"


@quota.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.argument("name", required=False)
@with_output
@with_session
def list_(session: Session, kind: str | None, name: str | None) -> Result:
    """List all quotas, those of a KIND, or the quota that holds for a NAME and that of '*'.

    The amounts are for each node, but for TOPICS, QUEUES and GROUPS; '-': there is no bound.
    """
    found = session.run(lambda mq: mq.access.quotas(kind, name))
    rows = [
        (each.kind, each.name, *(getattr(each, amount) or "-" for amount in COLUMNS))
        for each in found
    ]
    of = f"{kind or 'user'} {name or 'NAME'}"
    none = Note(f"no quotas yet: `raftmq quota set {of} --write 10MB/s` sets one")
    columns = ["KIND", "!NAME", *COLUMNS.values()]
    return Result(found, [Table(columns, rows) if rows else none])


@quota.command()
@with_options(_Subject)
@with_session
def drop(session: Session, options: _Subject) -> None:
    """Drop the quota of a user or topic (KIND); that of '*' holds for it then."""
    if not session.run(lambda mq: mq.access.drop_quota(options.kind, options.name)):
        fix = "`raftmq quota list` shows those that there are"
        raise Failure(f"there is no quota of {options}", fix=fix)
    note(f"dropped: the quota of {options}")
