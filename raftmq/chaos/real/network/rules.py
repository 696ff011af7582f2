"""Who reaches whom, and how well: the rules that a proxy asks about every frame.

A *flow* is a direction between two parties: `(1, 2)` is what node 1 says to node 2, on whichever
connection. Party 0 is all clients together. A rule names flows and what happens to them; any number
of rules hold at once.

| kind | what happens to a frame | level |
|---|---|---|
| block | it waits until the rule ends | - |
| delay | it comes later, one in ten much later | ms |
| reorder | it waits a little, so that other connections overtake it | share |
| loss | its connection breaks | share |
| duplicate | it comes once more, on a connection of its own | share |
| rate | it waits for its turn | bytes/s |
| swallow | it is gone, the connection stays | - |
| drop | it is gone if it carries such a consensus message | kind |
| corrupt, cut | once: a byte changes; the connection breaks inside it | - |

Sources: the shapes of Jepsen's partitioners; OmniPaxos (EuroSys 2023) for quorum-loss, constrained
election and chain.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random

CLIENTS = 0
"""The party that stands for all clients."""

Flow = tuple[int, int]
"""(who speaks, who hears)."""


class Kind(Enum):
    """What a rule does; see the table of this module."""

    BLOCK = "block"
    DELAY = "delay"
    REORDER = "reorder"
    LOSS = "loss"
    DUPLICATE = "duplicate"
    RATE = "rate"
    SWALLOW = "swallow"
    DROP = "drop"
    CORRUPT = "corrupt"
    CUT = "cut"


ALWAYS = frozenset({Kind.BLOCK, Kind.DELAY, Kind.RATE, Kind.SWALLOW})
"""Kinds that do something to every frame of their flows; the others choose frames."""


@dataclass(eq=False, slots=True)
class Rule:
    """One rule; it holds until it is removed."""

    kind: Kind
    flows: frozenset[Flow] | None
    """None: all, those of clients too."""
    level: float = 0.0
    """In the unit of the kind."""
    struck: int = 0
    """Frames it did something to."""

    def covers(self, flow: Flow) -> bool:
        """Whether it is about that flow."""
        return self.flows is None or flow in self.flows


@dataclass(slots=True)
class Rules:
    """All rules that hold now."""

    rules: list[Rule] = field(default_factory=list)
    on_change: Callable[[], None] = lambda: None
    """Called after each change."""
    effects: int = 0
    """Times that a rule did something to a frame; one that waits may count more than once."""

    def add(self, kind: Kind, flows: Iterable[Flow] | None = None, level: float = 0.0) -> Rule:
        """From now on; give the result to `remove`."""
        rule = Rule(kind, None if flows is None else frozenset(flows), level)
        self.rules.append(rule)
        self.on_change()
        return rule

    def remove(self, rule: Rule) -> None:
        """No longer. One that is gone already is left alone."""
        if rule in self.rules:
            self.rules.remove(rule)
            self.on_change()

    def clear(self) -> None:
        """Everything is well."""
        self.rules.clear()
        self.on_change()

    def of(self, kind: Kind, flow: Flow) -> Iterator[Rule]:
        """The rules of a kind about a flow."""
        for rule in self.rules:
            if rule.kind is kind and rule.covers(flow):
                self.effects += kind in ALWAYS
                yield rule

    def is_blocked(self, flow: Flow) -> bool:
        """Whether nothing passes now."""
        return any(self.of(Kind.BLOCK, flow))

    def delay_seconds(self, flow: Flow, random: Random) -> float:
        """How much later a frame comes."""
        delay_ms = 0.0
        for rule in self.of(Kind.DELAY, flow):
            # A heavy tail: one in ten takes four times as long.
            delay_ms += rule.level * random.uniform(0.5, 1.5) * (4 if random.random() < 0.1 else 1)
        for rule in self.of(Kind.REORDER, flow):
            if random.random() < rule.level:
                self.effects += 1
                delay_ms += random.uniform(1, 50)
        return delay_ms / 1000

    def rate_bytes(self, flow: Flow) -> float:
        """Bytes a second, or 0 for no bound."""
        return min((rule.level for rule in self.of(Kind.RATE, flow)), default=0.0)

    def strikes(self, kind: Kind, flow: Flow, random: Random) -> bool:
        """Whether a rule with a share hits this frame."""
        for rule in self.of(kind, flow):
            if random.random() < rule.level:
                rule.struck += 1
                self.effects += 1
                return True
        return False

    def strikes_once(self, kind: Kind, flow: Flow) -> bool:
        """Whether a rule that holds for one frame hits this one; it is gone then."""
        for rule in list(self.of(kind, flow)):
            rule.struck += 1
            self.effects += 1
            self.remove(rule)
            return True
        return False


def both(one: int, other: int) -> set[Flow]:
    """Both directions between two parties."""
    return {(one, other), (other, one)}


def between(sides: Iterable[Iterable[int]]) -> set[Flow]:
    """Every flow from a side to another one."""
    groups = [frozenset(side) for side in sides]
    return {
        (one, other)
        for mine in groups
        for theirs in groups
        if mine is not theirs
        for one in mine
        for other in theirs
    }


def isolate(nodes: Iterable[int], everyone: Iterable[int]) -> set[Flow]:
    """These nodes together are cut off from the rest; clients still reach all."""
    inside = frozenset(nodes)
    return between([inside, frozenset(everyone) - inside])


def mute(node: int, everyone: Iterable[int]) -> set[Flow]:
    """What a node says reaches nobody, clients neither."""
    return {(node, other) for other in (CLIENTS, *everyone) if other != node}


def deaf(node: int, everyone: Iterable[int]) -> set[Flow]:
    """Nothing reaches a node."""
    return {(other, node) for other in (CLIENTS, *everyone) if other != node}


def bridge(node: int, everyone: Iterable[int]) -> set[Flow]:
    """Two sides that meet in one node only."""
    rest = sorted(set(everyone) - {node})
    half = len(rest) // 2
    return between([rest[:half], rest[half:]])


def star(hub: int, everyone: Iterable[int]) -> set[Flow]:
    """All reach the hub and nobody else."""
    return between([[node] for node in everyone if node != hub])


def ring(order: list[int]) -> set[Flow]:
    """Each reaches a majority around itself in a circle, each another one.

    Of three nodes each majority has two, so one link is cut.
    """
    count = len(order)
    reach = (count // 2 + 1) // 2
    cut: set[Flow] = set()
    for place, node in enumerate(order):
        for other_place, other in enumerate(order):
            distance = min((place - other_place) % count, (other_place - place) % count)
            if distance > reach:
                cut.add((node, other))
    return cut or both(order[0], order[-1])


def chain(order: list[int]) -> set[Flow]:
    """Each reaches its neighbours in a row."""
    return {
        (one, other)
        for place, one in enumerate(order)
        for far, other in enumerate(order)
        if abs(place - far) > 1
    }
