"""Faults of processes that only the real world makes: limits of the operating system."""

import os
import resource
from collections.abc import Mapping
from contextlib import suppress

from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.real.arena import Make, RealArena
from raftmq.chaos.real.run_state import RunState

DESCRIPTORS_SPARE = 1


def no_descriptors(arena: RealArena, event: Event) -> Steps:
    """Lower the limit to the descriptors in use plus one: further ones get `EMFILE`."""
    process = arena.state.running(event.nodes[0])
    with suppress(ProcessLookupError, FileNotFoundError):
        limit = resource.prlimit(process, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{process}/fd"))) + 1
        resource.prlimit(process, resource.RLIMIT_NOFILE, (used + DESCRIPTORS_SPARE, limit[1]))
        try:
            yield None
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_NOFILE, limit)


def end_all(state: RunState) -> None:
    """Correct all clocks, cancel all crash orders, and resume all paused nodes."""
    for node in state.nodes.nodes:
        state.nodes.resume_quietly(node)
        state.nodes.order(node, failpoint="", clocks=[])


OWN: Mapping[str, Make] = {"no-descriptors": no_descriptors}
"""By name of the fault."""
