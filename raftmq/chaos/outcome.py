"""The outcome of one run in any world: the verdict, its evidence, and the time line.

All worlds return the same type, so that the command line, the report and the pytest plugin treat
all worlds alike. Each world has a function `run(schedule) -> Outcome`.

Invariants:
- Equal schedules in equal worlds give equal `trace_hash`es, in two runs and in two processes.
- A vacuous run is not valid.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.chaos.faults.catalogue import World
from raftmq.chaos.faults.schedule import Schedule
from raftmq.checkers.history import History
from raftmq.checkers.verdict import Verdict


class Violation(NamedTuple):
    """One promise that was broken."""

    name: str
    """An invariant (`R5`), an anomaly (`lost-postfix`), or a name of the world's own."""
    at_ms: int
    """Time at which the violation showed, in ms from the start of the run."""
    text: str
    """For people: what broke, where, and what would be right."""


class Happening(NamedTuple):
    """Something worth a mark on a time line."""

    at_ms: int
    """Milliseconds from the start of the run."""
    node: int
    """The node that the event concerns; 0: the cluster or a client."""
    what: str
    """Such as `leader of group 1, term 4`, `pause begins`."""


class Coverage(NamedTuple):
    """A situation in which a fault struck; each field takes few values, as the world defines."""

    role: str
    """Role of the node that was struck: leader, follower, candidate, learner, dead, none."""
    term_relation: str
    """The node's term against the highest term of all nodes: same, behind, ahead."""
    progress: str
    """The node's log against the leader's: level, behind, probe, snapshot, unknown."""
    fault: str
    """The fault's name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run."""

    world: World
    schedule: Schedule
    verdict: Verdict
    """Invalid if anything was violated; unknown if a checker gave up or the run was vacuous."""
    violations: tuple[Violation, ...] = ()
    trace_hash: str = ""
    """Hexadecimal digest of a running hash over every event."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts by name: `elections`, `acked`, `crashes`, each fault, and others."""
    coverage: Mapping[Coverage, int] = field(default_factory=dict)
    """Number of strikes in each situation."""
    simulated_seconds: float = 0.0
    vacuous: str = ""
    """Why the run exercised nothing; empty: it exercised something."""
    history: History | None = None
    """The operations of the clients; None in a world without clients."""
    timeline: tuple[Happening, ...] = ()
    """Events in order of time."""
    replay_options: tuple[str, ...] = ()
    """Further options of a replay: `("--workload", "queue")`."""
    compared: Mapping[str, int] = field(default_factory=dict)
    """Comparisons that could have shown a violation, by check; 0: the check compared nothing."""
    struck: Mapping[str, int] = field(default_factory=dict)
    """Number of faults that had an effect, by name; a fault without effect is not counted."""

    @property
    def is_vacuous(self) -> bool:
        """True if the run could not have shown a violation."""
        return bool(self.vacuous)

    @property
    def is_good(self) -> bool:
        """True if nothing was violated and the run meant something."""
        return self.verdict is Verdict.VALID and not self.vacuous

    def replay_line(self) -> str:
        """A shell command that plays this run again."""
        text = self.schedule.to_json().replace("'", "'\\''")
        words = ["raftmq chaos replay --world", self.world.value, *self.replay_options]
        return f"{' '.join(words)} '{text}'"

    def __str__(self) -> str:
        lines = [f"{self.verdict.value}: seed {self.schedule.seed}, {self.simulated_seconds:.0f} s"]
        lines += [f"vacuous: {self.vacuous}"] if self.vacuous else []
        lines += [f"{at / 1000:.3f}s {name}: {text}" for name, at, text in self.violations]
        if not self.is_good:
            lines.append(self.replay_line())
        return "\n".join(lines)
