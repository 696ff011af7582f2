"""Faults of clients: they crash, stand still, come and go, and send again."""

from collections.abc import Mapping

from .arena import Arena, Make, Steps, at_once, while_lasts
from .schedule import Event

CHURNS = 2
CHURN_SECONDS = 0.7
"""Between the ends of two consumers."""
STORM_SECONDS = (0.2, 1.0)
"""Shortest and longest time between two breaks of all connections."""


def churn(arena: Arena, event: Event) -> Steps:
    """A consumer ends, and another one takes over; twice."""
    for _ in range(CHURNS):
        arena.end_consumers()
        yield CHURN_SECONDS


def retry_storm(arena: Arena, event: Event) -> Steps:
    """All clients' connections break again and again: requests under way are sent again."""
    while True:
        arena.reset_clients()
        yield arena.random.uniform(*STORM_SECONDS)


CLIENT: Mapping[str, Make] = {
    "client-crash": at_once(lambda arena, event: arena.crash_client()),
    "client-hang": while_lasts(lambda arena, event: arena.hang_consumers()),
    "client-slow": while_lasts(lambda arena, event: arena.slow_consumers()),
    "client-resend": at_once(lambda arena, event: arena.resend()),
    "client-ack-twice": at_once(lambda arena, event: arena.ack_oddly("twice")),
    "client-ack-late": at_once(lambda arena, event: arena.ack_oddly("late")),
    "client-churn": churn,
    "retry-storm": retry_storm,
}
"""By name of the fault."""
