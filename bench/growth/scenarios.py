"""The functions that measure the scenarios of `bench.scenarios.GROWTH`, by name."""

from collections.abc import Callable

from bench.scenarios import GROWTH

from . import backlog, queues, restart, slow
from .outcome import Outcome

Run = Callable[[float, float, int, Callable[[str], None]], Outcome]
"""Called with: scale, seconds of a window, windows of each side, a function for progress texts."""

RUNS: dict[str, Run] = {
    "backlog": backlog.run,
    "queues": queues.run,
    "restart": restart.run,
    "slow": slow.run,
}
assert list(RUNS) == list(GROWTH)
