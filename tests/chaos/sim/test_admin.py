"""Administrators whose answers get lost: their answers and the visible states have one order.

Groups that are reset, or deleted under their consumers, get all again, once each time.
"""

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import VISITS, Schedule, World
from raftmq.chaos.sim.run import run
from tests.chaos.campaigns import play_valid


def test_run_without_faults_changes_much_and_is_judged() -> None:
    outcome = run(Schedule(2, 10, ()), workload="admin")
    assert outcome.is_good, str(outcome)
    assert outcome.counts["administered"] > 20
    assert outcome.counts["administered in doubt"] > 0
    assert outcome.counts["groups deleted"] > 0
    assert outcome.counts["consumers of deleted groups"] > 0
    assert outcome.counts["newcomers"] > 0
    assert outcome.counts["misfits refused"] > 0
    assert outcome.counts["changes of settings heard"] > 5
    assert outcome.compared["linearizability"] > 20


SEEDS = range(1000, 1015)
SECONDS = 10.0
PLAN = Plan(World.SIM, workload="admin", seconds=SECONDS)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_what_administrators_are_told_happens_once() -> None:
    totals = play_valid(PLAN, SEEDS, checks=("linearizability",))
    assert set(VISITS) <= set(totals.faults)
    assert totals.vacuous_checks == []
