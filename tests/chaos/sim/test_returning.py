"""Members that return: groups move away and back, nodes leave and come again, logs are lost.

With the bugs planted that such runs are for, the seeds named here find them.
"""

import pytest

from raftmq.chaos.faults import FAULTS, draw
from raftmq.chaos.mutants import MUTANTS, play
from raftmq.chaos.sim.run import run

NODES = 5
"""A group of three can move."""
KINDS = (
    "move-group", "return-node", "return-blank", "lose-group", "crash-write", "kill-leader",
    "isolate-leader", "slow-disk", "add-voter", "remove-voter", "replace-node",
)  # fmt: skip
"""What the seeds of this campaign are drawn from."""
FOUND = {"founds-again": 0, "lost-log": 0}
"""Mutant → the first seed that kills it; the others of `MUTANTS` were not hunted long enough."""


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(3))
def test_members_that_return_break_no_promise(seed: int) -> None:
    kinds = [FAULTS[name] for name in KINDS]
    outcome = run(draw(seed, kinds, nodes=NODES, seconds=60.0), nodes=NODES)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["acknowledged, looked for in later leaders"]


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "seed"), FOUND.items())
def test_mutant_of_returning_members_is_killed(name: str, seed: int) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    outcome = play(mutant, seed)
    assert {violation.name for violation in outcome.violations} & set(mutant.killers)
