"""Schedules that rise: how long a message waits after its first failure, its second, …

A schedule is a list of seconds. A group keeps the list, not the rule that made it.
"""

import math
from itertools import accumulate, repeat
from typing import NoReturn

from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.consumer_groups import DELAY_MS_MAX, SCHEDULE_ENTRIES_MAX
from raftmq.pop.policy import SCHEDULE_MS

MOST = SCHEDULE_MS[-1] / 1000
"""Seconds at which a schedule ends by default: the last level of the usual schedule."""

SHORTEST = 0.001
"""Least seconds at the start of a rising schedule: no factor makes a delay of 0 s longer."""
FACTOR_MAX = DELAY_MS_MAX
"""Largest factor: from the shortest delay (1 ms) to the longest in one step."""


def exponential(
    first: float, *, factor: float = 2.0, most: float = MOST, steps: int | None = None
) -> list[float]:
    """A `schedule=` for `Admin.create_consumer_group` that grows by a factor up to a limit.

    >>> exponential(1, most=30)
    [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    >>> exponential(1, factor=10, steps=3)
    [1.0, 10.0, 100.0]

    Args:
        first: seconds to wait after the first failure, 0.001 (1 ms) up to 7 days.
        factor: each delay is this many times the one before it; more than 1, up to 604,800,000.
        most: seconds that no delay exceeds, `first` up to 7 days; 2 hours if not given.
        steps: the number of delays, 1 to 64; None: up to the first one that reaches `most`. The
            last delay repeats for all failures after it.

    Returns:
        Seconds, in whole milliseconds as a group keeps them; none is less than the one before it.

    Raises:
        Rejected: `BAD_ARGUMENT`, an argument is out of its range, or 64 steps do not reach `most`.
    """
    _check(first, factor, most, steps)
    growth = repeat(factor, (steps or SCHEDULE_ENTRIES_MAX) - 1)
    delays = list(accumulate(growth, lambda delay, by: min(delay * by, most), initial=first))
    if steps is None:
        if delays[-1] < most:
            _refuse_slow(first, factor, most)
        delays = delays[: delays.index(most) + 1]
    return [round(delay * 1000) / 1000 for delay in delays]


def _check(first: object, factor: object, most: object, steps: object) -> None:
    longest = DELAY_MS_MAX / 1000
    # A NaN is in no range.
    if not isinstance(first, int | float) or not SHORTEST <= first <= longest:
        _refuse(f"a rising schedule begins with {SHORTEST} to {longest:.0f} s, not {first!r}")
    if not isinstance(factor, int | float) or not 1 < factor <= FACTOR_MAX:
        _refuse(
            f"a schedule rises by a factor of more than 1, as 2 or 1.5, up to {FACTOR_MAX}, "
            f"not {factor!r}"
        )
    if not isinstance(most, int | float) or not first <= most <= longest:
        _refuse(
            f"the most of a schedule that begins with {first:g} s is {first:g} to {longest:.0f} s "
            f"(7 days), not {most!r}"
        )
    if steps is not None and (not isinstance(steps, int) or not 1 <= steps <= SCHEDULE_ENTRIES_MAX):
        _refuse(f"a schedule has 1 to {SCHEDULE_ENTRIES_MAX} steps, not {steps!r}")


def _refuse_slow(first: float, factor: float, most: float) -> NoReturn:
    least = (most / first) ** (1 / (SCHEDULE_ENTRIES_MAX - 1))
    enough = math.floor(least * 100 + 1) / 100
    _refuse(
        f"from {first:g} s by a factor of {factor:g}, {SCHEDULE_ENTRIES_MAX} steps do not reach "
        f"{most:g} s: take a factor of {enough} or more"
    )


def _refuse(message: str) -> NoReturn:
    raise Rejected(Reason.BAD_ARGUMENT, message)
