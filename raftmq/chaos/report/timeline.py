"""What nodes were and which faults they had, as spans of time for a drawing.

Worlds write their time line as sentences (`Happening.what`). Those of the forms below become spans;
every other sentence becomes a mark that shows its text.

| sentence, for example | becomes |
|---|---|
| `leader of group 1, term 4`, `follower, term 4` | a role, until the next one of node and group |
| `dead`, `down`, `killed`, `crashed`, `loses power` | no role in any group of that node |
| `pause begins`, `pause ends`, `kill` (a fault's name) | a band; a line for what happens once |

Faults are those of the catalogue and of the schedule, which may have kinds of its own.

If no sentence names a fault, the bands are those of the schedule: what was asked for, which is less
than what was seen, since a leader is known only when the fault is played.

Invariants:
- Spans of one node and group do not overlap, and end no later than the run.
"""

import re
from collections.abc import Container, Iterator, Sequence

import msgspec

from raftmq.chaos.faults import FAULTS, Schedule
from raftmq.chaos.outcome import Happening

ROLES = ("leader", "follower", "candidate", "pre-candidate", "learner")
DEAD = "dead"

_ROLE = re.compile(
    rf"(?:becomes |is )?(?P<role>{'|'.join(ROLES)})\b(?:.*?\bgroup (?P<group>\d+))?"
    r"(?:.*?\bterm (?P<term>\d+))?"
)
_DEATH = re.compile(
    r"(?:is )?(dead|down|killed|crash\w*|stopp?(ed|s)|loses power|power loss|ends)\b"
)
_FAULT = re.compile(r"(?P<name>[a-z][a-z-]+?)(?: (?P<edge>begins|ends))?(?:[ ,:(].*)?$")


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A node's role in a group for a while."""

    node: int
    group: int
    """-1 in a world with one group."""
    role: str
    """One of `ROLES`, or `DEAD`."""
    term: int
    """0: not known."""
    start_ms: int
    end_ms: int


class Band(msgspec.Struct, frozen=True, array_like=True):
    """A fault."""

    name: str
    nodes: tuple[int, ...]
    """Whom it hits; empty: the cluster, clients, or whoever led then."""
    start_ms: int
    end_ms: int
    """Equal to the start for what happens once."""
    text: str


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A sentence of the time line that is no span."""

    at_ms: int
    node: int
    text: str


def spans(timeline: Sequence[Happening], end_ms: int) -> list[Span]:
    """Every role that a node had, sorted by node, group and time."""
    found: list[Span] = []
    current: dict[tuple[int, int], tuple[str, int, int]] = {}

    def close(place: tuple[int, int], at_ms: int) -> None:
        role, term, start_ms = current.pop(place)
        if at_ms > start_ms:
            found.append(Span(*place, role, term, start_ms, at_ms))

    for at_ms, node, what in timeline:
        match = _ROLE.match(what)
        if match is not None:
            group = -1 if match["group"] is None else int(match["group"])
            term = int(match["term"] or 0)
            if (node, group) in current:
                close((node, group), at_ms)
            # A node that is in a group at all is no longer dead as a whole.
            if (node, -1) in current and current[node, -1][0] == DEAD:
                close((node, -1), at_ms)
            current[node, group] = match["role"], term, at_ms
        elif node and _DEATH.match(what) and _fault(what, FAULTS) is None:
            for place in [place for place in current if place[0] == node]:
                close(place, at_ms)
            current[node, -1] = DEAD, 0, at_ms
    for place in list(current):
        close(place, end_ms)
    return sorted(found, key=lambda span: (span.node, span.group, span.start_ms))


def bands(timeline: Sequence[Happening], schedule: Schedule, end_ms: int) -> list[Band]:
    """Every fault that was seen to happen, or that was asked for if none was seen."""
    found = list(_seen(timeline, _names(schedule), end_ms)) or list(_asked(schedule))
    return sorted(found, key=lambda band: band.start_ms)


def marks(timeline: Sequence[Happening], schedule: Schedule) -> list[Mark]:
    """Everything that is neither a role nor a fault."""
    names = _names(schedule)
    return [
        Mark(*happening)
        for happening in timeline
        if _ROLE.match(happening.what) is None and _fault(happening.what, names) is None
    ]


def _names(schedule: Schedule) -> Container[str]:
    return FAULTS.keys() | {event.fault for event in schedule.events}


def _fault(what: str, names: Container[str]) -> tuple[str, str] | None:
    """(name, `begins`, `ends` or nothing) of a sentence about a fault."""
    match = _FAULT.match(what)
    if match is None or match["name"] not in names:
        return None
    return match["name"], match["edge"] or ""


def _seen(timeline: Sequence[Happening], names: Container[str], end_ms: int) -> Iterator[Band]:
    open_: dict[tuple[str, int], tuple[int, str]] = {}
    for at_ms, node, what in timeline:
        fault = _fault(what, names)
        if fault is None:
            continue
        name, edge = fault
        nodes = (node,) if node else ()
        if edge == "ends":
            start_ms, text = open_.pop((name, node), (at_ms, what))
            yield Band(name, nodes, start_ms, at_ms, text)
        elif edge == "begins" or (name in FAULTS and FAULTS[name].lasts):
            open_.setdefault((name, node), (at_ms, what))
        else:
            yield Band(name, nodes, at_ms, at_ms, what)
    for (name, node), (start_ms, text) in open_.items():
        yield Band(name, (node,) if node else (), start_ms, end_ms, text)


def _asked(schedule: Schedule) -> Iterator[Band]:
    for event in schedule.events:
        end_ms = event.at_ms + event.lasts_ms
        yield Band(event.fault, event.nodes, event.at_ms, end_ms, str(event))
