"""The scenarios of growth by name."""

from collections.abc import Callable
from dataclasses import dataclass

from . import backlog, queues, restart, slow
from .outcome import Outcome


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of growth."""

    title: str
    """For people."""
    run: Callable[[float, float, int, Callable[[str], None]], Outcome]
    """Measure: scale, seconds of a window, windows of each side, whom to tell what goes on."""


SCENARIOS = {
    "backlog": Scenario("A backlog of 20 million messages", backlog.run),
    "queues": Scenario("20,000 queues", queues.run),
    "restart": Scenario("Restart with a 2 GiB log", restart.run),
    "slow": Scenario("Slow and dead followers and readers", slow.run),
}
