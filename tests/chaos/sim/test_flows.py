"""Claims, hand-offs, moved groups, broadcast and changing topics, under all faults."""

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import VISITS, Schedule, World
from raftmq.chaos.sim.checks.pop_evidence import DELIVERIES, RECORDS
from raftmq.chaos.sim.run import run
from tests.chaos.campaigns import play_valid

CHECKS = ("claims", "hand-off", "resets", "instances", "topic lives", "withheld", "pop a")
"""The checks that judge a run, by their names in `outcome.compared`."""


@pytest.mark.campaign
def test_run_without_faults_does_all_and_is_judged_in_all() -> None:
    outcome = run(Schedule(2, 9, ()), workload="flows")
    assert outcome.is_good, str(outcome)
    for name in (*CHECKS, RECORDS, DELIVERIES):
        assert outcome.compared[name] > 10, name
    for done in (
        "claims granted", "claims refused", "claims given up", "handed off", "hand-offs fenced",
        "hand-offs rolled back", "hand-offs left", "resets", "clones", "fenced", "queues added",
        "sent to added queues", "topics deleted", "puts after the deletion, refused",
        "calls cancelled", "pairs committed", "producers closed early",
        "refused by a closed producer",
    ):  # fmt: skip
        assert outcome.counts[done] > 0, done
    assert outcome.counts["lives"] > 2
    assert not outcome.counts["puts after the deletion, taken"]


SEEDS = range(801, 822)
SECONDS = 6.0
PLAN = Plan(World.SIM, workload="flows", seconds=SECONDS)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_faults_undo_no_hand_off_no_claim_and_no_reset() -> None:
    totals = play_valid(PLAN, SEEDS, checks=CHECKS)
    assert set(VISITS) <= set(totals.faults)
    assert totals.vacuous_checks == []
