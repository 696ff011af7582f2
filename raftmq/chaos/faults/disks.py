"""Faults of disks: calls that are refused, disks that are full or slow, damage to what was stored.

The kinds of damage are named as their faults. A world does them in its own way, because their
limits differ: each spares what the product does not promise to survive there.

Sources: Protocol-Aware Recovery (FAST '18); "Can Applications Recover from fsync Failures?" (ATC
'20); TigerBeetle's VOPR.
"""

from collections.abc import Mapping

from .arena import Arena, DiskCall, Make, Steps, at_once, while_lasts
from .schedule import Event

DAMAGES = (
    "bit-flip", "bad-sector", "unreadable-sector", "misdirected-write", "lost-write", "time-travel",
    "cut-tail", "missing-segment", "lost-hard-state", "wipe",
)  # fmt: skip
"""Damage to the disk of one node."""


def damage(arena: Arena, event: Event) -> Steps:
    """A disk is damaged as the fault's name says."""
    arena.damage(event.nodes[0], event.fault)
    yield from ()


def _refused(call: DiskCall) -> Make:
    return at_once(lambda arena, event: arena.refuse(event.nodes[0], call))


DISKS: Mapping[str, Make] = {
    "torn-write": at_once(lambda arena, event: arena.tear_write(event.nodes[0])),
    "sync-error": _refused("sync"),
    "sync-lies": at_once(lambda arena, event: arena.lie(event.nodes[0])),
    "write-error": _refused("write"),
    "read-error": _refused("read"),
    "full-disk": while_lasts(lambda arena, event: arena.fill(event.nodes[0], int(event.level))),
    "full-quota": while_lasts(
        lambda arena, event: arena.fill_quota(event.nodes[0], int(event.level))
    ),
    "short-write": at_once(lambda arena, event: arena.shorten_write(event.nodes[0])),
    "interrupted-write": at_once(lambda arena, event: arena.interrupt_write(event.nodes[0])),
    "read-only": while_lasts(lambda arena, event: arena.forbid_writes(event.nodes[0])),
    "slow-disk": while_lasts(lambda arena, event: arena.slow_disk(event.nodes[0], event.level)),
    "clone": at_once(lambda arena, event: arena.clone(*event.nodes[:2])),
    **dict.fromkeys(DAMAGES, damage),
}
"""By name of the fault."""
