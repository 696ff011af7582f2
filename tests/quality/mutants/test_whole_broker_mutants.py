"""Mutants that are hunted with whole brokers, each with the seed that killed it first."""

from types import ModuleType

import pytest

from tests.quality.mutants import MUTANTS, hunt
from tests.quality.mutants.brokers import (
    administration,
    answers,
    clients,
    close_readings,
    directory,
    flows,
    hostile_readings,
    leader_tasks,
    placement,
    quotas,
    rot,
    settings,
)

SEEDS: dict[ModuleType, dict[str, int]] = {
    clients: {
        "part-is-the-whole": 3,
        "renumbered-settlement": 0,
        "late-commit": 0,
        "shorter-timeout-late": 2,
        "timeout-for-each": 13,
        "commit-again": 17,
        "cancelled-number-again": 1,
        "cancelled-commit-holds": 1,
        "half-refused": 3,
        "behind-a-failure": 1,
        "last-first": 0,
    },
    flows: {
        "claim-given-up-by-any": 2,
        "late-hand-off": 0,
        "commits-what-is-read-ahead": 1,
        "reset-of-one-leader": 0,
        "reset-again": 3,
        "change-again": 1,
    },
    leader_tasks: {
        "one-clock": 0,
        "fastest-clock": 0,
        "sessions-by-own-clock": 3,
        "ages-by-own-clock": 12,
        "waits-for-the-clock": 3,
        "gives-up-one-more": 9,
        "tells-after": 9,
    },
    administration: {
        "request-again": 5,
        "offsets-outlive-group": 0,
    },
    rot: {
        "snapshot-is-all": 1,
        "index-by-map": 13,
    },
    placement: {
        "stays-short": 6,
        "refused-by-halves": 0,
        "learners-unheard": 3,
        "absent-for-ever": 15,
    },
    answers: {
        "sent-as-handed-out": 3,
        "mask-in-silence": 8,
        "one-turn": 8,
    },
    quotas: {
        "asks-on-their-way": 1,
    },
    close_readings: {
        "tick-once": 1,
        "begun-in-vain": 0,
        "latest-later": 0,
        "claim-before-deletion": 237,
        "check-back-in-turn": 0,
        "lease-of-a-moment": 4,
        "filter-meets-a-look": 17,
        "refused-read-is-no-rot": 0,
        "refusal-of-a-repeat": 1,
        "round-ends-at-refusal": 0,
        "filter-of-newer-software": 1,
    },
    directory: {
        "directory-first": 32,
        "boots-unheard": 10,
    },
    settings: {
        "settings-unseen": 3,
        "heard-once": 0,
        "topics-keep-nothing": 4,
    },
    hostile_readings: {
        "lease-in-hand-cut": 3,
        "sends-at-once": 0,
        "closed-and-silent": 4,
        "latest-when-opened": 0,
        "latest-in-new-queues": 0,
    },
}
CHEAP = {"part-is-the-whole", "shorter-timeout-late", "commit-again", "latest-when-opened"}
"""Mutants that fall to a single short run, or to consumers that pull, in a few CPU-seconds: they
are hunted outside of campaigns, too."""

CASES = [
    pytest.param(name, seed, marks=() if name in CHEAP else pytest.mark.campaign, id=name)
    for seeds in SEEDS.values()
    for name, seed in seeds.items()
]


@pytest.mark.parametrize("module", SEEDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_mutant_has_a_seed(module: ModuleType) -> None:
    assert set(SEEDS[module]) == {mutant.name for mutant in module.MUTANTS}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_mutant_is_killed_by_an_expected_promise(name: str, seed: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    killed = hunt(mutant, first=seed, seeds_max=1)
    if not killed.is_killed:
        # The simulation has changed since.
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'no check'}: {killed.text}"
