"""The rules of the network: which party reaches which, and how well. Checked for every frame.

A *flow* is a direction between two parties: `(1, 2)` is all traffic from node 1 to node 2, over all
connections. Party 0 is all clients together. A rule names flows and a fault of their frames; any
number of rules hold at once.

| kind | what happens to a frame | level |
|---|---|---|
| block | it waits until the rule ends | - |
| delay | it comes later, one in ten much later | ms |
| reorder | it waits a little, so that other connections overtake it | share |
| loss | its connection breaks | share |
| duplicate | it comes a second time, on a connection of its own | share |
| rate | it waits for its turn | bytes/s |
| swallow | it is gone, the connection stays | - |
| drop | it is gone if it carries a consensus message of some kinds | - |
| corrupt, cut | once: a bit changes; the connection breaks inside the frame | - |
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from raftmq.consensus import MessageKind

Flow = tuple[int, int]
"""(sender, receiver)."""


class Kind(Enum):
    """The kinds of rules; see the table of this module."""

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
"""Kinds that affect every frame of their flows; the others choose frames."""


@dataclass(eq=False, slots=True)
class Rule:
    """One rule; it holds until it is removed."""

    kind: Kind
    flows: frozenset[Flow] | None
    """Flows that the rule covers; None: all flows, those of clients, too."""
    level: float = 0.0
    """Strength, in the unit of the kind."""
    kinds: frozenset[MessageKind] = frozenset()
    """Kinds of consensus messages that a rule of the kind `DROP` hits."""
    struck: int = 0
    """Frames that the rule affected; not counted for all kinds."""

    def covers(self, flow: Flow) -> bool:
        """Does the rule cover the flow?"""
        return self.flows is None or flow in self.flows


@dataclass(slots=True)
class Rules:
    """The rules that hold at present."""

    rules: list[Rule] = field(default_factory=list)
    on_change: Callable[[], None] = lambda: None
    """Called after each change."""
    effects: int = 0
    """Number of times that a rule affected a frame; a waiting frame may count more than once."""

    def add(
        self,
        kind: Kind,
        flows: Iterable[Flow] | None = None,
        level: float = 0.0,
        kinds: frozenset[MessageKind] = frozenset(),
    ) -> Rule:
        """Add a rule; give the result to `remove` to end the rule."""
        rule = Rule(kind, None if flows is None else frozenset(flows), level, kinds)
        self.rules.append(rule)
        self.on_change()
        return rule

    def remove(self, rule: Rule) -> None:
        """Remove a rule, unless it was removed before."""
        if rule in self.rules:
            self.rules.remove(rule)
            self.on_change()

    def clear(self) -> None:
        """Remove all rules."""
        self.rules.clear()
        self.on_change()

    def of(self, kind: Kind, flow: Flow) -> Iterator[Rule]:
        """The rules of a kind that cover a flow."""
        for rule in self.rules:
            if rule.kind is kind and rule.covers(flow):
                self.effects += kind in ALWAYS
                yield rule

    def is_blocked(self, flow: Flow) -> bool:
        """Is the flow blocked?"""
        return any(self.of(Kind.BLOCK, flow))

    def delay_seconds(self, flow: Flow, random: Random) -> float:
        """Delay of the next frame of a flow, drawn at random."""
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
        """Does a rule whose level is a share hit this frame?"""
        for rule in self.of(kind, flow):
            if random.random() < rule.level:
                rule.struck += 1
                self.effects += 1
                return True
        return False

    def strikes_once(self, kind: Kind, flow: Flow) -> bool:
        """Does a rule for one frame hit this frame? The rule is removed then."""
        for rule in list(self.of(kind, flow)):
            rule.struck += 1
            self.effects += 1
            self.remove(rule)
            return True
        return False
