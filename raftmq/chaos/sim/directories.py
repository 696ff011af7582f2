"""The directory in runs that have one: its time, and what it shows once all is healed.

pysyncobj reads the system's clock and Python's random numbers by itself: here it gets those of the
simulation. Other checks judge that no call waits for the directory, as it loses its members and its
state with every fault of the nodes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio

from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.run_state import RunState

DIRECTORY_EVERY = 11
"""In one of this many runs the nodes keep a directory."""
WHOLE_SECONDS = 60.0
"""Until the directory is whole after the last restart of a node."""
_LOOK_SECONDS = 0.5

WHOLE = "V14 the directory is whole"


def has_directory(seed: int) -> bool:
    """Whether the nodes of this run keep a directory."""
    return seed % DIRECTORY_EVERY == DIRECTORY_EVERY - 1


@contextmanager
def simulated_time(seed: int) -> Iterator[None]:
    """Inside, pysyncobj has the time of the running simulation, and random numbers of the seed."""
    # Few runs need it, and it takes long to load.
    from pysyncobj import syncobj

    module: Any = syncobj
    before = module.monotonicTime, module.random
    module.monotonicTime, module.random = trio.current_time, Random(f"directory {seed}")
    try:
        yield
    finally:
        module.monotonicTime, module.random = before


async def wait_whole(state: RunState) -> int:
    """Wait until each node that is up shows the row `node` of each node that is up; returns the
    number of nodes, 0 after a violation."""
    for _ in range(round(WHOLE_SECONDS / _LOOK_SECONDS)):
        problem = _why_not_whole(state)
        if not problem:
            return len(state.cluster.nodes)
        await trio.sleep(_LOOK_SECONDS)
    state.violations.append(Violation("V14", state.watch.now_ms, problem))
    return 0


def _why_not_whole(state: RunState) -> str:
    nodes = state.cluster.nodes
    shown: dict[int, set[tuple[int, str]]] = {}
    for number, node in nodes.items():
        directory = node.presence.directory
        if directory is None or not directory.whole_seconds:
            return f"the directory of node {number} is not whole"
        # Clients come and go meanwhile.
        shown[number] = {(row.member, row.key) for row in directory.rows() if row.key == "node"}
    for number, rows in shown.items():
        if rows != {(other, "node") for other in nodes}:
            return f"the directory of node {number} shows rows of {sorted(m for m, _ in rows)}"
    return ""
