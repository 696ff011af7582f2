"""Faults of the network that only the simulated world makes: long outages, names without an
address."""

from collections.abc import Mapping
from itertools import permutations

from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import CLIENTS, Steps
from raftmq.chaos.sim.arena import Make, SimArena


def outage(arena: SimArena, event: Event) -> Steps:
    """Nothing travels, and TCP has been waiting for `level` seconds."""
    pairs = list(permutations([*arena.members(), CLIENTS], 2))
    with arena.cut(pairs):
        arena.age(pairs, event.level)
        yield None


def lost_names(arena: SimArena, event: Event) -> Steps:
    """No name can be looked up."""
    names = arena.state.cluster.network.lost_names
    names[""] += 1
    try:
        yield None
    finally:
        names[""] -= 1


OWN: Mapping[str, Make] = {"outage": outage, "lost-names": lost_names}
"""By name of the fault."""
