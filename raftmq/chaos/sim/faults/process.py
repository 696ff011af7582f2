"""Faults of processes and clocks: ends, restarts, pauses, wrong times.

A pause stops a whole process: see `raftmq.chaos.world.process`.
Each function makes one fault begin, and returns its undo if the fault lasts.
"""

from collections.abc import Callable, Sequence

import trio

from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.sim.observed import POINTS as NODE_POINTS
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.world.disk import POINTS as DISK_POINTS
from raftmq.chaos.world.process import Process

Undo = Callable[[], None]

SLICE_SECONDS = 0.05
"""A slow process runs once in each slice of this length."""

NODE_POINTS_SHARE = 0.4
"""Share of failpoints that are not the disk's."""
OWN_POINTS_SHARE = 0.5
"""Share of those for requests that only this workload's clients make, if there are any."""


def kill(stage: Stage, event: Event) -> None:
    """Processes end at once."""
    for node in stage.nodes_of(event):
        stage.kill(node)


def kill_leader(stage: Stage, event: Event) -> None:
    """The leader's process ends at once."""
    stage.kill(stage.leader())


def power_loss(stage: Stage, event: Event) -> None:
    """Machines lose power."""
    for node in stage.nodes_of(event):
        stage.kill(node, power=True)


def restart_storm(stage: Stage, event: Event) -> Undo:
    """A process ends again each time it has come up."""
    (node,) = stage.nodes_of(event)
    is_over = False

    def again() -> None:
        if is_over:
            return
        stage.kill(node)
        stage.restart_soon(node, 0.05)
        stage.agenda.call_after(event.level / 1000 * stage.random.uniform(0.5, 1.5), again)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    again()
    return undo


def rolling_restart(stage: Stage, event: Event) -> None:
    """Node after node is stopped and started."""
    stage.spawn(_roll, stage, stage.nodes_of(event))


async def _roll(stage: Stage, nodes: list[int]) -> None:
    for node in nodes:
        if not stage.is_healing:
            await _stop(stage, node)
            await trio.sleep(2.5)


async def _stop(stage: Stage, node: int) -> None:
    """Stop a node gracefully if it serves, else kill it; the stage starts it again."""
    process = stage.cluster.processes.get(node)
    if process is None:
        return
    running = stage.cluster.nodes.get(node)
    if running is not None and running.is_serving:
        await stage.cluster.stop(node)
    else:
        stage.kill(node)


def stop(stage: Stage, event: Event) -> None:
    """A process is asked to end."""
    for node in stage.nodes_of(event):
        stage.spawn(_stop, stage, node)


def _frozen(processes: list[Process]) -> Undo:
    for process in processes:
        process.freeze()

    def undo() -> None:
        for process in processes:
            if not process.is_dead:
                process.thaw()

    return undo


def pause(stage: Stage, event: Event) -> Undo:
    """A process stands still."""
    return _frozen([stage.cluster.processes[n] for n in stage.alive(stage.nodes_of(event))])


def pause_leader(stage: Stage, event: Event) -> Undo | None:
    """The leader's process stands still."""
    leader = stage.leader()
    return _frozen([stage.cluster.processes[leader]]) if leader else None


def pause_kill(stage: Stage, event: Event) -> None:
    """A process stands still, then ends without having moved."""
    (node,) = stage.nodes_of(event)
    process = stage.cluster.processes.get(node)
    if process is None:
        return
    process.freeze()

    def end() -> None:
        if not process.is_dead:
            stage.kill(node)

    stage.agenda.call_after(stage.random.uniform(0.1, 3.0), end)


def slow_node(stage: Stage, event: Event) -> Undo:
    """A process runs for a short part of each slice of time."""
    (node,) = stage.nodes_of(event)
    is_over = False
    undo_pause: list[Undo] = []

    def rest() -> None:
        if not is_over:
            undo_pause.append(_frozen([stage.cluster.processes[n] for n in stage.alive([node])]))
            stage.agenda.call_after(SLICE_SECONDS * (1 - 1 / event.level), work)

    def work() -> None:
        while undo_pause:
            undo_pause.pop()()
        if not is_over:
            stage.agenda.call_after(SLICE_SECONDS / event.level, rest)

    def undo() -> None:
        nonlocal is_over
        is_over = True
        work()

    rest()
    return undo


def stall_loop(stage: Stage, event: Event) -> Undo:
    """A process is busy with one long step, again and again."""
    (node,) = stage.nodes_of(event)
    is_over = False

    def stall() -> None:
        if is_over:
            return
        seconds = event.level / 1000
        undo_pause = _frozen([stage.cluster.processes[n] for n in stage.alive([node])])
        stage.agenda.call_after(seconds, undo_pause)
        stage.agenda.call_after(seconds * stage.random.uniform(1.5, 3), stall)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    stall()
    return undo


def crash_point(stage: Stage, event: Event) -> None:
    """A process ends when it next comes to a failpoint: a call of its disk, or a place where the
    node sends, receives or has applied something."""
    for node in stage.nodes_of(event):
        process, after = stage.cluster.processes.get(node), stage.random.random() < 0.5
        if process is not None and stage.random.random() < NODE_POINTS_SHARE:
            points: Sequence[str] = NODE_POINTS
            if stage.own_points and stage.random.random() < OWN_POINTS_SHARE:
                points = stage.own_points
            process.crash_at_point(stage.random.choice(points), after=after)
        else:
            point = stage.random.choice(DISK_POINTS)
            stage.cluster.machines[node].disk.crash_at_point(point, after=after)
        if stage.random.random() < 0.3:
            stage.lose_power_on_crash(node)


# Clocks


def skew(stage: Stage, event: Event) -> Undo:
    """A clock is off by a constant."""
    clocks = [stage.cluster.machines[node].clock for node in stage.nodes_of(event)]
    for clock in clocks:
        clock.skew_ms += event.level

    def undo() -> None:
        for clock in clocks:
            clock.skew_ms -= event.level

    return undo


def step_clock(stage: Stage, event: Event) -> None:
    """A clock jumps."""
    skew(stage, event)


def drift(stage: Stage, event: Event) -> Undo:
    """A clock runs fast or slow."""
    return _with_clocks(stage, event, "drift")


def strobe_clock(stage: Stage, event: Event) -> Undo:
    """A clock jumps back and forth."""
    return _with_clocks(stage, event, "strobe_ms")


def periodic_clock(stage: Stage, event: Event) -> Undo:
    """A clock swings around the right time."""
    return _with_clocks(stage, event, "swing_ms")


def _with_clocks(stage: Stage, event: Event, field: str) -> Undo:
    """Set one field of the clocks to the event's level, and to 0 at the end."""
    clocks = [stage.cluster.machines[node].clock for node in stage.nodes_of(event)]
    for clock in clocks:
        setattr(clock, field, event.level)

    def undo() -> None:
        for clock in clocks:
            setattr(clock, field, 0.0)

    return undo


def leap_second(stage: Stage, event: Event) -> None:
    """A second happens twice, on all clocks at once."""
    for node in stage.members():
        stage.cluster.machines[node].clock.skew_ms -= 1000


def stall_monotonic(stage: Stage, event: Event) -> None:
    """A machine is suspended: on return its deadlines are past, and its wall clock is behind."""
    for node in stage.alive(stage.nodes_of(event)):
        seconds = min(event.level / 1000, 10.0)
        stage.agenda.call_after(seconds, _frozen([stage.cluster.processes[node]]))
        stage.cluster.machines[node].clock.skew_ms -= event.level
