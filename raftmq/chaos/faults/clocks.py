"""Faults of clocks.

Sources: Jepsen's clock nemeses (bump, strobe); TigerBeetle's time simulation (drift, periodic).
"""

from collections.abc import Mapping

from .arena import Arena, Make, Steps, WrongClock, while_lasts
from .schedule import Event

LEAP_MS = -1000.0
"""The step of a clock at which a second happens twice."""
SUSPENDED_SECONDS_MAX = 10.0
"""Longest time for which a machine is suspended; its clock may be behind by more."""


def _wrong(effect: WrongClock) -> Make:
    return while_lasts(lambda arena, event: arena.distort(event.nodes[0], effect, event.level))


def step_clock(arena: Arena, event: Event) -> Steps:
    """A clock jumps, and stays wrong until the heal."""
    arena.step_clock(event.nodes[0], event.level)
    yield from ()


def leap_second(arena: Arena, event: Event) -> Steps:
    """A second happens twice, on all clocks at once."""
    for node in arena.members():
        arena.step_clock(node, LEAP_MS)
    yield from ()


def suspend(arena: Arena, event: Event) -> Steps:
    """A machine is suspended: on return its deadlines are past, and its wall clock is behind."""
    (node,) = event.nodes
    with arena.pause(node):
        arena.step_clock(node, -event.level)
        yield min(event.level / 1000, SUSPENDED_SECONDS_MAX)


CLOCKS: Mapping[str, Make] = {
    "skew": _wrong("skew"),
    "step-clock": step_clock,
    "drift": _wrong("drift"),
    "strobe-clock": _wrong("strobe"),
    "periodic-clock": _wrong("periodic"),
    "leap-second": leap_second,
    "stall-monotonic": suspend,
}
"""By name of the fault."""
