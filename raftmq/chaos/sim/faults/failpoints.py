"""Failpoints, where a process of the simulated world can end."""

from collections.abc import Sequence

from raftmq.chaos.sim.observed import FAILPOINTS as NODE_FAILPOINTS
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.world.disk import FAILPOINTS as DISK_FAILPOINTS

NODE_FAILPOINTS_SHARE = 0.4
"""Share of failpoints that are not the disk's."""
OWN_FAILPOINTS_SHARE = 0.5
"""Share of those for requests that only this workload's clients make, if there are any."""
POWER_SHARE = 0.3
"""Share of crashes at which the machine loses power, too."""


def set_failpoint(stage: Stage, node: int) -> None:
    """End a node's process when it next comes to a failpoint, which is drawn: a call of its disk,
    or a place where the node sends, receives or has applied something."""
    process, after = stage.cluster.processes.get(node), stage.random.random() < 0.5
    if process is not None and stage.random.random() < NODE_FAILPOINTS_SHARE:
        names: Sequence[str] = NODE_FAILPOINTS
        if stage.own_failpoints and stage.random.random() < OWN_FAILPOINTS_SHARE:
            names = stage.own_failpoints
        process.crash_at_failpoint(stage.random.choice(names), after=after)
    else:
        point = stage.random.choice(DISK_FAILPOINTS)
        stage.cluster.machines[node].disk.crash_at_failpoint(point, after=after)
    if stage.random.random() < POWER_SHARE:
        stage.lose_power_on_crash(node)
