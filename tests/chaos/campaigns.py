"""Campaigns of short runs, each of which must be valid."""

import os
from collections.abc import Collection

from raftmq.chaos.campaign import Plan, Totals, campaign


def play_valid(plan: Plan, seeds: range, *, checks: Collection[str] = ()) -> Totals:
    """Play seeds on all processors, and add up their results; each run has compared in `checks`."""
    totals = Totals()
    for result in campaign(plan, seeds, jobs=len(os.sched_getaffinity(0))):
        assert result.outcome.is_good, str(result.outcome)
        assert all(result.outcome.compared[name] for name in checks), str(result.outcome)
        totals.add(result)
    assert totals.seeds == len(seeds)
    print(f"due and without effect: {totals.never_struck}")
    return totals
