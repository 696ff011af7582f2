"""A schedule: which faults happen when, to whom, how long; drawn from a seed, readable as JSON.

    >>> schedule = draw(7, [FAULTS["pause"], FAULTS["kill"]], nodes=3, seconds=20)
    >>> schedule == Schedule.from_json(schedule.to_json())
    True

*Swarm.* A seed first chooses a few kinds: all kinds at once hide each other's effects. Then it
fills windows of some seconds with events; a quarter of the windows stay calm, so that the cluster
makes progress. Some windows play a *recipe*: kinds that broke other systems only together and in
that order. In the last quarter everything heals and the work is drained.

Invariants:
- The same arguments give the same schedule.
- No event lies after `heal_ms`, and none lasts beyond it.

Sources: swarm testing (Groce et al., ISSTA 2012); Jepsen's NATS harness for windows and calm ones;
TigerBeetle's VOPR for choosing kinds by seed.
"""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, Self

from .catalogue import FAULTS, Aim, Fault

KINDS_MAX = 6
"""Most kinds of faults that a seed chooses; recipes may add others."""

WINDOW_MS = (1_000, 6_000)
"""Shortest and longest window."""

CALM_SHARE = 0.25
"""Share of windows without faults."""

RECIPE_SHARE = 0.2
"""Share of the other windows that play a recipe, if the world has what the recipe needs."""

PATIENT_MS = (21_000, 42_000)
"""Shortest and longest duration of a fault in a patient schedule."""

PATIENT_EVERY = 4
"""One seed in this many has a patient schedule; see `draw_mixed`."""

VISITS = ("strangers", "duplicate", "stale-replay", "outage", "drain", "balance")
"""Kinds that strike in each campaign whose schedules are not all patient, however few seeds the
campaign has: see `with_visits`."""

VISITED_EVERY = 5
"""One seed in this many is visited."""

ACCESS_EVERY = 3
"""One seed in this many has faults of access, where nodes know their users: see `with_access`."""

SURE = (
    "kill", "kill-minority", "kill-majority", "kill-all", "stop", "rolling-restart",
    "power-loss", "power-loss-majority", "power-loss-all",
)  # fmt: skip
"""Kinds that always find something to strike while no other fault has struck: a process that runs
can end. Most other kinds may miss: votes are dropped, and there is no election."""

AFTERWARDS = frozenset({"rejoin", "return", "return-node", "return-blank"})
"""Kinds that strike only after another kind: a member that was never removed cannot return."""

CHAINS_OF_THREE = frozenset({"bridge", "quorum-loss"})
"""Kinds that leave three nodes in a row, with their target in the middle: see `_one_name`."""

EVENTS_MIN = 5
"""Fewer events may all miss: in 9 % of 600 core runs of six seconds none had an effect, and each of
these runs had three events at most."""

RECIPES: tuple[tuple[str, ...], ...] = (
    ("kill-majority", "power-loss-majority"),
    ("isolate-leader", "pause", "power-loss"),
    ("split-majority", "pause-leader", "kill"),
    ("full-disk", "isolate-leader"),
    ("wipe", "isolate-node"),
    ("isolate-leader", "remove-voter", "kill"),
    ("sync-error", "kill-leader"),
    ("bit-flip", "kill-leader"),
    ("slow-disk", "torn-write"),
    ("slow-change", "isolate-node"),
    ("slow-change", "kill-then-power"),
    ("remove-voter", "return", "isolate-leader"),
    ("late-kind", "isolate-leader"),
    ("late-kind", "kill-leader"),
    ("late-kind", "split-halves"),
    ("slow-apply", "two-changes", "isolate-leader"),
    ("slow-apply", "replace-node", "kill-leader"),
    ("needless-snapshot", "late-kind"),
    ("bit-flip", "return"),
    ("bit-flip", "slow-change"),
    ("move-group", "move-group", "kill-leader"),
    ("move-group", "crash-write"),
    ("slow-disk", "move-group", "isolate-leader"),
)
"""Kinds that happen within one window, in that order."""


class Event(NamedTuple):
    """One fault at one time."""

    at_ms: int
    """When it begins, from the start of the run."""
    fault: str
    """Its name in the catalogue."""
    nodes: tuple[int, ...] = ()
    """The nodes that it hits, from 1; empty if they are known only when it happens (see `Aim`)."""
    lasts_ms: int = 0
    """Duration; 0: it happens once."""
    level: float = 0.0
    """Strength in the fault's unit; 0: the fault has no levels."""

    def __str__(self) -> str:
        words = [f"{self.at_ms / 1000:.3f}s", self.fault]
        if self.nodes:
            words.append("node " + ",".join(map(str, self.nodes)))
        if self.level:
            words.append(f"{self.level:g} {FAULTS[self.fault].unit}")
        if self.lasts_ms:
            words.append(f"for {self.lasts_ms / 1000:.3f}s")
        return " ".join(words)


class Schedule(NamedTuple):
    """All faults of one run."""

    seed: int
    """Seed of everything random in the run, not only of the schedule."""
    seconds: float
    """Simulated (or real) time of the run."""
    events: tuple[Event, ...]
    """In order of `at_ms`."""

    @property
    def heal_ms(self) -> int:
        """Time from the start of the run at which all faults end."""
        return int(self.seconds * 750)

    def to_json(self) -> str:
        """The schedule as one line of JSON."""
        return json.dumps({"seed": self.seed, "seconds": self.seconds, "events": self.events})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The schedule that `to_json` wrote.

        Raises:
            ValueError: it is no schedule, or names a fault that the catalogue does not know, or too
                few nodes for one.
        """
        try:
            read = json.loads(text)
            if not isinstance(read, dict) or not read.keys() >= _NAMES:
                raise ValueError(f"it has no {', '.join(sorted(_NAMES))}")
            events = sorted(_event(fields) for fields in read["events"])
            seconds = float(read["seconds"])
            if not 0 < seconds < math.inf:
                raise ValueError(f"it cannot last {seconds:g} seconds")
            return cls(int(read["seed"]), seconds, tuple(events))
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is no schedule: {error}") from error

    def without(self, removed: Sequence[Event]) -> Self:
        """The same run with fewer faults."""
        return self._replace(events=tuple(e for e in self.events if e not in removed))


_NAMES = {"seed", "seconds", "events"}


def _event(fields: Any) -> Event:
    if not isinstance(fields, list) or len(fields) != len(Event._fields):
        raise ValueError(f"an event is [{', '.join(Event._fields)}], not {fields!r}")
    at_ms, fault, nodes, lasts_ms, level = fields
    if fault not in FAULTS:
        raise ValueError(f"there is no fault {fault!r}")
    event = Event(int(at_ms), fault, tuple(int(n) for n in nodes), int(lasts_ms), float(level))
    is_of_two = FAULTS[fault].aim is Aim.PAIR
    if event.nodes and (len(event.nodes) < 1 + is_of_two or min(event.nodes) < 1):
        whom = "two nodes" if is_of_two else "nodes"
        raise ValueError(f"{fault!r} hits {whom}, numbered from 1, not {list(event.nodes)}")
    return event


def draw(seed: int, kinds: Sequence[Fault], *, nodes: int, seconds: float) -> Schedule:
    """The schedule of a seed. It holds a fault, however short the run.

    Args:
        seed: of everything.
        kinds: what may happen; a few of them will.
        nodes: of the cluster, numbered from 1.
        seconds: of the run, heal and drain included.
    """
    random = Random(f"schedule {seed}")
    empty = Schedule(seed, seconds, ())
    kinds = [fault for fault in kinds if fault.nodes_min <= nodes]
    chosen = random.sample(kinds, min(len(kinds), random.randint(1, KINDS_MAX)))
    names = {fault.name for fault in kinds}
    recipes = [recipe for recipe in RECIPES if names.issuperset(recipe)]
    events: list[Event] = []
    # The cluster gets time to start before its first fault.
    start = 500
    while chosen and start < empty.heal_ms:
        window = random.randint(*WINDOW_MS)
        if random.random() >= CALM_SHARE:
            if recipes and random.random() < RECIPE_SHARE:
                window_kinds = [FAULTS[name] for name in random.choice(recipes)]
                at = sorted(random.randrange(window) for _ in window_kinds)
            else:
                window_kinds = random.choices(chosen, k=random.randint(1, 3))
                at = [random.randrange(window) for _ in window_kinds]
            events += [
                _draw_event(random, fault, start + offset, nodes, empty.heal_ms)
                for fault, offset in zip(window_kinds, at, strict=True)
            ]
        start += window
    kept = [event for event in events if event.at_ms < empty.heal_ms]
    drawn = kept or _one_event(random, chosen, nodes, empty.heal_ms)
    return empty._replace(events=_one_name(drawn, kinds, nodes))


def draw_patient(seed: int, kinds: Sequence[Fault], *, nodes: int, seconds: float) -> Schedule:
    """A schedule of few faults, one after the other, each long enough for the cluster to settle
    around it: such a run shows whether the cluster serves during a fault. Kinds that do not last
    are left out, unless there are no others.

    Args: as for `draw`.
    """
    random = Random(f"patient {seed}")
    empty = Schedule(seed, seconds, ())
    kinds = [fault for fault in kinds if fault.nodes_min <= nodes]
    lasting = [fault for fault in kinds if fault.lasts] or kinds
    events: list[Event] = []
    at_ms = random.randint(500, 5000)
    while lasting and at_ms < empty.heal_ms:
        event = _draw_event(random, random.choice(lasting), at_ms, nodes, empty.heal_ms)
        lasts_ms = random.randint(*PATIENT_MS) if event.lasts_ms else 0
        events.append(event._replace(lasts_ms=min(lasts_ms, empty.heal_ms - at_ms)))
        at_ms += (lasts_ms or PATIENT_MS[0]) + random.randint(500, 5000)
    drawn = events or _one_event(random, lasting, nodes, empty.heal_ms)
    return empty._replace(events=_one_name(drawn, kinds, nodes))


def draw_mixed(seed: int, kinds: Sequence[Fault], *, nodes: int, seconds: float) -> Schedule:
    """Many short faults for most seeds, few long ones for every fourth; as for `draw`."""
    how = draw_patient if is_patient(seed) else draw
    return how(seed, kinds, nodes=nodes, seconds=seconds)


def is_patient(seed: int) -> bool:
    """True if `draw_mixed` gives this seed few long faults."""
    return seed % PATIENT_EVERY == PATIENT_EVERY - 1


def with_strike(schedule: Schedule, kinds: Sequence[Fault], *, nodes: int) -> Schedule:
    """The schedule; a schedule that may miss altogether also gets one of `SURE`, in its middle.

    A schedule may miss if it has few events, or if all of them aim at leaders: where messages take
    longer than elections may, hardly any node ever leads (core seed 261: 20 of 20 events missed).
    It stays as it is if one of its events always strikes, or lasts as long as in a patient
    schedule. The drawn events do not change.

    Args: as for `with_visits`.
    """
    events = schedule.events
    aimed = [FAULTS[event.fault].aim for event in events if event.fault not in AFTERWARDS]
    if len(aimed) >= EVENTS_MIN and set(aimed) != {Aim.LEADER}:
        return schedule
    if any(event.fault in SURE or event.lasts_ms >= PATIENT_MS[0] for event in events):
        return schedule
    sure = [fault for fault in kinds if fault.name in SURE and fault.nodes_min <= nodes]
    added = _one_event(Random(f"strike {schedule.seed}"), sure, nodes, schedule.heal_ms)
    return schedule._replace(events=tuple(sorted((*events, *added))))


def with_visits(schedule: Schedule, kinds: Sequence[Fault], *, nodes: int) -> Schedule:
    """The schedule; for every fifth seed it also gets each of `VISITS` once.

    The drawn events do not change.

    Args:
        schedule: a drawn one.
        kinds: what can be made; visits of other kinds are left out.
        nodes: of the cluster.
    """
    if schedule.seed % VISITED_EVERY:
        return schedule
    random = Random(f"visits {schedule.seed}")
    can = {fault.name: fault for fault in kinds if fault.nodes_min <= nodes}
    # A replay needs connections that have carried something, and all need time to strike.
    begin, end = schedule.heal_ms // 3, max(schedule.heal_ms - 500, schedule.heal_ms // 2)
    added = [
        _draw_event(random, can[name], random.randint(begin, end), nodes, schedule.heal_ms)
        for name in VISITS
        if name in can
    ]
    return schedule._replace(events=tuple(sorted((*schedule.events, *added))))


def with_access(schedule: Schedule, kinds: Sequence[Fault], *, nodes: int) -> Schedule:
    """The schedule; for every third seed it also gets each fault of access once. It is for clusters
    that know their users.

    The drawn events do not change.

    Args: as for `with_visits`.
    """
    if schedule.seed % ACCESS_EVERY != ACCESS_EVERY - 1:
        return schedule
    random = Random(f"access {schedule.seed}")
    # Users need their connections before the fault, and time to come back before the heal.
    begin, end = schedule.heal_ms // 4, max(schedule.heal_ms // 2, schedule.heal_ms - 3000)
    added = [
        _draw_event(random, kind, random.randint(begin, end), nodes, schedule.heal_ms)
        for kind in kinds
        if kind.needs_users and kind.nodes_min <= nodes
    ]
    return schedule._replace(events=tuple(sorted((*schedule.events, *added))))


def _one_event(
    random: Random, kinds: Sequence[Fault], nodes: int, heal_ms: int
) -> tuple[Event, ...]:
    """One event in the middle of a run: by then there is a leader, and there is time for an effect.
    Empty if there are no kinds."""
    at_ms = heal_ms // 2
    return (_draw_event(random, random.choice(kinds), at_ms, nodes, heal_ms),) if kinds else ()


def _draw_event(random: Random, fault: Fault, at_ms: int, nodes: int, heal_ms: int) -> Event:
    lasts_ms = 0
    if fault.lasts:
        # Many short faults around the election timeout, some long ones.
        lasts_ms = min(int(random.lognormvariate(7.0, 1.2)) + 1, max(heal_ms - at_ms, 1))
    # A float, as JSON gives it back: a schedule must equal the one read back.
    level = float(random.choice(fault.levels)) if fault.levels else 0.0
    return Event(at_ms, fault.name, _targets(random, fault.aim, nodes), lasts_ms, level)


def _one_name(events: Sequence[Event], kinds: Sequence[Fault], nodes: int) -> tuple[Event, ...]:
    """The events in order, those of one shape by one name: of three nodes `CHAINS_OF_THREE` are
    `chain`, if that is among the kinds. They are drawn by their own names: one kind less to draw
    from would change all schedules of three nodes."""
    if nodes == 3 and any(fault.name == "chain" for fault in kinds):
        events = [_as_chain(e) if e.fault in CHAINS_OF_THREE else e for e in events]
    return tuple(sorted(events))


def _as_chain(event: Event) -> Event:
    (middle,) = event.nodes
    one, other = (node for node in (1, 2, 3) if node != middle)
    return event._replace(fault="chain", nodes=(one, middle, other))


def _targets(random: Random, aim: Aim, nodes: int) -> tuple[int, ...]:
    everyone = range(1, nodes + 1)
    minority_max = max((nodes - 1) // 2, 1)
    match aim:
        case Aim.ONE:
            count = 1
        case Aim.PAIR:
            count = min(2, nodes)
        case Aim.MINORITY:
            count = random.randint(1, minority_max)
        case Aim.MAJORITY:
            count = random.randint(nodes // 2 + 1, nodes)
        case Aim.ALL:
            count = nodes
        case Aim.LEADER | Aim.NONE:
            return ()
    # The order matters to a pair and to a ring.
    return tuple(random.sample(everyone, count))
