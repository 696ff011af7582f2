"""Mutants of administrative calls whose answers are lost.

They are hunted with whole brokers in the simulated world, by `--workload admin`.

Sources: our own; each was a bug.
"""

from functools import partial

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.machine.offsets import Offsets
from raftmq.machine.repeats import Repeats


def carries_a_request_out_again(patch: Patch) -> None:
    """255"""
    patch.set(Repeats, "once", lambda self, request, change: change())


def lets_a_deleted_groups_offsets_stand(patch: Patch) -> None:
    """256"""
    patch.set(Offsets, "_forget", lambda self, name: None)


ORDER = ("nonlinearizable", "zone-inside", "zone-overlap")

_mutant = partial(Mutant, workload="admin", seconds=10.0)

MUTANTS = (
    _mutant(
        number=255,
        name="request-again",
        what="A request that sets something is carried out each time that its client sends it.",
        killers=(*ORDER, "V3", "client-bug", "audit-log"),
        plant=carries_a_request_out_again,
    ),
    _mutant(
        number=256,
        name="offsets-outlive-group",
        what="The offsets of a deleted group stay, and the next group of that name begins there.",
        killers=("V3",),
        plant=lets_a_deleted_groups_offsets_stand,
    ),
)
