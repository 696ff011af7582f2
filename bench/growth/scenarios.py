"""What runs behind each name in `bench.scenarios.GROWTH`."""

from collections.abc import Callable

from bench.scenarios import GROWTH

from . import backlog, queues, restart, slow
from .outcome import Outcome

Run = Callable[[float, float, int, Callable[[str], None]], Outcome]
"""Measure: scale, seconds of a window, windows of each side, whom to tell what goes on."""

RUNS: dict[str, Run] = {
    "backlog": backlog.run,
    "queues": queues.run,
    "restart": restart.run,
    "slow": slow.run,
}
assert list(RUNS) == list(GROWTH)
