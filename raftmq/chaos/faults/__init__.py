"""The language of faults: what can go wrong, and when it shall.

One language for all worlds: the core simulator, whole brokers in a made-up world, real processes.
Start reading at `catalogue` (every kind of fault, with its explanation), then `schedule` (which of
them happen when, drawn from a seed), then `shrink` (the few that matter to a failure).
"""

from .catalogue import FAMILIES, FAULTS, Aim, Fault, World, expanded, of_world
from .schedule import Event, Schedule, draw, draw_mixed, draw_patient
from .shrink import shrink

__all__ = [
    "FAMILIES",
    "FAULTS",
    "Aim",
    "Event",
    "Fault",
    "Schedule",
    "World",
    "draw",
    "draw_mixed",
    "draw_patient",
    "expanded",
    "of_world",
    "shrink",
]
