"""The campaign of CI: 500 seeds of a simulated minute each, with every fault and every invariant.

The seeds are fixed, so that a failure is one that can be had again; `make seeds` plays others.
"""

import os

import pytest

from raftmq.chaos.campaign import Plan, Totals, campaign
from raftmq.chaos.core.nemesis import HANDLERS
from raftmq.chaos.faults import World

SEEDS = 500
SECONDS = 60.0


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_500_seeds_of_a_minute_keep_every_promise() -> None:
    totals = Totals()
    jobs = len(os.sched_getaffinity(0))
    for result in campaign(Plan(World.CORE, seconds=SECONDS), range(SEEDS), jobs=jobs):
        assert result.outcome.is_good, str(result.outcome)
        totals.add(result)
    assert totals.seeds == SEEDS
    assert totals.simulated_seconds >= SEEDS * SECONDS
    assert set(totals.faults) == set(HANDLERS)
    assert totals.counts["elections"] > 3 * SEEDS
    assert totals.counts["acked"] > 100 * SEEDS
