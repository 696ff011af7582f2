"""A check-back hears of open transactions in time, though another partition group has no leader."""

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.sim.checks.check_backs import COMPARED, COMPARED_BEHIND
from raftmq.chaos.sim.run import run
from raftmq.chaos.workloads.withholding import BEHIND
from tests.quality.mutants import MUTANTS, planted

HUB = Schedule(1, 20, (Event(1000, "quorum-loss", (1,), lasts_ms=14_000),))
"""Five nodes that reach node 1 alone: a group without a replica there has no leader."""


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_check_back_that_asks_one_group_after_the_other_is_found_out() -> None:
    sound = run(HUB, workload="pop", nodes=5)
    assert sound.is_good, str(sound)
    assert sound.compared[COMPARED] > 10
    assert sound.compared[COMPARED_BEHIND] >= BEHIND - 2
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "check-back-in-turn")
    with planted(mutant):
        late = run(HUB, workload="pop", nodes=5)
    assert {violation.name for violation in late.violations} == {"V9"}, str(late)
