"""Claims, hand-offs, moved groups, broadcast and changing topics, under all faults."""

import os

import pytest

from raftmq.chaos.campaign import Plan, Totals, campaign
from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.sim.pop_evidence import DELIVERIES, RECORDS
from raftmq.chaos.sim.run import run

CHECKS = ("claims", "hand-off", "resets", "instances", "topic lives", "pop a")
"""What judges a run, each by its name among what was compared."""


def test_run_without_faults_does_all_and_is_judged_in_all() -> None:
    outcome = run(Schedule(1, 6, ()), workload="flows")
    assert outcome.is_good, str(outcome)
    for name in (*CHECKS, RECORDS, DELIVERIES):
        assert outcome.compared[name] > 10, name
    for done in (
        "claims granted", "claims refused", "claims given up", "handed off", "hand-offs fenced",
        "hand-offs rolled back", "hand-offs left", "resets", "clones", "fenced", "queues added",
        "sent to added queues", "topics deleted", "puts after the deletion, refused",
    ):  # fmt: skip
        assert outcome.counts[done] > 0, done
    assert outcome.counts["lives"] > 2
    assert not outcome.counts["puts after the deletion, taken"]


SEEDS = range(800, 820)
SECONDS = 6.0


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_faults_undo_no_hand_off_no_claim_and_no_reset() -> None:
    plan = Plan(World.SIM, workload="flows", seconds=SECONDS)
    totals = Totals()
    for result in campaign(plan, SEEDS, jobs=len(os.sched_getaffinity(0))):
        assert result.outcome.is_good, str(result.outcome)
        assert all(result.outcome.compared[name] for name in CHECKS)
        totals.add(result)
    print(f"due and without effect: {totals.never_struck}")
    assert totals.seeds == len(SEEDS)
