"""`raftmq trace`: the history of a message in its consumer groups, as bars over time.

    stored   2026-11-20T12:00:00.000+00:00

    billing: acked 12.4s after it was stored, 2 attempts
      fresh      3ms  |.                                       |
      in hand   1.2s  |====                                    |
      waiting    10s  |    --------------------------------    |
      in hand   1.2s  |                                    ====|

All bars of a message have one scale, from its storing to the last event.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from raftmq.cli.output import Result, duration_text, time_text, with_output
from raftmq.cli.session import Session, with_session

from .msg import CUT, consumer_text, event_json, run_with_id

if TYPE_CHECKING:
    from raftmq.client import Journey, MessageEvent, Trace

BAR_MIN, BAR_MAX = 20, 72
"""Characters of a bar."""
LABEL_COLUMNS = 46
"""Columns for the text beside a bar."""

_PHASES = {
    "stored": ("fresh", "."),
    "handed out": ("in hand", "="),
    "extended": ("in hand", "="),
    "nacked": ("waiting", "-"),
    "expired": ("waiting", "-"),
    "ready": ("ready", "."),
    "given back": ("ready", "."),
    "redriven": ("ready", "."),
    "reset": ("fresh", "."),
    "filter gone": ("fresh", "."),
    "dead letter": ("dead", "x"),
}
"""Event → the phase that it begins, and the mark that draws it; other events begin none."""
_OPEN = ("leased", "waiting", "ready", "fresh")


class Phase(NamedTuple):
    """A state of a message for some time."""

    name: str
    """The state in words."""
    mark: str
    """The character that draws the phase."""
    start: int
    """The beginning, in milliseconds since 1970."""
    end: int
    """The end, in milliseconds since 1970."""
    note: str
    """How the phase ended, and who had the message."""


@click.command()
@click.argument("message_id", metavar="ID")
@with_output
@with_session
def trace(session: Session, message_id: str) -> Result:
    """Draw the history of the message of an ID in each consumer group that pops.

    \b
    = in hand   - waits for its retry   . ready or fresh   x dead letter
    """
    found = run_with_id(session, lambda mq: mq.trace(message_id))
    width = min(max(_columns() - LABEL_COLUMNS, BAR_MIN), BAR_MAX)
    lines = picture(found, now=int(time.time() * 1000), width=width)
    return Result(_json(found), lines, notes=[] if found.is_whole else [CUT])


def _columns() -> int:
    from shutil import get_terminal_size

    return get_terminal_size((100, 24)).columns


def _json(found: "Trace") -> dict[str, object]:
    return {
        "id": found.id,
        "topic": found.topic,
        "queue": found.queue,
        "offset": found.offset,
        "stored": None if found.stored is None else event_json(found.stored),
        "groups": [
            {
                "group": journey.group,
                "state": journey.state,
                "events": [event_json(event) for event in journey.events],
            }
            for journey in found.journeys
        ],
        "is_whole": found.is_whole,
    }


def picture(found: "Trace", *, now: int, width: int) -> Iterator[str]:
    """The lines of the picture; an open phase is drawn up to `now`."""
    yield f"{found.id}  {found.topic}, queue {found.queue}, offset {found.offset}"
    if found.stored is not None:
        yield f"stored {time_text(found.stored.timestamp)}{_by(found.stored)}"
    if not found.journeys:
        yield "no consumer group that pops has come to it"
        return
    begin = found.events[0].timestamp
    end = max(event.timestamp for event in found.events)
    if any(journey.state in _OPEN for journey in found.journeys):
        end = max(end, now)
    for journey in found.journeys:
        yield ""
        yield _headline(journey, begin)
        for phase in phases(found, journey, end=end):
            bar = _bar(phase, begin, max(end - begin, 1), width)
            lasted = duration_text((phase.end - phase.start) / 1000)
            yield f"  {phase.name:8}{lasted:>8}  |{bar}|  {phase.note}".rstrip()


def _by(event: "MessageEvent") -> str:
    node = f", node {event.node}" if event.node else ""
    return f" (entry {event.index}, term {event.term}{node})"


def _headline(journey: "Journey", begin: int) -> str:
    last = journey.events[-1]
    after = duration_text((last.timestamp - begin) / 1000)
    attempts = max(event.attempt for event in journey.events)
    tries = "" if not attempts else f", {attempts} attempt{'s' * (attempts > 1)}"
    reason = f": {last.reason}" if last.reason else ""
    return f"{journey.group}: {journey.state} {after} after it was stored{tries}{reason}"


def phases(found: "Trace", journey: "Journey", *, end: int) -> Iterator[Phase]:
    """The message's phases for the group, in order."""
    events = list(journey.events)
    if found.stored is not None:
        events.insert(0, found.stored)
    for event, after in zip(events, [*events[1:], None], strict=True):
        name, mark = _PHASES.get(event.what, ("", ""))
        is_due = event.what in ("nacked", "expired") and event.until <= event.timestamp
        if is_due:
            name, mark = "ready", "."
        if name:
            until = end if after is None else after.timestamp
            yield Phase(name, mark, event.timestamp, until, _note(event, after))


def _note(event: "MessageEvent", after: "MessageEvent | None") -> str:
    who = f" by {consumer_text(event.consumer)}" if event.what == "handed out" else ""
    ended = "" if after is None or after.what in ("handed out", "ready") else after.what
    return f"{ended}{who}".strip()


def _bar(phase: Phase, begin: int, whole: int, width: int) -> str:
    first = min((phase.start - begin) * width // whole, width - 1)
    last = max(-(-(phase.end - begin) * width // whole), first + 1)
    return (" " * first + phase.mark * (last - first)).ljust(width)
