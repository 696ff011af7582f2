"""Failpoints, where a process of the simulated world can end."""

from collections.abc import Sequence

from raftmq.chaos.sim.observed import FAILPOINTS as NODE_FAILPOINTS
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import FAILPOINTS as DISK_FAILPOINTS

NODE_FAILPOINTS_SHARE = 0.4
"""Share of failpoints that are not the disk's."""
OWN_FAILPOINTS_SHARE = 0.5
"""Share of those for requests that only this workload's clients make, if there are any."""
POWER_SHARE = 0.3
"""Share of crashes at which the machine loses power, too."""


def set_failpoint(state: RunState, node: int) -> None:
    """End a node's process when it next comes to a failpoint, which is drawn: a call of its disk,
    or a place where the node sends, receives or has applied something."""
    process, after = state.cluster.processes.get(node), state.random.random() < 0.5
    if process is not None and state.random.random() < NODE_FAILPOINTS_SHARE:
        names: Sequence[str] = NODE_FAILPOINTS
        if state.own_failpoints and state.random.random() < OWN_FAILPOINTS_SHARE:
            names = state.own_failpoints
        process.crash_at_failpoint(state.random.choice(names), after=after)
    else:
        point = state.random.choice(DISK_FAILPOINTS)
        state.cluster.machines[node].disk.crash_at_failpoint(point, after=after)
    if state.random.random() < POWER_SHARE:
        state.lose_power_on_crash(node)
