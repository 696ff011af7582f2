"""A wrong clock: the offset of a node's clock under several faults at once.

Each effect is a function from the true time to an offset; offsets add up. An offset depends on the
true time alone, so that the clock of a restarted process continues where it would have been.

| kind | offset at true time t | level |
|---|---|---|
| `skew` | level | ms |
| `step` | level from `since` on | ms |
| `drift` | level * (t - since) | share |
| `strobe` | level or -level, changing every 50 ms | ms |
| `periodic` | level * sin of a turn of 10 s | ms |

Sources: Jepsen's clock nemeses (bump, strobe); TigerBeetle's time simulation (drift, periodic).
"""

import math
from collections.abc import Iterable

import msgspec

STROBE_MS = 50
PERIOD_MS = 10_000


class ClockEffect(msgspec.Struct, frozen=True, array_like=True):
    """One fault of a clock."""

    kind: str
    """See the table of this module."""
    level: float
    """Strength, in the unit of the kind."""
    since_ms: int
    """True time at which the fault began."""


def offset_ms(effects: Iterable[ClockEffect], true_ms: int) -> int:
    """Offset of the clock from the true time, in milliseconds.

    >>> offset_ms([ClockEffect("step", 3000, 100), ClockEffect("drift", 0.1, 0)], 200)
    3020
    """
    return int(sum(_offset(effect, true_ms) for effect in effects))


def _offset(effect: ClockEffect, true_ms: int) -> float:
    elapsed_ms = max(true_ms - effect.since_ms, 0)
    match effect.kind:
        case "skew" | "step":
            return effect.level
        case "drift":
            return effect.level * elapsed_ms
        case "strobe":
            return effect.level * (1 - 2 * (elapsed_ms // STROBE_MS % 2))
        case "periodic":
            return effect.level * math.sin(2 * math.pi * elapsed_ms / PERIOD_MS)
        case other:
            raise ValueError(f"{other!r} is no fault of a clock")
