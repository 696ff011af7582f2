"""The result of a scenario: rows like those of all benchmarks, and figures with their targets.

Rates go into rows (`bench.results.Row`), so programs read all of `benchmarks.json` alike. Ratios,
times to start and memory are *figures*: a name, a value, a unit, and a target where there is one.

Invariants:
- A ratio compares neighbouring windows, never windows that are minutes apart.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.results import GrowthFigure, Row
from bench.system import percentile


@dataclass(frozen=True, slots=True)
class Window:
    """The work of a load in one stretch of time."""

    messages: int
    seconds: float
    server_seconds: float
    """Processor time of all nodes."""
    latencies: tuple[float, ...] = ()
    """Latency of each acknowledgement in seconds, ascending; empty for loads without them."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def server_cost(self) -> float:
        """Processor seconds of all nodes for a million messages."""
        return self.server_seconds / self.messages * 1e6 if self.messages else float("inf")


@dataclass(slots=True)
class Outcome:
    """The rows and figures of one scenario."""

    scenario: str
    version: str
    rows: list[Row] = field(default_factory=list)
    figures: list[GrowthFigure] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Note a figure."""
        assert at_least is None or at_most is None, "a figure has one target"
        self.figures.append(
            {
                "scenario": self.scenario,
                "name": name,
                "value": round(value, 3),
                "unit": unit,
                "wanted": at_most if at_least is None else at_least,
                "is_least": at_least is not None,
            }
        )

    def add_row(self, operation: str, case: str, settings: str, size: int, window: Window) -> None:
        """Note the rate of one case, such as `backlog-produce` on `raftmq, empty log`."""
        self.rows.append(
            {
                "scenario": f"{self.scenario}-{operation}",
                "system": case,
                "version": self.version,
                "settings": settings,
                "messages_per_s": round(window.rate, 1),
                "mb_per_s": round(window.rate * size / 1e6, 3),
                "p50_ms": _percentile(window.latencies, 0.50),
                "p99_ms": _percentile(window.latencies, 0.99),
                "server_cpu_s_per_million": round(window.server_cost, 3),
                "server_mib": None,
                "ratio_to_floor": None,
                "rounds": 1,
            }
        )

    def compare(
        self,
        what: str,
        plain: Sequence[Window],
        grown: Sequence[Window],
        *,
        at_least: float | None = None,
    ) -> None:
        """Note the ratio of the grown case's rates to the plain one's, and of their costs."""
        self.add(f"{what}: rate", rate_ratio(plain, grown), at_least=at_least)
        self.add(f"{what}: servers' processor time a message", cost_ratio(plain, grown))


def rate_ratio(plain: Sequence[Window], grown: Sequence[Window]) -> float:
    """The median ratio of messages a second, grown over plain, of neighbouring windows."""
    return statistics.median(g.rate / p.rate for p, g in zip(plain, grown, strict=True))


def cost_ratio(plain: Sequence[Window], grown: Sequence[Window]) -> float:
    """The median ratio of the servers' processor time a message, grown over plain."""
    pairs = zip(plain, grown, strict=True)
    return statistics.median(g.server_cost / p.server_cost for p, g in pairs)


def middle(windows: Sequence[Window]) -> Window:
    """The window with the median rate: a measured window, not a mixture of two."""
    rate = statistics.median_low([window.rate for window in windows])
    return next(window for window in windows if window.rate == rate)


def _percentile(ascending: Sequence[float], fraction: float) -> float | None:
    found = percentile(list(ascending), fraction)
    return None if found is None else round(found, 3)
