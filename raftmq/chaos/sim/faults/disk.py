"""Faults of disks that only the simulated world makes."""

from collections.abc import Mapping

from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.world import damage as kinds

from .damage import harm

reorder_syncs = harm(kinds.reorder_syncs, power=True)


def low_disk(arena: SimArena, event: Event) -> Steps:
    """A disk has a share of the reserve left. Above 1 its node goes on, but takes up no role that
    it gave up; above a half the node follows and does not lead; below a half it does neither."""
    reserve = arena.state.cluster.log.reserve_bytes
    with arena.fill(event.nodes[0], int(event.level * reserve)):
        yield None


def sync_reordered(arena: SimArena, event: Event) -> Steps:
    """A machine loses power; of two files that were synced, only the later is whole."""
    reorder_syncs(arena.state, event.nodes[0])
    yield from ()


OWN: Mapping[str, Make] = {"low-disk": low_disk, "sync-reordered": sync_reordered}
"""By name of the fault."""
