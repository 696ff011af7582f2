"""Mutants of the client library, each with the seed that killed it when it was planted first."""

import pytest

from raftmq.chaos.mutants import MUTANTS, clients, hunt

SEEDS = {
    "part-is-the-whole": 3,
    "renumbered-settlement": 0,
    "late-commit": 0,
    "shorter-timeout-late": 2,
    "timeout-for-each": 0,
}
DEAR = {"renumbered-settlement"}
"""Consumers that pop cost ten times as much as those that pull."""


def test_each_mutant_of_the_client_has_a_seed() -> None:
    assert set(SEEDS) == {mutant.name for mutant in clients.MUTANTS}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.campaign) if n in DEAR else n for n in SEEDS]
)
def test_mutant_of_the_client_is_killed_by_an_expected_promise(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    killed = hunt(mutant, first=SEEDS[name], seeds_max=1)
    if not killed.is_killed:
        # The simulation has changed since.
        killed = hunt(mutant)
    assert killed.is_as_expected, f"{killed.killer or 'nobody'}: {killed.text}"
