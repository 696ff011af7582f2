"""Mutants of dynamic settings, hunted on whole brokers."""

from raftmq.chaos.mutant import Mutant, later

_PLANTS = "tests.quality.mutants.plants.settings"

MUTANTS = (
    Mutant(
        number=388,
        name="settings-unseen",
        what="The catalog carries a change of settings out whatever version its author saw.",
        killers=("nonlinearizable", "zone-inside", "zone-overlap"),
        plant=later(_PLANTS, "looks_at_no_version"),
        workload="admin",
        seconds=10.0,
    ),
    Mutant(
        number=389,
        name="heard-once",
        what="A client obeys the first settings that it hears of, and no later ones.",
        killers=("V3",),
        plant=later(_PLANTS, "hears_once"),
        workload="admin",
        seconds=10.0,
    ),
    Mutant(
        number=393,
        name="topics-keep-nothing",
        what="Retention goes by the nodes' time alone, whatever a topic says.",
        killers=("Q1",),
        plant=later(_PLANTS, "keeps_by_nodes_alone"),
        workload="log",
        seconds=10.0,
    ),
)
