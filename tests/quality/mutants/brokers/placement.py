"""Mutants of the placement of groups, hunted on whole brokers.

Sources: the broker as it was until a hostile reading found the first two.
"""

from raftmq.chaos.mutant import Mutant, later

_PLANTS = "tests.quality.mutants.plants.placement"

MUTANTS = (
    Mutant(
        number=370,
        name="stays-short",
        what="A group that a removal left with two copies of three never gets a third "
        "(raftmq before `42ba923`).",
        killers=("V11",),
        plant=later(_PLANTS, "leaves_groups_short"),
        workload="log",
        seconds=40.0,
        kinds=("remove-voter", "kill"),
        why_hinted="it takes a node that is removed while no other is free, and one that joins",
    ),
    Mutant(
        number=371,
        name="refused-by-halves",
        what="A replacement by a running member is refused when the member's address has been "
        "moved (raftmq before `42ba923`).",
        killers=("V3", "V5", "client-bug"),
        plant=later(_PLANTS, "lets_a_member_come_again"),
        workload="admin",
        seconds=10.0,
    ),
    Mutant(
        number=386,
        name="learners-unheard",
        what="The leader of the system group hears its voters only, so nodes that learn there "
        "become absent.",
        killers=("V13", "V3"),
        plant=later(_PLANTS, "hears_voters_only"),
        workload="log",
        seconds=20.0,
        nodes=4,
        kinds=("kill",),
        why_hinted="one of four nodes learns, and no fault of the network excuses its silence",
    ),
    Mutant(
        number=387,
        name="absent-for-ever",
        what="A node that answers again stays absent.",
        killers=("V3",),
        plant=later(_PLANTS, "takes_nobody_back"),
        workload="log",
        seconds=20.0,
        kinds=("isolate-node",),
        why_hinted="nodes have to be silent for some seconds",
    ),
)
