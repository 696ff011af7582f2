"""`raftmq topic`: create, list, describe, alter and delete topics."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from raftmq.cli.messages.replay import replay

from .exits import Failure
from .lazy import HintedGroup
from .names import TOPIC
from .options import yes_option
from .output import Note, Result, Table, note, with_output
from .session import Session, with_session

if TYPE_CHECKING:
    from raftmq.client import TopicInfo


@click.group(cls=HintedGroup)
def topic() -> None:
    """Create, list, describe, alter and delete topics; replay messages."""


topic.add_command(replay)


@topic.command()
@click.argument("name")
@click.option("-q", "--queues", type=click.IntRange(1, 65_536), default=8, show_default=True)
@click.option(
    "--beside",
    default="",
    metavar="TOPIC",
    help="Place queue n in the partition group of queue n of this topic, for transactions that "
    "pop there and send here.",
)
@with_output
@with_session
def create(session: Session, name: str, queues: int, beside: str) -> Result:
    """Create a topic. A topic of this name with as many queues is left as it is.

    Messages with one key share a queue and stay in order. More queues let more consumers read in
    parallel.
    """
    made = session.run(lambda mq: mq.admin.create_topic(name, queues, beside=beside))
    return Result(made, [_table([made])])


@topic.command("list")
@with_output
@with_session
def list_(session: Session) -> Result:
    """List all topics."""
    topics = session.run(lambda mq: mq.admin.list_topics())
    none = Note(f"{session.none_yet('topics')}: `raftmq topic create NAME` makes one")
    return Result(topics, [_table(topics) if topics else none])


@topic.command()
@click.argument("name", type=TOPIC)
@with_output
@with_session
def describe(session: Session, name: str) -> Result:
    """Show a topic's queues: their leaders and offsets."""
    found = session.run(lambda mq: mq.admin.describe_topic(name))
    columns = [">QUEUE", ">GROUP", ">LEADER", ">EARLIEST", ">END", ">MESSAGES"]
    rows = [
        (q.queue, q.partition_group, q.leader or "none", q.earliest, q.end, q.end - q.earliest)
        for q in found.queues
    ]
    document = {"name": found.name, "id": found.id, "queues": found.queues}
    return Result(document, [Table(columns, rows, title=f"{found.name}, id {found.id}")])


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("-q", "--queues", type=click.IntRange(1, 65_536), required=True)
@with_output
@with_session
def alter(session: Session, name: str, queues: int) -> Result:
    """Give a topic more queues.

    New messages of a key may go to another queue; older messages of the key stay where they are.
    """
    altered = session.run(lambda mq: mq.admin.alter_topic(name, queues))
    return Result(altered, [_table([altered])])


@topic.command()
@click.argument("name", type=TOPIC)
@yes_option
@with_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a topic and all its messages, after asking."""
    if not yes:
        require_terminal()
        session.run(lambda mq: mq.admin.describe_topic(name))
        confirm(f"Delete topic {name!r} and all its messages?")
    session.run(lambda mq: mq.admin.delete_topic(name))
    note(f"deleted {name}")


def confirm(question: str) -> None:
    """Ask on the terminal; go on only after a yes.

    Raises:
        click.UsageError: there is no terminal to ask on.
        Failure: the answer was no.
        click.Abort: Ctrl-C was the answer.
    """
    require_terminal()
    if not click.confirm(question, err=True):
        raise Failure("the answer was no: nothing was changed", fix="")


def require_terminal() -> None:
    """Refuse a command that will ask, before it has asked the cluster for anything.

    Raises:
        click.UsageError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: add --yes if it shall be done")


def _table(topics: "Sequence[TopicInfo]") -> Table:
    return Table(["NAME", ">ID", ">QUEUES"], [(t.name, t.id, t.queues) for t in topics])
