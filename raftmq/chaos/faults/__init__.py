"""The language of faults: the kinds of faults, and schedules of when they happen.

One language for all worlds: the core simulator, whole brokers in a simulated world, real processes.
Start reading at `catalogue` (every kind of fault, with its explanation), then `arena` (the verbs
by which faults act, and the form of a fault), then `network` and the other families, then
`schedule` (faults and their times, drawn from a seed), then `shrink` (the few faults that matter to
a failure).
"""

from .catalogue import FAMILIES, FAULTS, Aim, Fault, World, expanded, nearest, of_world
from .schedule import (
    PATIENT_EVERY,
    VISITS,
    Event,
    Schedule,
    draw,
    draw_mixed,
    draw_patient,
    is_patient,
    with_access,
    with_strike,
    with_visits,
)
from .shrink import shrink

__all__ = [
    "FAMILIES",
    "FAULTS",
    "PATIENT_EVERY",
    "VISITS",
    "Aim",
    "Event",
    "Fault",
    "Schedule",
    "World",
    "draw",
    "draw_mixed",
    "draw_patient",
    "expanded",
    "is_patient",
    "nearest",
    "of_world",
    "shrink",
    "with_access",
    "with_strike",
    "with_visits",
]
