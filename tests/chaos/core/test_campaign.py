"""The campaign of CI: 500 seeds of a simulated minute each, with every fault and every invariant.

The seeds are fixed, so that a failure is one that can be had again; `make seeds` plays others.
"""

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.core.faults.nemesis import HANDLERS
from raftmq.chaos.faults import World
from tests.chaos.campaigns import play_valid

SEEDS = 500
SECONDS = 60.0


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_500_seeds_of_a_minute_keep_every_promise() -> None:
    totals = play_valid(Plan(World.CORE, seconds=SECONDS), range(SEEDS))
    assert totals.simulated_seconds >= SEEDS * SECONDS
    assert set(totals.faults) == set(HANDLERS)
    assert totals.vacuous_checks == []
    assert totals.counts["elections"] > 3 * SEEDS
    assert totals.counts["acked"] > 100 * SEEDS
