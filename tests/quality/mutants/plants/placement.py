"""Plants of `tests.quality.mutants.brokers.placement`: the patched code needs the event loop."""

from raftmq.broker.cluster import placement, reconfiguration
from raftmq.chaos.mutant import Patch


def leaves_groups_short(patch: Patch) -> None:
    """370"""
    patch.set(placement, "filled", lambda groups, nodes: list(groups))


def lets_a_member_come_again(patch: Patch) -> None:
    """371"""
    patch.set(reconfiguration, "_is_repeat", lambda change, known, nodes: True)
