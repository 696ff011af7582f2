"""All clients stand still after the heal: the leaders alone let time pass."""

import pytest

from raftmq.chaos.faults import Schedule
from raftmq.chaos.sim.run import run
from tests.quality.mutants import MUTANTS, planted

CALM = Schedule(3, 6, ())


@pytest.mark.campaign
def test_silence_finds_time_that_stands_and_nothing_else() -> None:
    calm = run(CALM, workload="pop")
    assert calm.is_good, str(calm)
    assert calm.counts["hand-overs in silence"] > 0
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "tick-once")
    with planted(mutant):
        late = run(CALM, workload="pop")
    assert {violation.name for violation in late.violations} == {"V8"}, str(late)
