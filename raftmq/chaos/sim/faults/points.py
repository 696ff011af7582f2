"""Points of the code at which a process of the simulated world can end."""

from collections.abc import Sequence

from raftmq.chaos.sim.observed import POINTS as NODE_POINTS
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.world.disk import POINTS as DISK_POINTS

NODE_POINTS_SHARE = 0.4
"""Share of failpoints that are not the disk's."""
OWN_POINTS_SHARE = 0.5
"""Share of those for requests that only this workload's clients make, if there are any."""
POWER_SHARE = 0.3
"""Share of crashes at which the machine loses power, too."""


def arm(stage: Stage, node: int) -> None:
    """End a node's process when it next comes to a failpoint, which is drawn: a call of its disk,
    or a place where the node sends, receives or has applied something."""
    process, after = stage.cluster.processes.get(node), stage.random.random() < 0.5
    if process is not None and stage.random.random() < NODE_POINTS_SHARE:
        points: Sequence[str] = NODE_POINTS
        if stage.own_points and stage.random.random() < OWN_POINTS_SHARE:
            points = stage.own_points
        process.crash_at_point(stage.random.choice(points), after=after)
    else:
        point = stage.random.choice(DISK_POINTS)
        stage.cluster.machines[node].disk.crash_at_point(point, after=after)
    if stage.random.random() < POWER_SHARE:
        stage.lose_power_on_crash(node)
