"""The environment that all parts of a simulated cluster share: time, links, chance, counts, checks.

Each part gets the environment when it is made, beside the parts below it that it works with, and
knows no part above: what a part has to tell its owner is a call that the owner gives it.

Sources: the `Environment` of SimPy, and the event loop of FoundationDB's simulation.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from raftmq.chaos.core.checks.safety import Safety
from raftmq.chaos.core.loop import Loop, Trace
from raftmq.chaos.core.network import Network
from raftmq.chaos.core.settings import Settings
from raftmq.chaos.outcome import Happening
from raftmq.consensus import Event

HAPPENINGS_MAX = 2000
"""Most happenings that are kept for the time line, which people read; later ones are dropped."""


@dataclass(slots=True, eq=False)
class Environment:
    """The surroundings of all parts. It is state."""

    seed: int
    settings: Settings
    loop: Loop
    network: Network
    safety: Safety
    random: Random
    """For all parts that have no random generator of their own."""
    trace: Trace = field(default_factory=Trace)
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[Happening] = field(default_factory=list)

    def tell(self, node: int, what: str) -> None:
        """Add a happening to the time line and the trace; node 0 stands for the whole cluster."""
        if len(self.timeline) < HAPPENINGS_MAX:
            self.timeline.append(Happening(self.loop.now_ms, node, what))
        self.trace.note(self.loop.now_us, node, len(what))

    def heard(self, event: Event, number: int, fields: tuple[object, ...]) -> None:
        """Consensus traced an event: count it."""
        self.counts[event.name] += 1
