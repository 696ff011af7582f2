"""`raftmq msg`: single messages: get one by id, find some by key, list the events of one."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import TOPIC
from raftmq.cli.output import (
    Lines,
    Result,
    Table,
    duration_text,
    output_option,
    time_text,
    with_output,
)
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import START
from raftmq.errors import Reason, Rejected

from .formats import TABLE_HEADING, as_row, plain_message, print_message

if TYPE_CHECKING:
    from raftmq.client import Client, MessageEvent, Trace

ID_FIX = "`raftmq msg find TOPIC --key KEY` and `raftmq consume TOPIC -o json` show ids"

_OF_IDS = (Reason.BAD_ARGUMENT, Reason.UNKNOWN_TOPIC, Reason.OFFSET_OUT_OF_RANGE)
"""Refusals that mean that there is no such message."""

DEAD = "dead letter"
_TAKING_LETTERS = ("purged", "redriven", "reset", "lost")
"""Events that end a dead letter; see `MessageEvent.what`."""

CUT = "the log is not kept so far back: what happened first may be missing"
"""The note on a trace that does not begin with the message's first event."""

T = TypeVar("T")

CONSUMER_DIGITS = 6
"""Digits of a consumer's number in tables: enough to distinguish the consumers of one message."""


@click.group(cls=HintedGroup)
def msg() -> None:
    """Single messages: get one, find some by key, list the events of one.

    \b
    raftmq msg find orders --key order-1 --since 1h
    raftmq msg get 10000-2a
    raftmq msg why 10000-2a
    """


@msg.command()
@click.argument("message_id", metavar="ID")
@output_option("table", "json", "raw")
@with_session
def get(session: Session, message_id: str, output: str) -> int:
    """Print the message of an ID, as receipts and consumers show it; raw: its body alone."""
    return print_message(run_with_id(session, lambda mq: mq.get(message_id)), output)


def run_with_id(session: Session, call: "Callable[[Client], Awaitable[T]]") -> T:
    """Run a call that names a message by its id, and return its result.

    Raises:
        Failure: as `session.run`; if the id names no message, the remedy says where ids come from.
    """
    try:
        return session.run(call)
    except Failure as failure:
        cause = failure.__cause__
        if isinstance(cause, Rejected) and cause.reason in _OF_IDS:
            raise Failure(str(failure), fix=ID_FIX) from cause
        raise


@msg.command()
@click.argument("topic", type=TOPIC)
@click.option("-k", "--key", required=True, metavar="KEY", help="The key.")
@click.option(
    "--since",
    type=START,
    metavar="TIME",
    help="Only messages stored then or later: 1h (that long ago), or 2026-11-20T10:00.",
)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="At most this many.  [default: 100]",
)
@with_output
@with_session
def find(session: Session, topic: str, key: str, since: Any, count: int) -> Result:
    """Print the newest messages of a TOPIC that have a key, newest first."""
    if since is not None and not isinstance(since, datetime):
        raise click.BadParameter("a time, as 1h or 2026-11-20T10:00", param_hint="--since")
    found = session.run(lambda mq: mq.find(topic, key=key, since=since, limit=count))
    if not found:
        none = f"no message of {topic} has the key {key!r}" + (" since then" if since else "")
        return Result(Lines(), notes=[none])
    lines = [TABLE_HEADING, *map(as_row, found)]
    return Result(Lines(map(plain_message, found)), [line.decode()[:-1] for line in lines])


@msg.command()
@click.argument("message_id", metavar="ID")
@with_output
@with_session
def why(session: Session, message_id: str) -> Result:
    """Print each entry of the log that touched the message of an ID.

    The log has the hand-outs, acks, failures, retries and dead letters of consumers that pop. The
    log does not name the leader of a term: a node knows the leaders since its start, and `?` stands
    for an earlier one.
    """
    found = run_with_id(session, lambda mq: mq.trace(message_id))
    lines = Lines(map(event_json, found.events))
    return Result(lines, [events_table(found)], notes=[] if found.is_whole else [CUT])


def events_table(found: "Trace") -> Table:
    """The events of a message."""
    columns = ("TIME", ">AFTER", "WHAT", "GROUP", "CONSUMER", ">TOKEN", ">TRY", "!DETAIL")
    return Table((*columns, ">ENTRY", ">TERM", ">NODE"), _rows(found))


def event_json(event: "MessageEvent") -> dict[str, Any]:
    """An event as plain values, with identifiers of 64 bits as text."""
    return {**event._asdict(), "consumer": f"{event.consumer:016x}", "token": str(event.token)}


def _rows(found: "Trace") -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    before = None
    gone = _gone_letters(found)
    for event in found.events:
        after = "" if before is None else f"+{duration_text((event.timestamp - before) / 1000)}"
        before = event.timestamp
        rows.append(
            (
                time_text(event.timestamp)[:23],
                after,
                event.what,
                event.group or "-",
                consumer_text(event.consumer),
                event.token or "-",
                event.attempt or "-",
                gone.get((event.group, event.index)) or _detail(event),
                event.index,
                event.term,
                event.node or "?",
            )
        )
    return rows


def consumer_text(consumer: int) -> str:
    """The beginning of a consumer's number."""
    return f"{consumer:016x}"[:CONSUMER_DIGITS] if consumer else "-"


def _gone_letters(found: "Trace") -> dict[tuple[str, int], str]:
    """By group and entry: what took a dead letter that the broker no longer has. The broker knows
    no reason for such a letter."""
    gone: dict[tuple[str, int], str] = {}
    for journey in found.journeys:
        for number, event in enumerate(journey.events):
            if event.what != DEAD or event.reason:
                continue
            later = [each.what for each in journey.events[number + 1 :]]
            what = next((each for each in later if each in _TAKING_LETTERS), "")
            # A group without a name was detached or deleted, along with its dead letters.
            what = what or ("its group is gone" if journey.group.startswith("#") else "")
            if what:
                gone[journey.group, event.index] = f"no longer there: {what}"
    return gone


def _detail(event: "MessageEvent") -> str:
    if event.reason:
        return event.reason
    if not event.until:
        return "-"
    seconds = duration_text(max(0, event.until - event.timestamp) / 1000)
    return f"for {seconds}" if event.what in ("handed out", "extended") else f"due in {seconds}"
