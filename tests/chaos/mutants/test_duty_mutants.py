"""Mutants of leaders' duties and of deadlines, each with the seed that killed it first."""

import pytest

from raftmq.chaos.mutants import MUTANTS, duties, hunt

SEEDS = {
    "one-clock": 0,
    "fastest-clock": 0,
    "sessions-by-own-clock": 3,
    "ages-by-own-clock": 4,
    "waits-for-the-clock": 3,
    "gives-up-one-more": 9,
}


def test_each_mutant_of_duties_has_a_seed() -> None:
    assert set(SEEDS) == {mutant.name for mutant in duties.MUTANTS}


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SEEDS)
def test_mutant_of_duties_is_killed_by_an_expected_promise(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    killed = hunt(mutant, first=SEEDS[name], seeds_max=1)
    if not killed.is_killed:
        # The simulation has changed since.
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'nobody'}: {killed.text}"
