"""Faults of processes, clocks and members: pauses, crashes, wrong times, changes of members.

Sources: Jepsen's and FoundationDB's nemeses; etcd's failpoints; thesis §4 for the membership.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from raftmq.chaos.core.arena import CoreArena, Make, Undo
from raftmq.chaos.core.operator import adding, removing, replacing
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped, Steps
from raftmq.chaos.faults.partitions import isolate
from raftmq.chaos.world.disk import POINTS
from raftmq.consensus import ChangeKind

if TYPE_CHECKING:
    from raftmq.chaos.core.node import Node

CHANGE_POINTS = (
    "change written", "changes written", "change synced", "changes synced", "commit written",
)  # fmt: skip
"""Points after the write or the sync of a change of members, or of several, and after a write that
commits records of its own: see `WatchedLog`."""

CORE_POINTS = (
    "before sync", "after sync", "before apply", "after apply", "before snapshot", *CHANGE_POINTS,
)  # fmt: skip
"""Points of the simulated process, beside those of the disk's calls: see `Replica.point`."""

_LOG_POINTS = [
    point for point in POINTS if point.endswith((" log", " snapshot", " partial", " index"))
]
DISK_POINTS = (*_LOG_POINTS, "sync_folder log")
"""Names of disk calls where a process may end."""

SLOW_US = 3000
"""Extra time of a slow node's messages, times the level."""

PAUSE_BEFORE_KILL_US = 1_700_000


# Processes


def _kill(node: "Node", *, power: bool = False) -> None:
    if node.is_up:
        node.end(power=power)
        node.start_later()


def kill(stage: CoreArena) -> None:
    """P1, all kinds."""
    for node in stage.targets():
        _kill(node)


def kill_leader(stage: CoreArena) -> None:
    """P2."""
    _kill(stage.leading())


def restart_storm(stage: CoreArena) -> Undo:
    """P3."""
    node = stage.node()

    def again() -> None:
        if node.is_up:
            node.end(power=False)
            node.start_later(50_000)
        stage.later(int(stage.event.level * 1000) + 50_000, again)

    again()
    return lambda: None


def rolling_restart(stage: CoreArena) -> None:
    """P4."""
    for number, node in enumerate(stage.targets()):
        stage.later(number * 1_500_000, _kill, node)


def pause(stage: CoreArena) -> Undo:
    """P5."""
    return _pause(stage.node())


def pause_leader(stage: CoreArena) -> Undo:
    """P5."""
    return _pause(stage.leading())


def _pause(node: "Node") -> Undo:
    if node.replica is not None:
        # A busy node has work under way at any moment, so a read begins right before the pause.
        node.cluster.clients.read_at(node.replica)
    node.pause()
    return node.resume


def pause_kill(stage: CoreArena) -> None:
    """P6."""
    node = stage.node()
    node.pause()
    stage.later(PAUSE_BEFORE_KILL_US, _kill, node)


def slow_node(stage: CoreArena) -> Undo:
    """P7."""
    network, place = stage.cluster.network, stage.event.nodes[0]
    network.lag_us[place] = int(stage.event.level * SLOW_US)
    network.settle()

    def undo() -> None:
        network.lag_us.pop(place, None)
        network.settle()

    return undo


def slow_apply(stage: CoreArena) -> Undo:
    """P14."""
    nodes, level = stage.targets(), stage.event.level
    for node in nodes:
        node.apply_ms = level

    def undo() -> None:
        for node in nodes:
            node.apply_ms = 0.0

    return undo


def crash_point(stage: CoreArena) -> None:
    """P8: at a point of the process or of a disk call, with the power or without."""
    node = stage.node()
    node.loses_power = stage.random.random() < 0.5
    if stage.random.random() < 0.3:
        node.crash_point = stage.random.choice(CORE_POINTS)
    else:
        point = stage.random.choice(DISK_POINTS)
        node.disk.armed().crash_at_point(point, after=stage.random.random() < 0.5)


def kill_then_power(stage: CoreArena) -> None:
    """P12: writes of the first process were readable at the start of the second, not durable."""
    node = stage.node()
    if not node.is_up:
        raise Skipped("it is down")
    life, node.crash_point = node.lives, "before sync"

    def watch() -> None:
        if stage.cluster.loop.now_us >= stage.end_us:
            return
        if node.is_up and node.lives > life:
            # Most often at once: the first sync of the new process ends the danger.
            stage.later(int(stage.random.random() ** 3 * 1e6), lose_power)
        else:
            stage.later(5_000, watch)

    def lose_power() -> None:
        if stage.cluster.loop.now_us < stage.end_us:
            _kill(node, power=True)

    watch()


# Clocks


def _clock(name: str, scale: float = 1.0) -> Callable[[CoreArena], Undo]:
    def handler(stage: CoreArena) -> Undo:
        clock = stage.node().clock
        setattr(clock, name, getattr(clock, name) + stage.event.level * scale)
        return partial(setattr, clock, name, 0.0)

    return handler


def step_clock(stage: CoreArena) -> None:
    """C2: the clock stays wrong until everything heals."""
    stage.node().clock.offset_ms += stage.event.level


def leap_second(stage: CoreArena) -> None:
    """C6."""
    for node in stage.cluster.nodes.values():
        node.clock.offset_ms -= 1000


def stall_monotonic(stage: CoreArena) -> None:
    """C7: a machine is suspended; ticks missed meanwhile are not made up for, as in the broker."""
    node = stage.node()
    node.pause()
    wait = int(min(stage.event.level * 1000, stage.end_us - stage.cluster.loop.now_us))
    stage.later(wait, node.resume)


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
    "kill": kill,
    "kill-minority": kill,
    "kill-majority": kill,
    "kill-all": kill,
    "kill-leader": kill_leader,
    "restart-storm": restart_storm,
    "rolling-restart": rolling_restart,
    "pause": pause,
    "pause-leader": pause_leader,
    "pause-kill": pause_kill,
    "slow-node": slow_node,
    "slow-apply": slow_apply,
    "crash-point": crash_point,
    "kill-then-power": kill_then_power,
    "skew": _clock("offset_ms"),
    "step-clock": step_clock,
    "drift": _clock("drift"),
    "strobe-clock": _clock("strobe_ms"),
    "periodic-clock": _clock("swing_ms"),
    "leap-second": leap_second,
    "stall-monotonic": stall_monotonic,
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

OWN: Mapping[str, Make] = {"change-when-cut": change_when_cut}
"""Faults that are generators already."""
