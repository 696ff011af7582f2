"""`raftmq topic`: create, list, describe, alter and delete topics."""

import sys
from typing import TYPE_CHECKING

import click

from raftmq.cli.messages.replay import replay

from .lazy import HintedGroup
from .names import TOPIC
from .output import note, output_option, print_json, print_table
from .session import Session, with_session

if TYPE_CHECKING:
    from raftmq.client import Client, TopicDescription, TopicInfo


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
    help="Queue n of both lies in the same partition group: for transactions that pop there and "
    "send here.",
)
@output_option()
@with_session
def create(session: Session, name: str, queues: int, beside: str, output: str) -> None:
    """Create a topic; done already if it exists with as many queues.

    Messages of one key stay in order because they share a queue; more queues let more consumers
    read side by side.
    """

    async def call(mq: "Client") -> "TopicInfo":
        return await mq.admin.create_topic(name, queues, beside=beside)

    _print([session.run(call)], output)


@topic.command("list")
@output_option()
@with_session
def list_(session: Session, output: str) -> None:
    """List all topics."""

    async def call(mq: "Client") -> "list[TopicInfo]":
        return await mq.admin.list_topics()

    topics = session.run(call)
    if output == "json":
        print_json([info._asdict() for info in topics])
    elif topics:
        _print(topics, output)
    else:
        note("no topics yet: `raftmq topic create NAME` makes one")


@topic.command()
@click.argument("name", type=TOPIC)
@output_option()
@with_session
def describe(session: Session, name: str, output: str) -> None:
    """Show a topic's queues: who leads them, and what they hold."""

    async def call(mq: "Client") -> "TopicDescription":
        return await mq.admin.describe_topic(name)

    found = session.run(call)
    if output == "json":
        queues = [queue._asdict() for queue in found.queues]
        print_json({"name": found.name, "id": found.id, "queues": queues})
        return
    print_table(
        [">QUEUE", ">GROUP", ">LEADER", ">EARLIEST", ">END", ">MESSAGES"],
        [
            (q.queue, q.partition_group, q.leader or "none", q.earliest, q.end, q.end - q.earliest)
            for q in found.queues
        ],
        title=f"{found.name}, id {found.id}",
    )


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("-q", "--queues", type=click.IntRange(1, 65_536), required=True)
@output_option()
@with_session
def alter(session: Session, name: str, queues: int, output: str) -> None:
    """Give a topic more queues.

    Keys may go to other queues from then on: a key's older messages stay where they are.
    """

    async def call(mq: "Client") -> "TopicInfo":
        return await mq.admin.alter_topic(name, queues)

    _print([session.run(call)], output)


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@with_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a topic and all its messages, after asking."""
    if not yes:
        confirm(f"Delete topic {name!r} and all its messages?")

    async def call(mq: "Client") -> None:
        await mq.admin.delete_topic(name)

    session.run(call)
    note(f"deleted {name}")


def confirm(question: str) -> None:
    """Ask on the terminal; go on only after a yes.

    Raises:
        click.UsageError: there is no terminal to ask on.
        click.Abort: the answer was no.
    """
    require_terminal()
    click.confirm(question, abort=True, err=True)


def require_terminal() -> None:
    """Refuse a command that will ask, before it has asked the cluster for anything.

    Raises:
        click.UsageError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: add --yes if it shall be done")


def _print(topics: "list[TopicInfo]", output: str) -> None:
    if output == "json":
        print_json(topics[0]._asdict())
    else:
        print_table(["NAME", ">ID", ">QUEUES"], [(t.name, t.id, t.queues) for t in topics])
