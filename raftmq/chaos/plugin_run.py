"""One test with the marker `chaos`, as the plugin runs it and as its verdict sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # pytest loads the plugin wherever raftmq is installed.
    from raftmq.chaos.nemesis import Nemesis
    from raftmq.chaos.sim_cluster import SimCluster
    from raftmq.checkers.journal import Journal


@dataclass(slots=True)
class Run:
    """The chaos part of one test: seed, faults, and what its fixtures made."""

    seed: int
    faults: tuple[str, ...]
    seconds: float
    nodes: int
    journal: "Journal | None" = None
    played: "Nemesis | SimCluster | None" = None
    """The fixture that made the faults; None: the test uses neither."""
    logs: list[Callable[[], Mapping[str, str]]] = field(default_factory=list)
    """Each function returns file name → text, kept beside a failure."""
