"""Mutants that `--workload flows` hunts, each with the seed that killed it when it was planted."""

import pytest

from raftmq.chaos.mutants import MUTANTS, flows, hunt

SEEDS = {
    "claim-given-up-by-any": 1,
    "late-hand-off": 0,
    "commits-what-is-read-ahead": 0,
    "reset-of-one-leader": 0,
    "reset-again": 0,
}


def test_each_mutant_of_flows_has_a_seed() -> None:
    assert set(SEEDS) == {mutant.name for mutant in flows.MUTANTS}


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SEEDS)
def test_mutant_of_flows_is_killed_by_an_expected_promise(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    killed = hunt(mutant, first=SEEDS[name], seeds_max=1)
    if not killed.is_killed:
        # The simulation has changed since.
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'nobody'}: {killed.text}"
