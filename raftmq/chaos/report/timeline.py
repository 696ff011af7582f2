"""Roles of nodes and faults as spans of time, for a drawing.

Worlds write their time line as sentences (`Happening.what`). Sentences of the forms below become
spans; every other sentence becomes a mark that shows its text.

| sentence, for example | becomes |
|---|---|
| `leader of group 1, term 4`, `group 1: leader, term 4`, `leader, term 4` | a role until the next |
| `is killed`, `loses power`, `ends`, `stops: RotFound`, `gives up: why` | dead, in all groups |
| `starts`, `serves` | up, until it has a role |
| `pause begins`, `pause ends`, `kill`, `1.5s pause node 3 for 2s` | a fault: a band, or a line |

Faults are those of the catalogue and of the schedule, which may have kinds of its own. A lasting
fault ends with its `ends` sentence, of the same node or else of the cluster; or with the heal, or
with the run.

If no sentence names a fault, the bands are those of the schedule. A schedule knows less than a time
line: the leader is known only when the fault is played.

Invariants:
- Spans of one node and group do not overlap, and end with the run at the latest.
"""

import re
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import msgspec

from raftmq.chaos.faults import FAULTS, Aim, Schedule
from raftmq.chaos.outcome import Happening

ROLES = ("leader", "follower", "candidate", "pre-candidate", "pre_candidate", "learner")
UP, DEAD = "up", "dead"

LATE_MS_MAX = 2_000
"""Longest time from a scheduled event until the time line shows its fault."""

_ROLE = re.compile(
    rf"(?:group (?P<before>\d+): )?(?P<role>{'|'.join(ROLES)})\b(?: of group (?P<group>\d+))?"
    r"(?:, term (?P<term>\d+))?"
)
_DEATH = re.compile(
    r"(is )?(dead|down|killed|crashe[sd]|stop(s|ped)|ends|ended|gives up|refuses|breaks|loses power"
    r"|stays dead)\b"
)
_HEAL = re.compile(r"(everything )?(is )?heal(s|ed)?\b")
_BIRTH = re.compile(r"(is )?(starts|started|serves|up)\b")
_FAULT = re.compile(
    r"(?:[\d.]+s )?(?P<name>[a-z][a-z-]*[a-z])(?: node (?P<nodes>[\d,]+))?"
    r"(?P<more>(?: [^:]*?)??)(?: (?P<edge>begins|ends))?$"
)


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A node's role in a group for a while."""

    node: int
    group: int
    """-1 in a world with one group."""
    role: str
    """One of `ROLES`, `UP` or `DEAD`."""
    term: int
    """Raft term; 0: not known."""
    start_ms: int
    end_ms: int


class Band(msgspec.Struct, frozen=True, array_like=True):
    """A fault."""

    name: str
    nodes: tuple[int, ...]
    """Nodes that the fault hits; empty: the cluster, clients, or the leader of that time."""
    start_ms: int
    end_ms: int
    """Equal to the start for a fault that happens once."""
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
            number = match["before"] or match["group"]
            group = -1 if number is None else int(number)
            # A role in one group ends the state of the whole node, which is dead or up.
            for place in {(node, group), (node, -1)} & current.keys():
                if place == (node, group) or current[place][0] in (UP, DEAD):
                    close(place, at_ms)
            role = match["role"].replace("_", "-")
            current[node, group] = role, int(match["term"] or 0), at_ms
        elif node and (_DEATH.match(what) or _BIRTH.match(what)):
            for place in [place for place in current if place[0] == node]:
                close(place, at_ms)
            current[node, -1] = (DEAD if _DEATH.match(what) else UP), 0, at_ms
    for place in list(current):
        close(place, end_ms)
    return sorted(found, key=lambda span: (span.node, span.group, span.start_ms))


def bands(timeline: Sequence[Happening], schedule: Schedule, end_ms: int) -> list[Band]:
    """Every fault of the time line; the faults of the schedule if the time line has none."""
    over_ms = heal_ms(timeline, schedule)
    seen = _seen(timeline, _names(schedule), over_ms=over_ms, end_ms=end_ms)
    found = list(seen) or list(_asked(schedule))
    offices = [span for span in spans(timeline, end_ms) if span.role == "leader"]
    found = [_with_nodes(band, schedule, offices) for band in found]
    return sorted(found, key=lambda band: band.start_ms)


def _with_nodes(band: Band, schedule: Schedule, offices: Sequence[Span]) -> Band:
    """The band with the nodes that the schedule names, or with the leader of that time."""
    asked = [
        event
        for event in schedule.events
        if event.fault == band.name and 0 <= band.start_ms - event.at_ms <= LATE_MS_MAX
    ]
    nodes = asked[-1].nodes if asked else ()
    if not nodes and not band.nodes and band.name in FAULTS and FAULTS[band.name].aim is Aim.LEADER:
        leaders = {s.node for s in offices if s.start_ms <= band.start_ms < s.end_ms}
        # With several leaders, one for each group, the fault may have hit any of them.
        nodes = tuple(leaders) if len(leaders) == 1 else ()
    return msgspec.structs.replace(band, nodes=nodes or band.nodes)


def marks(timeline: Sequence[Happening], schedule: Schedule) -> list[Mark]:
    """Every sentence that is neither a role nor a fault."""
    names = _names(schedule)
    return [
        Mark(*happening)
        for happening in timeline
        if _ROLE.match(happening.what) is None and _fault(happening.what, names) is None
    ]


def _names(schedule: Schedule) -> Container[str]:
    return FAULTS.keys() | {event.fault for event in schedule.events}


def heal_ms(timeline: Sequence[Happening], schedule: Schedule) -> int:
    """Time of the heal, as told or as scheduled; -1: there were no faults."""
    told = (one.at_ms for one in timeline if not one.node and _HEAL.match(one.what))
    return next(told, schedule.heal_ms if schedule.events else -1)


class _Told(NamedTuple):
    """A sentence about a fault."""

    name: str
    nodes: tuple[int, ...]
    edge: str
    """`begins`, `ends` or nothing."""


def _fault(what: str, names: Container[str]) -> _Told | None:
    match = _FAULT.match(what)
    if match is None or match["name"] not in names or " skipped" in match["more"]:
        return None
    nodes = tuple(map(int, match["nodes"].split(","))) if match["nodes"] else ()
    return _Told(match["name"], nodes, match["edge"] or "")


def _seen(
    timeline: Sequence[Happening], names: Container[str], *, over_ms: int, end_ms: int
) -> Iterator[Band]:
    open_: list[tuple[str, tuple[int, ...], int, str]] = []
    for at_ms, node, what in timeline:
        told = _fault(what, names)
        if told is None:
            continue
        nodes = told.nodes or ((node,) if node else ())
        if told.edge == "ends":
            same = [one for one in open_ if one[0] == told.name]
            # Some worlds write the end of a fault for the cluster, without its node.
            begun = next((one for one in same if one[1] == nodes), same[0] if same else None)
            if begun is not None:
                open_.remove(begun)
                yield Band(begun[0], begun[1], begun[2], at_ms, begun[3])
        elif _lasts(told):
            open_.append((told.name, nodes, at_ms, what))
        else:
            yield Band(told.name, nodes, at_ms, at_ms, what)
    for name, nodes, start_ms, text in open_:
        # A fault without an `ends` sentence ends with the heal.
        is_healed = start_ms <= over_ms <= end_ms
        yield Band(name, nodes, start_ms, over_ms if is_healed else end_ms, text)


def _lasts(told: _Told) -> bool:
    return FAULTS[told.name].lasts if told.name in FAULTS else told.edge == "begins"


def _asked(schedule: Schedule) -> Iterator[Band]:
    for event in schedule.events:
        end_ms = event.at_ms + event.lasts_ms
        yield Band(event.fault, event.nodes, event.at_ms, end_ms, str(event))
