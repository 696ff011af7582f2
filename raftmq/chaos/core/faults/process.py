"""Faults of processes and members that only the core simulator makes."""

from collections.abc import Mapping

from raftmq.chaos.core.arena import CHANGE_FAILPOINTS, CoreArena, Make
from raftmq.chaos.core.operator import adding, removing, replacing
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped, Steps

LOOK_SECONDS = 0.005
"""Between two looks whether a process has started again."""


def slow_apply(arena: CoreArena, event: Event) -> Steps:
    """Committed records are applied late."""
    nodes = [arena.cluster.at_place[place] for place in event.nodes]
    for node in nodes:
        node.apply_ms = event.level
    try:
        yield None
    finally:
        for node in nodes:
            node.apply_ms = 0.0


def kill_then_power(arena: CoreArena, event: Event) -> Steps:
    """Writes of the first process were readable at the start of the second, not durable."""
    node = arena.cluster.at_place[event.nodes[0]]
    if not node.is_up:
        raise Skipped("it is down")
    life, node.failpoint = node.lives, "before sync"
    while not (node.is_up and node.lives > life):
        yield LOOK_SECONDS
    # Most often at once: the first sync of the new process ends the danger.
    yield arena.random.random() ** 3
    arena.power_off(event.nodes)


def slow_change(arena: CoreArena, event: Event) -> Steps:
    """A change of members, mostly of the node at the event's place, on slow disks."""
    cluster, random = arena.cluster, arena.random
    node, operator = cluster.at_place[event.nodes[0]], cluster.operator
    if random.random() < 0.7:
        operator.ask(replacing(node.id, operator.spare().id))
    else:
        operator.ask(random.choice([removing(node.id), adding(operator.spare().id)]))
    others = [other for other in cluster.members() if other is not node and random.random() < 0.3]
    slow = [node, *others]
    for each in slow:
        each.disk_factor = event.level
        if random.random() < 0.7:
            each.failpoint = random.choice(CHANGE_FAILPOINTS)
            each.loses_power = random.random() < 0.5
    try:
        yield None
    finally:
        for each in slow:
            each.disk_factor = 1.0


def come_back(arena: CoreArena, event: Event) -> Steps:
    """A removed node comes back as a new one, as if its disk had been replaced."""
    cluster = arena.cluster
    members = cluster.members()
    # A disk may be replaced only when no member counts on its node: a member that does not know
    # that the change is committed still needs the node's vote.
    counted = {
        each
        for node in members
        for each in (*node.conf_state.voters, *node.conf_state.voters_outgoing)
    }
    gone = [
        node
        for node in cluster.at_place.values()
        if node not in members and node.applied and node.id not in counted
    ]
    if not gone:
        raise Skipped("no node was removed")
    node = arena.random.choice(gone)
    node.end(power=False)
    node.refuse("it comes back under another number")
    cluster.operator.ask(adding(cluster.operator.successor(node).id))
    yield from ()


OWN: Mapping[str, Make] = {
    "slow-apply": slow_apply,
    "kill-then-power": kill_then_power,
    "slow-change": slow_change,
    "return": come_back,
}
"""By name of the fault."""
