"""Faults of processes: ends, restarts, pauses.

A process that ends is started again soon, as a service manager would do: the verbs see to it.

Sources: Jepsen's and FoundationDB's nemeses; etcd's failpoints.
"""

from collections.abc import Mapping

from .arena import Arena, Make, Steps, at_once, while_lasts
from .schedule import Event

ROLL_SECONDS = 2.5
"""Between two stops of a rolling restart: a node that was stopped serves again by then."""
DOWN_SECONDS = 0.05
"""Time until a process that a storm has ended starts again."""
PAUSE_SECONDS = (0.1, 3.0)
"""A process that is to end stands still for a time between these first."""


def kill(arena: Arena, event: Event) -> Steps:
    """Processes end at once."""
    for node in event.nodes:
        arena.kill(node)
    yield from ()


def stop(arena: Arena, event: Event) -> Steps:
    """Node after node is asked to end."""
    for node in event.nodes:
        arena.stop(node)
        yield ROLL_SECONDS


def restart_storm(arena: Arena, event: Event) -> Steps:
    """A process ends again soon after each start."""
    (node,) = event.nodes
    while True:
        arena.kill(node, down_seconds=DOWN_SECONDS)
        yield event.level / 1000 * arena.random.uniform(0.5, 1.5)


def pause_kill(arena: Arena, event: Event) -> Steps:
    """A process stands still, then ends without having moved."""
    (node,) = event.nodes
    with arena.pause(node):
        yield arena.random.uniform(*PAUSE_SECONDS)
        arena.kill(node)


def stall_loop(arena: Arena, event: Event) -> Steps:
    """A process is busy with one long step, again and again."""
    (node,), seconds = event.nodes, event.level / 1000
    while True:
        arena.stall(node, seconds)
        yield seconds * arena.random.uniform(1.5, 3)


def crash_point(arena: Arena, event: Event) -> Steps:
    """A process ends at a failpoint that is drawn, when the process next comes there."""
    for node in event.nodes:
        arena.crash_at_failpoint(node)
    yield from ()


PROCESSES: Mapping[str, Make] = {
    "kill": kill,
    "kill-minority": kill,
    "kill-majority": kill,
    "kill-all": kill,
    "kill-leader": kill,
    "restart-storm": restart_storm,
    "rolling-restart": stop,
    "stop": stop,
    "pause": while_lasts(lambda arena, event: arena.pause(event.nodes[0])),
    "pause-leader": while_lasts(lambda arena, event: arena.pause(event.nodes[0])),
    "pause-kill": pause_kill,
    "slow-node": while_lasts(lambda arena, event: arena.slow(event.nodes[0], event.level)),
    "stall-loop": stall_loop,
    "crash-point": crash_point,
    "power-loss": at_once(lambda arena, event: arena.power_off(event.nodes)),
    "power-loss-majority": at_once(lambda arena, event: arena.power_off(event.nodes)),
    "power-loss-all": at_once(lambda arena, event: arena.power_off(event.nodes)),
}
"""By name of the fault."""
