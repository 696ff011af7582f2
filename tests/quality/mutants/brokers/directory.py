"""Mutants of the directory, hunted on whole brokers."""

from raftmq.chaos.mutant import Mutant, later

_PLANTS = "tests.quality.mutants.plants.directory"

MUTANTS = (
    Mutant(
        number=390,
        name="directory-first",
        what="A node stores and hands out messages only while the directory is whole.",
        killers=("V1", "V3", "V5", "V7", "answered-late"),
        plant=later(_PLANTS, "waits_for_the_directory"),
        workload="log",
    ),
    Mutant(
        number=391,
        name="boots-unheard",
        what="A member of the directory passes over what others say about who has restarted.",
        killers=("V14",),
        plant=later(_PLANTS, "hears_no_boots"),
        workload="log",
        seconds=10.0,
    ),
)
