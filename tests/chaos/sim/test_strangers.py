"""Strangers, outages and names that are lost: short campaigns, and what they catch in old code."""

import pytest

from raftmq.chaos.faults import FAULTS
from raftmq.chaos.faults.schedule import draw
from raftmq.chaos.mutants import MUTANTS, play
from raftmq.chaos.sim.run import run


@pytest.mark.parametrize("seed", [0, 1])
def test_cluster_survives_strangers(seed: int) -> None:
    outcome = run(draw(seed, [FAULTS["strangers"]], nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["strangers"] > 0


def test_cluster_serves_after_outages_and_lost_names() -> None:
    kinds = [FAULTS["outage"], FAULTS["lost-names"]]
    outcome = run(draw(0, kinds, nodes=3, seconds=20.0))
    assert outcome.is_good, outcome.violations
    assert outcome.counts["outage"] > 0


@pytest.mark.parametrize(("number", "seed"), [(211, 0), (212, 0), (213, 0), (216, 0), (231, 0)])
def test_mutant_of_connections_is_killed(number: int, seed: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.number == number)
    names = {violation.name for violation in play(mutant, seed).violations}
    assert names & set(mutant.killers), names
