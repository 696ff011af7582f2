"""Members that return: groups move away and back, nodes leave and come again, logs are lost.

With the bugs planted that such runs are for, the seeds named here find them.
"""

import pytest

from raftmq.chaos.faults import FAULTS, Schedule, World, draw, of_world, with_visits
from raftmq.chaos.mutants import MUTANTS, play
from raftmq.chaos.sim.run import run

NODES = 5
"""A group of three can move."""
KINDS = (
    "move-group", "return-node", "return-blank", "lose-group", "crash-write", "kill-leader",
    "isolate-leader", "slow-disk", "add-voter", "remove-voter", "replace-node",
)  # fmt: skip
"""What the seeds of this campaign are drawn from."""
SEEDS = range(3)
SECONDS = 60.0
FOUND = {"founds-again": 0, "lost-log": 0, "outgoing-unseen": 1, "left-for-ever": 0}
"""Mutant → the first seed that kills it; the others of `MUTANTS` were not hunted long enough."""


def schedule_of(seed: int) -> Schedule:
    drawn = draw(seed, [FAULTS[name] for name in KINDS], nodes=NODES, seconds=SECONDS)
    return with_visits(drawn, of_world(World.SIM), nodes=NODES)


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_return_break_no_promise(seed: int) -> None:
    outcome = run(schedule_of(seed), nodes=NODES)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["acknowledged, looked for in later leaders"]


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "seed"), FOUND.items())
def test_mutant_of_returning_members_is_killed(name: str, seed: int) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    outcome = play(mutant, seed)
    assert {violation.name for violation in outcome.violations} & set(mutant.killers)
