"""Faults of processes, clocks and members: pauses, crashes, wrong times, changes of members.

Sources: Jepsen's and FoundationDB's nemeses; etcd's failpoints; thesis §4 for the membership.
"""

from collections.abc import Callable, Mapping

from raftmq.chaos.core.arena import CHANGE_POINTS, CoreArena, Make, Undo
from raftmq.chaos.core.operator import adding, removing, replacing
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped, Steps
from raftmq.chaos.faults.partitions import isolate
from raftmq.consensus import ChangeKind

LOOK_SECONDS = 0.005
"""Between two looks whether a process has started again."""


# Processes


def slow_apply(arena: CoreArena, event: Event) -> Steps:
    """P14."""
    nodes = arena.targets()
    for node in nodes:
        node.apply_ms = event.level
    try:
        yield None
    finally:
        for node in nodes:
            node.apply_ms = 0.0


def kill_then_power(arena: CoreArena, event: Event) -> Steps:
    """P12: writes of the first process were readable at the start of the second, not durable."""
    node = arena.node()
    if not node.is_up:
        raise Skipped("it is down")
    life, node.crash_point = node.lives, "before sync"
    while not (node.is_up and node.lives > life):
        yield LOOK_SECONDS
    # Most often at once: the first sync of the new process ends the danger.
    yield arena.random.random() ** 3
    arena.power_off(event.nodes)


# Members


def add_voter(stage: CoreArena) -> None:
    """M1."""
    operator = stage.cluster.operator
    operator.ask(adding(operator.spare().id))


def remove_voter(stage: CoreArena) -> None:
    """M1."""
    stage.cluster.operator.ask(removing(stage.node().id))


def promote_learner(stage: CoreArena) -> None:
    """M2: a node is a learner for a while, then it becomes a voter."""
    operator = stage.cluster.operator
    number = operator.spare().id
    operator.ask(adding(number, ChangeKind.ADD_LEARNER))
    stage.later(2_000_000, operator.ask, adding(number))


def replace_node(stage: CoreArena) -> None:
    """M3."""
    operator = stage.cluster.operator
    operator.ask(replacing(stage.node().id, operator.spare().id))


def remove_leader(stage: CoreArena) -> None:
    """M4."""
    stage.cluster.operator.ask(removing(stage.leading().id))


def two_changes(stage: CoreArena) -> None:
    """M5."""
    operator = stage.cluster.operator
    operator.ask(removing(stage.node().id))
    operator.ask(adding(operator.spare().id))


def change_when_cut(arena: CoreArena, event: Event) -> Steps:
    """M6: a node is cut off for three seconds; meanwhile another is removed, replaced or added."""
    operator, places = arena.cluster.operator, event.nodes
    with arena.cut(isolate(places[:1], arena.members())):
        dice = arena.random.random()
        if dice < 0.4 and len(places) > 1:
            operator.ask(removing(arena.node(1).id))
        elif dice < 0.7 and len(places) > 1:
            operator.ask(replacing(arena.node(1).id, operator.spare().id))
        else:
            operator.ask(adding(operator.spare().id))
        yield 3.0


def rejoin(stage: CoreArena) -> None:
    """M7: a removed node comes back under its id, with its old data."""
    cluster = stage.cluster
    conf = cluster.newest_conf()
    members = {*conf.voters, *conf.learners, *conf.voters_outgoing}
    gone = [
        node
        for node in cluster.at_place.values()
        if node.id not in members and node.applied and not node.is_damaged and not node.refusal
    ]
    if not gone:
        raise Skipped("no node was removed")
    cluster.operator.ask(adding(stage.random.choice(gone).id))


def slow_change(stage: CoreArena) -> Undo:
    """M9: a change of members, mostly of the node at the event's place, on slow disks."""
    node, cluster, random = stage.node(), stage.cluster, stage.random
    operator = cluster.operator
    if random.random() < 0.7:
        operator.ask(replacing(node.id, operator.spare().id))
    else:
        operator.ask(random.choice([removing(node.id), adding(operator.spare().id)]))
    others = [other for other in cluster.members() if other is not node and random.random() < 0.3]
    slow = [node, *others]
    for each in slow:
        each.disk_factor = stage.event.level
        if random.random() < 0.7:
            each.crash_point = random.choice(CHANGE_POINTS)
            each.loses_power = random.random() < 0.5

    def undo() -> None:
        for each in slow:
            each.disk_factor = 1.0

    return undo


def come_back(stage: CoreArena) -> None:
    """M10: a removed node comes back as a new one, as if its disk had been replaced."""
    cluster = stage.cluster
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
    node = stage.random.choice(gone)
    node.end(power=False)
    node.refuse("it comes back under another number")
    cluster.operator.ask(adding(cluster.operator.successor(node).id))


HANDLERS: Mapping[str, Callable[[CoreArena], Undo | None]] = {
    "add-voter": add_voter,
    "remove-voter": remove_voter,
    "promote-learner": promote_learner,
    "replace-node": replace_node,
    "remove-leader": remove_leader,
    "two-changes": two_changes,
    "rejoin": rejoin,
    "slow-change": slow_change,
    "return": come_back,
}
"""By name of the fault."""

OWN: Mapping[str, Make] = {
    "slow-apply": slow_apply,
    "kill-then-power": kill_then_power,
    "change-when-cut": change_when_cut,
}
"""Faults that are generators already."""
