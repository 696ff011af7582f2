"""Shrinking: the few events that matter of a schedule that fails.

First whole parts are left out, ever smaller parts, as long as the rest still fails; then the
remaining events are made milder: shorter, weaker, on fewer nodes.

Invariants:
- The returned schedule fails, if `fails` gives the same answer to the same schedule each time.

Sources: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002): ddmin.
"""

from collections.abc import Callable, Iterator

from .catalogue import FAULTS
from .schedule import Event, Schedule

TRIALS_MAX = 300
"""Runs of one shrinking, at most."""


class _Enough(Exception):
    """The trials are used up."""


def shrink(
    schedule: Schedule, fails: Callable[[Schedule], bool], *, trials_max: int = TRIALS_MAX
) -> Schedule:
    """A smaller schedule that fails too.

    Args:
        schedule: one that fails.
        fails: plays a schedule; True if it fails in the same way.
        trials_max: calls of `fails`, at most.
    """
    trials = 0
    smallest = schedule

    def still_fails(candidate: Schedule) -> bool:
        nonlocal trials, smallest
        if trials == trials_max:
            raise _Enough
        trials += 1
        if not fails(candidate):
            return False
        smallest = candidate
        return True

    try:
        _leave_out(schedule, still_fails)
        _make_milder(smallest, still_fails)
    except _Enough:
        pass
    return smallest


def _leave_out(schedule: Schedule, fails: Callable[[Schedule], bool]) -> None:
    size = max(len(schedule.events) // 2, 1)
    while schedule.events:
        for start in range(0, len(schedule.events), size):
            rest = schedule.events[:start] + schedule.events[start + size :]
            candidate = schedule._replace(events=rest)
            if fails(candidate):
                schedule = candidate
                break
        else:
            if size == 1:
                return
            size //= 2
        size = max(min(size, len(schedule.events)), 1)


def _make_milder(schedule: Schedule, fails: Callable[[Schedule], bool]) -> None:
    place = 0
    while place < len(schedule.events):
        for milder in _milder(schedule.events[place]):
            events = (*schedule.events[:place], milder, *schedule.events[place + 1 :])
            candidate = schedule._replace(events=events)
            if fails(candidate):
                schedule = candidate
                break
        else:
            place += 1


def _milder(event: Event) -> Iterator[Event]:
    """Milder versions of an event: one shorter, one on fewer nodes, one weaker."""
    if event.lasts_ms > 100:
        yield event._replace(lasts_ms=event.lasts_ms // 2)
    if len(event.nodes) > 1 and FAULTS[event.fault].name.startswith(("split", "kill", "power")):
        yield event._replace(nodes=event.nodes[:-1])
    weaker = [level for level in FAULTS[event.fault].levels if abs(level) < abs(event.level)]
    if weaker:
        yield event._replace(level=max(weaker, key=abs))
